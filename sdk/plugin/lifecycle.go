package plugin

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// How often, and for how long, a plugin's own Health is asked.
const (
	healthEvery   = 5 * time.Second
	healthTimeout = 2 * time.Second
)

// lifecycle is the part of the protocol that every plugin serves.
type lifecycle struct {
	pluginv1.UnimplementedLifecycleServer
	plugin *Plugin
	config *configurer
	guard  *guard

	described func()      // called before the host is told what the plugin is; may be nil
	asking    atomic.Bool // the plugin's Health runs
	drainOnce sync.Once
	drained   chan struct{} // closed when the host has drained us
}

func newLifecycle(p *Plugin, c *configurer, g *guard) *lifecycle {
	return &lifecycle{plugin: p, config: c, guard: g, drained: make(chan struct{})}
}

func (l *lifecycle) describe() *pluginv1.DescribeReply {
	return &pluginv1.DescribeReply{
		Name:           l.plugin.name,
		Version:        l.plugin.version,
		Kind:           l.plugin.kind,
		Summary:        l.plugin.summary,
		ConfigSchema:   l.config.text,
		Capabilities:   l.plugin.abilities,
		MaxConcurrency: l.plugin.concurrency,
		SdkVersion:     SDKVersion,
	}
}

func (l *lifecycle) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeReply, error) {
	if l.described != nil {
		l.described()
	}
	return l.describe(), nil
}

func (l *lifecycle) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) {
	bad, err := l.config.configure(ctx, req.GetInstanceId(), req.GetConfig(), req.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	reply := &pluginv1.ConfigureReply{}
	for _, v := range bad {
		reply.Violations = append(reply.Violations, &pluginv1.Violation{Path: v.Path, Message: clip(v.Message)})
	}
	return reply, nil
}

// WatchHealth sends the health at once and whenever it changes.
func (l *lifecycle) WatchHealth(_ *pluginv1.WatchHealthRequest, stream grpc.ServerStreamingServer[pluginv1.Health]) error {
	ctx := stream.Context()
	last := l.health(ctx)
	if err := stream.Send(last); err != nil {
		return err
	}
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := l.health(ctx)
		if now.GetState() == last.GetState() && now.GetReason() == last.GetReason() {
			continue
		}
		if err := stream.Send(now); err != nil {
			return err
		}
		last = now
	}
}

func (l *lifecycle) health(ctx context.Context) *pluginv1.Health {
	h, ok := l.plugin.impl.(interface{ Health(context.Context) error })
	if !ok {
		return &pluginv1.Health{State: pluginv1.Health_STATE_HEALTHY}
	}
	if !l.asking.CompareAndSwap(false, true) {
		return &pluginv1.Health{State: pluginv1.Health_STATE_UNHEALTHY, Reason: "Health has not returned"}
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	ask := func(ctx context.Context) error {
		defer l.asking.Store(false)
		return h.Health(ctx)
	}
	if err := l.own(ctx, ask); err != nil {
		return &pluginv1.Health{State: pluginv1.Health_STATE_UNHEALTHY, Reason: clip(err.Error())}
	}
	return &pluginv1.Health{State: pluginv1.Health_STATE_HEALTHY}
}

func (l *lifecycle) Drain(ctx context.Context, req *pluginv1.DrainRequest) (*pluginv1.DrainReply, error) {
	if d := req.GetDeadline().AsDuration(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	l.drain(ctx)
	return &pluginv1.DrainReply{}, nil
}

// drain waits for the calls in flight and then lets the plugin put its things
// in order, once.
func (l *lifecycle) drain(ctx context.Context) {
	l.guard.drain(ctx)
	l.drainOnce.Do(func() {
		defer close(l.drained)
		if d, ok := l.plugin.impl.(interface{ Drain(context.Context) error }); ok {
			if err := l.own(ctx, d.Drain); err != nil {
				l.guard.logger.Warn("drain", "error", err)
			}
		}
	})
}

// own runs one of the plugin's optional methods: it does not outlive ctx as far
// as the caller can see, and its panic is an error.
func (l *lifecycle) own(ctx context.Context, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- f(&call{Context: ctx, logger: l.guard.logger})
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
