package embedded

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/dodona-project/dodona/host/store"
)

// While a hard commit is on its way to the disk, soft updates are not held up,
// and a View that shows the hard write waits for it.
func TestSoftUpdatesDoNotWaitForTheDisk(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "data"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ff := inject(t, s.file)
	ff.mu.Lock() // the disk stands still
	hard := make(chan error, 1)
	go func() { hard <- put(s, store.Hard, "hard", "1") }()
	for s.writesUnderWay() == 0 {
		runtime.Gosched()
	}
	for range 100 {
		if err := put(s, store.Soft, "soft", "1"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	looked := make(chan struct{})
	view := make(chan error, 1)
	go func() {
		view <- s.View(ctx, func(tx store.ReadTx) error {
			_, err := tx.Get("hard")
			close(looked)
			return err
		})
	}()
	<-looked
	cancel()
	if err := <-view; !errors.Is(err, context.Canceled) {
		t.Errorf("a view of a write that is not durable yet returned %v before the disk moved", err)
	}
	if len(hard) != 0 {
		t.Error("the hard update has returned before the disk moved")
	}
	ff.mu.Unlock()
	if err := <-hard; err != nil {
		t.Fatal(err)
	}
	if value(t, s, "hard") != "1" || value(t, s, "soft") != "1" {
		t.Error("writes are missing")
	}
}

// writesUnderWay is how many hard transactions the flush under way carries.
func (s *Store) writesUnderWay() int {
	b := s.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inflight == nil {
		return 0
	}
	return b.inflight.hard
}
