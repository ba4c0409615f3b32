package pool_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// onDisk is an embedded store in a directory, with the clock of the machine.
func onDisk(b testing.TB) store.Store {
	b.Helper()
	st, err := embedded.Open(b.TempDir()+"/data", embedded.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	return st
}

func stores() map[string]func(b testing.TB) store.Store {
	return map[string]func(b testing.TB) store.Store{
		"embedded": onDisk,
		"redis": func(b testing.TB) store.Store {
			return openShared(b, redistest.Start(b, redistest.Safe...), "bench", "one")
		},
	}
}

// BenchmarkReportRuntime is a report of 512 counters, of 64 workers at once.
func BenchmarkReportRuntime(b *testing.B) {
	for name, open := range stores() {
		b.Run(name, func(b *testing.B) {
			w := worldOver(b, open(b), newClock())
			var fleet []*worker
			for i := range 64 {
				x := w.join(fmt.Sprint("w", i))
				for n := range 512 {
					x.uses[fmt.Sprintf("%032x", n)] = 1
				}
				fleet = append(fleet, x)
			}
			work := make(chan struct{})
			done := make(chan error, len(fleet))
			for _, x := range fleet {
				go func() {
					req := x.request()
					slices.SortFunc(req.Counters, func(a, b *controlplanev1.RuntimeCounter) int { return strings.Compare(a.ProxyId, b.ProxyId) })
					var failed error
					for range work {
						req.ReportSequence++
						if _, err := x.send(req); err != nil {
							failed = err
						}
					}
					done <- failed
				}()
			}
			b.ResetTimer()
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			for range fleet {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
		})
	}
}

// BenchmarkExtract is an extraction of one proxy, of 16 callers at once.
func BenchmarkExtract(b *testing.B) {
	for name, open := range stores() {
		b.Run(name, func(b *testing.B) {
			w := worldOver(b, open(b), newClock())
			w.add("dc", min(b.N, 9_000))
			if b.N > 9_000 {
				b.Skip("more than there can be")
			}
			b.SetParallelism(8)
			b.ResetTimer()
			keys := make(chan int, b.N)
			for i := range b.N {
				keys <- i
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := w.p.Extract(w.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: fmt.Sprint(<-keys), Upstream: "dc", Count: 1}); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "extractions/s")
		})
	}
}

// BenchmarkBuild is a snapshot of one of 100 workers that share 10,000 proxies.
func BenchmarkBuild(b *testing.B) {
	w := newWorld(b)
	w.add("dc", 10_000)
	var fleet []*worker
	for i := range 100 {
		fleet = append(fleet, w.join(fmt.Sprint("w", i)))
	}
	for range 4 { // as much as one look moves
		w.allocate()
	}
	x := fleet[0]
	x.accept(x.until("with its proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 100 }))
	b.Run("look", func(b *testing.B) {
		for range b.N {
			w.allocate()
		}
	})
	ids := w.owned(x.id)
	states := []controlplanev1.ProxyStatus_State{ownership.Suspect, ownership.Available}
	n := 0
	b.Run("push", func(b *testing.B) {
		for range b.N {
			w.find(states[n%2], ids[0])
			n++
			x.next()
		}
	})
}
