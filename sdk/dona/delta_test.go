package dona_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// moved is checkout at a version where every endpoint's port is the version.
func moved(version uint64) *donav1.ConfigSnapshot {
	s := checkout(version)
	for i, e := range s.Endpoints {
		e.Address = fmt.Sprintf("10.0.0.%d:%d", i, version)
	}
	s.Weights[0].Weight, s.Weights[1].Weight = uint32(version%100), uint32(100-version%100)
	return s
}

// step is the delta that leads from moved(base) to moved(version).
func step(base, version uint64) *donav1.ConfigSnapshot {
	to := sealed(moved(version))
	return &donav1.ConfigSnapshot{Service: to.Service, Version: version, Checksum: to.Checksum,
		Form: donav1.ConfigSnapshot_FORM_DELTA, BaseVersion: base, Endpoints: to.Endpoints, Weights: to.Weights,
		Replaced: []donav1.ConfigSnapshot_Section{donav1.ConfigSnapshot_SECTION_WEIGHTS}}
}

func TestDeltasAreApplied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := startHost(t)
	h.publish(moved(7))
	c := dial(t, h.address, dona.WithCacheDir(dir))
	svc := c.Service("checkout")
	ready(t, svc)
	if !look(h, func() bool { return h.watches[0].AcceptDelta }) {
		t.Error("the watch does not ask for deltas")
	}
	h.push(moved(9), step(7, 8), step(8, 9))
	until(t, "both are applied", func() bool { return svc.Status().Version == 9 })
	if p, err := svc.Pick(t.Context(), dona.Request{}); err != nil || !strings.HasSuffix(p.Endpoint.Address, ":9") {
		t.Errorf("picked %+v, %v", p.Endpoint, err)
	}
	until(t, "it is reported", func() bool {
		return look(h, func() bool {
			for _, b := range h.batches {
				for _, a := range b.Applied {
					if a.Version == 9 && a.RejectedReason == "" {
						return true
					}
				}
			}
			return false
		})
	})
	// Lists that became empty: no weights means any variant, no flags no cohort.
	bare := moved(10)
	bare.Weights, bare.Flags, bare.Endpoints = nil, nil, bare.Endpoints[1:]
	d := step(9, 10)
	d.Weights, d.Endpoints = nil, bare.Endpoints
	d.RemovedEndpoints, d.RemovedFlags = []string{"a"}, []string{"use-v2"}
	d.Checksum = sealed(bare).Checksum
	h.push(bare, d)
	until(t, "the empty lists are applied", func() bool { return svc.Status().Version == 10 })
	if p, err := svc.Pick(t.Context(), dona.Request{}); err != nil || p.Decision.Kind != dona.KindOnlyVariant || p.Endpoint.ID != "b" {
		t.Errorf("without weights: %+v, %v", p.Decision, err)
	}
	// It comes back with what the deltas came to.
	h.cutStreams()
	until(t, "the watch is back", func() bool {
		return look(h, func() bool {
			w := h.watches[len(h.watches)-1]
			return w.LastVersion == 10 && string(w.LastChecksum) == string(d.Checksum)
		})
	})
	until(t, "the host confirms", func() bool { return !svc.Status().Stale })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// What was kept on disk is whole.
	h.stop()
	again := dial(t, h.address, dona.WithCacheDir(dir)).Service("checkout")
	ready(t, again)
	if st := again.Status(); st.Version != 10 || st.Endpoints != 1 || !st.FromDisk {
		b, err := os.ReadFile(filepath.Join(dir, "checkout"))
		t.Errorf("from disk: %+v; the file has %d bytes, %v", st, len(b), err)
	}
}

