package ownership_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
)

// report has n counters of proxies.
func report(n int) (counters []*controlplanev1.RuntimeCounter) {
	for i := range n {
		counters = append(counters, &controlplanev1.RuntimeCounter{ProxyId: fmt.Sprintf("%032x", i*i), Active: uint32(i % 7), Reserved: uint32(i % 3), Draining: i%5 == 0})
	}
	return counters
}

// TestCounters packs counters and reads them again, whatever their ids look like.
func TestCounters(t *testing.T) {
	strange := []string{"dc-1", strings.Repeat("A", 32), strings.Repeat("0", 31) + "g", strings.Repeat("0", 31) + "/", strings.Repeat("0", 33), strings.Repeat("ö", 16)}
	mixed := report(9)
	for i, id := range strange {
		mixed = slices.Insert(mixed, i, &controlplanev1.RuntimeCounter{ProxyId: id, Active: uint32(i), Reserved: 7, Draining: i%2 == 0})
	}
	for name, counters := range map[string][]*controlplanev1.RuntimeCounter{
		"none":     nil,
		"few":      report(3),
		"most":     report(4096),
		"mixed":    mixed,
		"large":    {{ProxyId: strings.Repeat("f", 32), Active: math.MaxUint32, Reserved: math.MaxUint32}},
		"reserved": {{ProxyId: strings.Repeat("0", 32)}, {ProxyId: strings.Repeat("1", 32), Reserved: 1}},
	} {
		r := &statev1.WorkerRuntime{Counters: ownership.PackCounters(counters)}
		got := ownership.Counters(r)
		if len(got) != len(counters) {
			t.Errorf("%s: %d counters became %d", name, len(counters), len(got))
		}
		for _, c := range counters {
			if want := (ownership.Counter{ProxyID: c.ProxyId, Active: c.Active, Reserved: c.Reserved}); !slices.Contains(got, want) {
				t.Errorf("%s: %+v is gone", name, want)
			}
			if n := ownership.InUse(r, c.ProxyId); n != uint64(c.Active)+uint64(c.Reserved) {
				t.Errorf("%s: %d uses of %s", name, n, c)
			}
		}
	}
}

// TestOtherCountersHaveOtherBytes: a report is told from another one by them.
func TestOtherCountersHaveOtherBytes(t *testing.T) {
	seen := map[string]string{}
	for name, edit := range map[string]func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter{
		"as it is": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter { return c },
		"none":     func([]*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter { return nil },
		"one less": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter { return c[1:] },
		"another id": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter {
			c[1].ProxyId = strings.Repeat("f", 32)
			return c
		},
		"a strange id": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter {
			c[1].ProxyId = strings.Repeat("F", 32)
			return c
		},
		"active":   func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter { c[1].Active++; return c },
		"reserved": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter { c[1].Reserved++; return c },
		"not reserved": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter {
			c[1].Reserved, c[2].Reserved = 0, 0
			return c
		},
		"draining": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter {
			c[1].Draining = true
			return c
		},
		"drains no more": func(c []*controlplanev1.RuntimeCounter) []*controlplanev1.RuntimeCounter {
			c[0].Draining = false
			return c
		},
	} {
		packed := string(ownership.PackCounters(edit(report(3))))
		if other, twice := seen[packed]; twice {
			t.Errorf("%q and %q are packed alike", name, other)
		}
		seen[packed] = name
	}
}

// TestPackedCountersAreSmall: most of what a store is written are reports.
func TestPackedCountersAreSmall(t *testing.T) {
	counters := report(512)
	n, plain := len(ownership.PackCounters(counters)), proto.Size(&controlplanev1.ReportRuntimeRequest{Counters: counters})
	if n > plain/2 {
		t.Errorf("512 counters take %d bytes, and %d in the message", n, plain)
	}
	if allocs := testing.AllocsPerRun(20, func() { ownership.PackCounters(counters) }); allocs > 16 {
		t.Errorf("packing 512 counters allocates %v times", allocs)
	}
}
