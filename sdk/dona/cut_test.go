package dona_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

// brittle is a connection that breaks after it has read so many bytes.
type brittle struct {
	net.Conn
	left atomic.Int64
	over chan struct{} // closed when it broke
	once sync.Once
}

func (b *brittle) Read(p []byte) (int, error) {
	left := b.left.Load()
	if left <= 0 {
		b.once.Do(func() { _ = b.Conn.Close(); close(b.over) })
		return 0, errors.New("connection reset")
	}
	// Small reads, so that one under way when the limit is set is over soon.
	n, err := b.Conn.Read(p[:min(int64(len(p)), left, 256)])
	b.left.Add(-int64(n))
	return n, err
}

// TestResetInASnapshot (N3) breaks the connection after every KiB of a full frame
// and of a delta: the client never decides by half of one, and has the whole after
// it came back.
func TestResetInASnapshot(t *testing.T) {
	const endpoints = 300
	large := func(version uint64) *donav1.ConfigSnapshot {
		s := checkout(version)
		s.Endpoints = nil
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprintf("e%03d", i), Address: fmt.Sprintf("10.0.0.1:%d", version),
				Variant: "v1", Region: "eu-central-1", LbWeight: 100})
		}
		return s
	}
	delta := sealed(large(8)) // all endpoints have changed
	delta.Form, delta.BaseVersion, delta.Weights, delta.Flags = donav1.ConfigSnapshot_FORM_DELTA, 7, nil, nil
	for _, form := range []string{"full", "delta"} {
		t.Run(form, func(t *testing.T) {
			for kib := int64(0); ; kib++ {
				broke := func() bool {
					h := startHost(t)
					h.publish(large(7))
					first := &brittle{over: make(chan struct{})}
					first.left.Store(1 << 40)
					if form == "full" {
						first.left.Store(kib<<10 + 1)
					}
					var dialed atomic.Int64
					c := dial(t, h.address, dona.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
						conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
						if err == nil && dialed.Add(1) == 1 {
							first.Conn = conn
							return first, nil
						}
						return conn, err
					}))
					defer c.Close()
					svc := c.Service("checkout")
					whole := func() {
						if st := svc.Status(); st.Version != 0 && st.Endpoints != endpoints {
							t.Fatalf("cut after %d KiB: %d endpoints at version %d", kib, st.Endpoints, st.Version)
						}
					}
					if form == "delta" {
						ready(t, svc)
						first.left.Store(kib<<10 + 1)
						h.push(large(8), delta)
					}
					want := uint64(7)
					if form == "delta" {
						want = 8
					}
					until(t, "the snapshot is there", func() bool { whole(); return svc.Status().Version == want })
					whole()
					p, err := svc.Pick(t.Context(), dona.Request{})
					if err != nil || p.Endpoint.Address != fmt.Sprintf("10.0.0.1:%d", want) {
						t.Fatalf("cut after %d KiB: picked %+v, %v", kib, p.Endpoint, err)
					}
					p.Cancel()
					select {
					case <-first.over:
						return true
					default:
						return false
					}
				}()
				if !broke {
					t.Logf("whole after %d KiB", kib)
					if kib < 5 {
						t.Errorf("the frame arrived within %d KiB: nothing was cut in it", kib)
					}
					return
				}
			}
		})
	}
}

// TestAssignmentSurvivesACut (D3): a flag and the weights change while a client is
// cut off for ten minutes. Every unit that the change does not cover stays where it
// was, before, while and after.
func TestAssignmentSurvivesACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		snapshot := func(version uint64, flag, canary uint32) *donav1.ConfigSnapshot {
			s := checkout(version)
			s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: "c", Address: "10.0.0.3:80", Variant: "v3", Region: "eu", LbWeight: 100})
			s.Weights = []*donav1.VariantWeight{{Variant: "v3", Weight: canary}, {Variant: "v1", Weight: 100 - canary}}
			s.Flags[0].RolloutPercent = flag
			return s
		}
		link := &network{}
		stop := link.serveSnapshot(snapshot(7, 20, 10))
		c, err := dona.Dial(t.Context(), "host:7600", dona.WithDialer(link.dial), dona.WithReportInterval(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		svc := c.Service("checkout")
		if err := svc.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		const units = 5000
		assign := func() (variants [units]string) {
			for i := range variants {
				p, err := svc.Pick(t.Context(), dona.Request{Unit: fmt.Sprint("user-", i)})
				if err != nil {
					t.Fatal(err)
				}
				p.Cancel()
				variants[i] = p.Decision.Variant
			}
			return variants
		}
		before := assign()
		stop()
		synctest.Wait()
		for range 10 {
			time.Sleep(time.Minute)
			if assign() != before {
				t.Fatal("a unit moved while the client was cut off")
			}
		}
		stop = link.serveSnapshot(snapshot(9, 30, 25))
		healed := time.Now()
		for svc.Status().Version != 9 {
			if time.Since(healed) > 35*time.Second {
				t.Fatal("not in sync 35 s after the host came back")
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("in sync %v after the host came back", time.Since(healed))
		after := assign()
		moved := 0
		for i := range units {
			unit := fmt.Sprint("user-", i)
			flag, weight := bucket.Bucket(unit, "use-v2"), bucket.Bucket(unit, "@weights/checkout")
			covered := flag >= 2000 && flag < 3000 || flag >= 3000 && weight >= 1000 && weight < 2500
			if before[i] != after[i] {
				moved++
				if !covered {
					t.Errorf("%s moved from %s to %s: flag bucket %d, weight bucket %d", unit, before[i], after[i], flag, weight)
				}
			} else if covered {
				t.Errorf("%s stayed at %s: flag bucket %d, weight bucket %d", unit, before[i], flag, weight)
			}
		}
		t.Logf("%d of %d units moved", moved, units)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		stop()
	})
}