// TestDeltaFaults loses, repeats, swaps and damages one delta of a stream: the
// client keeps what it has, says why, asks for a full frame and goes on.
func TestDeltaFaults(t *testing.T) {
	damaged := step(9, 10)
	damaged.Endpoints = []*donav1.Endpoint{proto.CloneOf(damaged.Endpoints[0])}
	for name, tc := range map[string]struct {
		frames []*donav1.ConfigSnapshot
		held   uint64 // when the fault is noticed
		at     uint64 // version of the frame that shows it
		why    string
	}{
		"lost":     {[]*donav1.ConfigSnapshot{step(7, 8), step(9, 10)}, 8, 10, "against version 9, held is 8"},
		"repeated": {[]*donav1.ConfigSnapshot{step(7, 8), step(8, 9), step(8, 9)}, 9, 9, "against version 8, held is 9"},
		"swapped":  {[]*donav1.ConfigSnapshot{step(7, 8), step(9, 10), step(8, 9)}, 8, 10, "against version 9, held is 8"},
		"damaged":  {[]*donav1.ConfigSnapshot{step(7, 8), step(8, 9), damaged}, 9, 10, "checksum of version 10"},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t)
			h.publish(moved(7))
			// Long waits: a host that sends damage is asked again soon all the same.
			svc := dial(t, h.address, dona.WithRandom(func() float64 { return 0.9 })).Service("checkout")
			ready(t, svc)
			begin := time.Now()
			var never atomic.Bool // a version that the deltas do not lead to
			stop := picking(t, svc, func(p dona.Pick) {
				if v := p.Decision.ConfigVersion; v > tc.held && v < 10 {
					never.Store(true)
				}
			})
			h.push(moved(10), tc.frames...)
			until(t, "the rejection is reported", func() bool { return rejected(h, tc.at, tc.why) })
			until(t, "a full frame is asked for and applied", func() bool {
				st := svc.Status()
				return st.Version == 10 && !st.Stale && look(h, func() bool { return h.watches[len(h.watches)-1].LastVersion == 0 })
			})
			t.Logf("recovered after %v", time.Since(begin).Round(time.Millisecond))
			stop()
			if never.Load() {
				t.Error("a frame that did not fit was used")
			}
			h.push(moved(11), step(10, 11))
			until(t, "deltas go on", func() bool { return svc.Status().Version == 11 })
			if n := look(h, func() int { return len(h.watches) }); n != 2 {
				t.Errorf("%d watches, want 2", n)
			}
		})
	}
}

// picking picks on two goroutines until stop is called; each pick must succeed, and
// be of one version through and through.
func picking(t *testing.T, svc *dona.Service, saw func(dona.Pick)) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				p, err := svc.Pick(t.Context(), dona.Request{})
				if err != nil {
					t.Error(err)
					return
				}
				p.Cancel()
				if want := fmt.Sprint(":", p.Decision.ConfigVersion); !strings.HasSuffix(p.Endpoint.Address, want) {
					t.Errorf("version %d picked %s", p.Decision.ConfigVersion, p.Endpoint.Address)
					return
				}
				saw(p)
			}
		})
	}
	return func() { close(done); group.Wait() }
}

// TestDeltasAreAtomic: whoever decides while deltas come in sees one version whole,
// and never an older one than before.
func TestDeltasAreAtomic(t *testing.T) {
	h := startHost(t)
	h.publish(moved(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	var seen sync.Map
	stop := picking(t, svc, func(p dona.Pick) { seen.Store(p.Decision.ConfigVersion, true) })
	const last = 300
	var frames []*donav1.ConfigSnapshot
	for v := uint64(7); v < last; v++ {
		frames = append(frames, step(v, v+1))
	}
	h.push(moved(last), frames...)
	until(t, "all are applied", func() bool { return svc.Status().Version == last })
	stop()
	versions := 0
	seen.Range(func(any, any) bool { versions++; return true })
	t.Logf("decisions saw %d of %d versions", versions, last-6)
	if n := look(h, func() int { return len(h.watches) }); n != 1 {
		t.Errorf("%d watches, want 1: something was refused", n)
	}
}

// A snapshot whose plan the client cannot execute is still the base of the next
// delta.
func TestDeltaAfterAnUnusablePlan(t *testing.T) {
	h := startHost(t)
	h.publish(moved(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	novel := moved(8)
	novel.Plan = &donav1.Plan{Strategy: "novel", Algorithm: 42}
	d := step(7, 8)
	d.Plan, d.Replaced = novel.Plan, append(d.Replaced, donav1.ConfigSnapshot_SECTION_PLAN)
	d.Checksum = sealed(novel).Checksum
	back := step(8, 9)
	back.Replaced = append(back.Replaced, donav1.ConfigSnapshot_SECTION_PLAN)
	h.push(novel, d)
	until(t, "the rejection is reported", func() bool { return rejected(h, 8, `strategy "novel" has algorithm 42`) })
	if st := svc.Status(); st.Version != 7 || st.Problem == nil {
		t.Errorf("got %+v", st)
	}
	h.push(moved(9), back)
	until(t, "the next version is applied", func() bool { st := svc.Status(); return st.Version == 9 && st.Problem == nil })
	if n := look(h, func() int { return len(h.watches) }); n != 1 {
		t.Errorf("%d watches, want 1", n)
	}
}

// A client that never got a snapshot refuses a delta as its first frame.
func TestDeltaAsTheFirstFrame(t *testing.T) {
	h := startHost(t)
	h.publishRaw(step(6, 7))
	svc := dial(t, h.address).Service("checkout")
	until(t, "the rejection is reported", func() bool { return rejected(h, 7, "is the first frame") })
	if st := svc.Status(); st.Version != 0 {
		t.Errorf("applied %+v", st)
	}
}
