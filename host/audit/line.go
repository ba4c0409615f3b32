package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/dodona-project/dodona/sdk/attest"
)

type line struct {
	seq    uint64
	timeMS int64
	chain  string
	entry  Entry
	prev   [32]byte
}

// encode lays out an entry: keys in a fixed order, no spaces between tokens,
// detail keys sorted by bytes, empty values left out.
func encode(l line) ([]byte, error) {
	b := make([]byte, 0, 512)
	b = append(b, `{"v":"`+attest.Format+`","seq":`...)
	b = strconv.AppendUint(b, l.seq, 10)
	b = append(b, `,"time_ms":`...)
	b = strconv.AppendInt(b, l.timeMS, 10)
	b = attest.AppendText(append(b, `,"service":`...), l.chain)
	b = attest.AppendText(append(b, `,"kind":`...), l.entry.Kind)
	b = attest.AppendText(append(b, `,"actor":`...), l.entry.Actor)
	b = append(b, `,"detail":{`...)
	first := true
	for _, key := range slices.Sorted(maps.Keys(l.entry.Detail)) {
		if l.entry.Detail[key] == "" {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = attest.AppendText(b, key)
		b = attest.AppendText(append(b, ':'), l.entry.Detail[key])
	}
	b = append(b, `},"evidence":[`...)
	for i, ev := range l.entry.Evidence {
		if i > 0 {
			b = append(b, ',')
		}
		hash := sha256.Sum256(ev.Data)
		b = attest.AppendText(append(b, `{"kind":`...), ev.Kind)
		b = append(b, `,"sha256":"`...)
		b = hex.AppendEncode(b, hash[:])
		b = append(b, `","bytes":`...)
		b = strconv.AppendInt(b, int64(len(ev.Data)), 10)
		b = append(b, '}')
	}
	b = append(b, `],"prev":"`...)
	b = hex.AppendEncode(b, l.prev[:])
	b = append(b, `"}`...)
	if len(b) > MaxLine {
		return nil, fmt.Errorf("%w: %s in chain %s has %d bytes: allowed are at most %d", ErrRefused, l.entry.Kind, l.chain, len(b), MaxLine)
	}
	return b, nil
}
