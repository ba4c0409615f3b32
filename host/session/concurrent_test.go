package session_test

import (
	"sync"
	"testing"

	"github.com/dodona-project/dodona/host/session"
)

// Many registrations of one id at once leave one stream that is told nothing: the
// one whose generation the lease has.
func TestConcurrentRegistrations(t *testing.T) {
	bubble(t, func(r *rig) {
		for range 20 {
			streams := make([]*session.Stream, 16)
			var wg sync.WaitGroup
			for i := range streams {
				wg.Go(func() { streams[i] = r.register("a") })
			}
			wg.Wait()
			for _, s := range streams {
				if newest := s.Generation() == r.lease("a").GetGeneration(); newest != (s.Err() == nil) {
					t.Fatalf("stream of generation %d, newest %v, was told %v", s.Generation(), newest, s.Err())
				}
			}
			for _, s := range streams {
				wg.Go(func() { r.end(session.Broken, s) })
			}
			wg.Wait()
			r.want(0, "after all ended")
		}
	})
}
