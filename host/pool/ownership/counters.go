package ownership

import (
	"encoding/hex"
	"slices"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
)

// An id that is this many digits of lower-case hex, as those of proxies are, takes half
// as many bytes in a record.
const (
	hexID    = 32
	packedID = hexID / 2
)

// PackCounters encodes the counters of a report for its record, and for telling it from
// others: other counters have other bytes. No proxy is named twice.
func PackCounters(counters []*controlplanev1.RuntimeCounter) []byte {
	n := len(counters)
	all := new(statev1.RuntimeCounters)
	ids, active, reserved, some := make([]byte, 0, packedID*n), make([]uint32, 0, n), make([]uint32, 0, n), uint32(0)
	for _, c := range counters {
		var ok bool
		if ids, ok = packID(ids, c.ProxyId); !ok {
			all.Counters = append(all.Counters, c)
			continue
		}
		if c.Draining {
			all.Draining = append(all.Draining, uint32(len(active)))
		}
		active, reserved = append(active, c.Active), append(reserved, c.Reserved)
		some |= c.Reserved
	}
	if all.Ids, all.Active = ids, active; some != 0 {
		all.Reserved = reserved
	}
	packed, _ := proto.MarshalOptions{Deterministic: true}.Marshal(all) // what it is made of was just parsed
	return packed
}

// packID appends an id in half of its bytes; ok is false for one that does not fit.
func packID(to []byte, id string) (_ []byte, ok bool) {
	if len(id) != hexID {
		return to, false
	}
	n, bad := len(to), byte(0)
	to = slices.Grow(to, packedID)[:n+packedID]
	packed := to[n:]
	for i := range packedID {
		high, low := digits[id[2*i]], digits[id[2*i+1]]
		bad |= high | low
		packed[i] = high<<4 | low
	}
	if bad > 15 {
		return to[:n], false
	}
	return to, true
}

// digits are the values of hex digits, and 255 of everything else.
var digits = func() (values [256]byte) {
	for i := range values {
		values[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		values[c] = byte(i)
	}
	return values
}()

// A Counter is how much of a proxy a worker uses.
type Counter struct {
	ProxyID          string
	Active, Reserved uint32
}

// Uses are all of them.
func (c Counter) Uses() uint64 { return uint64(c.Active) + uint64(c.Reserved) }

// unpack reads what [PackCounters] wrote. The store's checksums see to it that it does
// parse; what does not counts nothing.
func unpack(r *statev1.WorkerRuntime) *statev1.RuntimeCounters {
	all := new(statev1.RuntimeCounters)
	if proto.Unmarshal(r.GetCounters(), all) != nil || len(all.Ids) != packedID*len(all.Active) || all.Reserved != nil && len(all.Reserved) != len(all.Active) {
		return new(statev1.RuntimeCounters)
	}
	return all
}

// Counters are what a report counts.
func Counters(r *statev1.WorkerRuntime) []Counter {
	all := unpack(r)
	counters := make([]Counter, 0, len(all.Active)+len(all.Counters))
	ids := hex.EncodeToString(all.Ids)
	for i, active := range all.Active {
		c := Counter{ProxyID: ids[hexID*i : hexID*(i+1)], Active: active}
		if all.Reserved != nil {
			c.Reserved = all.Reserved[i]
		}
		counters = append(counters, c)
	}
	for _, c := range all.Counters {
		counters = append(counters, Counter{ProxyID: c.ProxyId, Active: c.Active, Reserved: c.Reserved})
	}
	return counters
}

// InUse is how many uses of a proxy a report counts; none where it is not named.
func InUse(r *statev1.WorkerRuntime, proxy string) uint64 {
	for _, c := range Counters(r) {
		if c.ProxyID == proxy {
			return c.Uses()
		}
	}
	return 0
}
