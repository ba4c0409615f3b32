package plugins

import (
	"context"
	"fmt"
	"time"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// connectionLost is why a process is replaced whose health stream broke. Often
// it is the first sign of its death.
const connectionLost = "connection lost"

// healthPause is the least time between two changes of health. A plugin that
// changes more often waits, and is seen late.
const healthPause = 100 * time.Millisecond

// health is what the plugin says of its own.
type health struct {
	ok     bool
	reason string
}

// state is where a plugin is whose process says this.
func (h *health) state() State {
	if h.ok {
		return StateReady
	}
	return StateBackoff // until it says otherwise
}

func (g *generation) healthOf(h *pluginv1.Health) *health {
	reason := g.words(h.GetReason(), 256)
	switch h.GetState() {
	case pluginv1.Health_STATE_HEALTHY:
		return &health{ok: true}
	case pluginv1.Health_STATE_DEGRADED:
		return &health{ok: true, reason: "degraded: " + reason}
	}
	return &health{reason: "unhealthy: " + reason}
}

// watchHealth waits for the first health, which ends the start, and follows the
// changes as long as the process lives. A stream that breaks says that the
// connection is gone, for a long pause too: the process is replaced.
func (g *generation) watchHealth(ctx context.Context) error {
	watch, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	first := make(chan error, 1)
	g.background.Go(func() {
		stream, err := pluginv1.NewLifecycleClient(g.conn).WatchHealth(watch, &pluginv1.WatchHealthRequest{})
		if err == nil {
			var h *pluginv1.Health
			if h, err = stream.Recv(); err == nil {
				g.health.Store(g.healthOf(h))
			}
		}
		first <- err
		for err == nil {
			var h *pluginv1.Health
			if h, err = stream.Recv(); err != nil {
				break
			}
			g.health.Store(g.healthOf(h))
			select {
			case g.healthy <- struct{}{}:
			default:
			}
			select {
			case <-time.After(healthPause):
			case <-watch.Done():
			}
		}
		if watch.Err() == nil {
			g.replace(connectionLost)
		}
	})
	timer := time.NewTimer(g.limits.FirstHealth)
	defer timer.Stop()
	select {
	case err := <-first:
		if err != nil {
			return fmt.Errorf("WatchHealth: %s", g.said(err))
		}
	case <-timer.C:
		return fmt.Errorf("no health within %v", g.limits.FirstHealth)
	case <-ctx.Done():
		return ctx.Err()
	}
	if h := g.health.Load(); !h.ok {
		return fmt.Errorf("plugin is %s", h.reason)
	}
	return nil
}

// replace asks the supervisor to end this process and start another.
func (g *generation) replace(why string) {
	select {
	case g.recycle <- why:
	default:
	}
}
