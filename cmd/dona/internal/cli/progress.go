package cli

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
)

// redraw is how often progress is shown anew.
const redraw = 200 * time.Millisecond

// busy does work that may take long. On a terminal a line shows meanwhile what is
// under way, how far it is and for how long, and goes when it is over; elsewhere,
// and with --json, nothing is written. do must not write to the screen.
func (a *app) busy(what func() string, do func() error) error {
	if a.json || !a.screen.Live() {
		return do()
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	began := a.now()
	show := func() {
		line := render.Clean(what())
		if s := a.now().Sub(began) / time.Second; s > 0 {
			line += fmt.Sprintf(", %d s", s)
		}
		a.wrote = true
		_ = a.screen.Draw([]string{line}) // the work does not depend on who looks
	}
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		show()
		select {
		case err := <-done:
			show()
			_ = a.screen.Draw(nil)
			return err
		case <-tick.C:
		}
	}
}

// saying is what busy shows of work that does not tell how far it is.
func saying(what string) func() string { return func() string { return what } }

// received counts bytes that came, for whoever looks meanwhile.
type received struct{ n atomic.Int64 }

func (r *received) Write(p []byte) (int, error) {
	r.n.Add(int64(len(p)))
	return len(p), nil
}

func (r *received) String() string { return fmt.Sprintf("%.1f MiB", float64(r.n.Load())/(1<<20)) }
