package plugins

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/plugins/image"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// politeWait is how long go-plugin may take to close its side once the process
// is gone.
const politeWait = 250 * time.Millisecond

// enter takes a call in, unless the generation is closing.
func (g *generation) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return false
	}
	g.inflight++
	return true
}

func (g *generation) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inflight--
	if g.closing && g.inflight == 0 {
		close(g.idle)
	}
}

// close refuses new calls.
func (g *generation) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return
	}
	g.closing = true
	if g.inflight == 0 {
		close(g.idle)
	}
}

// stop ends the process in good order, every step on a clock of ours: let the
// calls in flight finish and ask it to drain, until ctx ends; ask it to end;
// kill its group.
func (g *generation) stop(ctx context.Context) {
	g.close()
	select {
	case <-g.idle:
	case <-ctx.Done():
	}
	if left := time.Until(deadlineOf(ctx)); left > 0 && ctx.Err() == nil && !g.attached() {
		_, _ = pluginv1.NewLifecycleClient(g.conn).Drain(ctx, &pluginv1.DrainRequest{Deadline: durationpb.New(left)})
	}
	g.end(g.limits.Kill)
}

// deadlineOf is zero without a deadline.
func deadlineOf(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// discard ends the process at once and leaves nothing of it.
func (g *generation) discard() {
	g.close()
	g.end(0)
}

// end asks the process to end, waits for grace, kills it and removes what it
// had.
func (g *generation) end(grace time.Duration) {
	if g.cancel != nil {
		g.cancel()
	}
	p := g.process.Load()
	if p == nil {
		if g.conn != nil {
			_ = g.conn.Close()
		}
		g.background.Wait()
		g.remove()
		return
	}
	polite := make(chan struct{})
	if g.conn == nil {
		// go-plugin would first connect, to say that it has nothing to say.
		close(polite)
	} else {
		go func() {
			defer close(polite)
			g.client.Kill()
		}()
		if grace > 0 {
			select {
			case <-p.Done():
			case <-time.After(grace):
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	_ = p.Kill(ctx)
	select {
	case <-polite:
	case <-time.After(politeWait):
	}
	if g.conn != nil {
		_ = g.conn.Close()
	}
	g.background.Wait()
	g.remove()
}

// remove leaves nothing of the generation on disk, and lets its program go.
func (g *generation) remove() {
	_ = image.Remove(g.dir)
	g.file.close()
}
