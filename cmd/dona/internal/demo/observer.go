package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// sighting is one state in which a rollout was seen.
type sighting struct {
	at      time.Time
	id      string
	state   donav1.RolloutStatus_State
	step    uint32
	percent uint32
	canary  uint32 // weight that the snapshot gave the canary
}

// observer watches the service's status from outside, as any operator could,
// and keeps what it saw. It is safe for concurrent use.
type observer struct {
	mu      sync.Mutex
	last    *donav1.StatusReply
	seen    []sighting
	changed chan struct{} // closed and replaced at every reply
}

func newObserver() *observer { return &observer{changed: make(chan struct{})} }

// dialHost makes a connection that comes back quickly.
func dialHost(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// watch reads the status until ctx ends. A host that is away is asked again.
func (o *observer) watch(ctx context.Context, control donav1.ControlPlaneClient) {
	for ctx.Err() == nil {
		if stream, err := control.WatchStatus(ctx, &donav1.GetStatusRequest{Service: service}); err == nil {
			for {
				reply, err := stream.Recv()
				if err != nil {
					break
				}
				o.note(reply)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (o *observer) note(reply *donav1.StatusReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = reply
	if st := reply.GetRollout(); st != nil {
		now := sighting{at: time.Now(), id: st.GetId(), state: st.GetState(), step: st.GetStepIndex(), percent: st.GetStepPercent()}
		for _, w := range reply.GetConfig().GetWeights() {
			if w.GetVariant() == st.GetCanaryVariant() {
				now.canary = w.GetWeight()
			}
		}
		if n := len(o.seen); n == 0 || !o.seen[n-1].same(now) {
			o.seen = append(o.seen, now)
		}
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

func (s sighting) same(t sighting) bool {
	return s.id == t.id && s.state == t.state && s.step == t.step && s.canary == t.canary
}

// newest is the last reply, nil before the first.
func (o *observer) newest() (*donav1.StatusReply, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.changed
}

// of returns the states in which one rollout was seen, in order.
func (o *observer) of(id string) []sighting {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []sighting
	for _, s := range o.seen {
		if s.id == id {
			out = append(out, s)
		}
	}
	return out
}

// until waits for a reply for which is holds. what completes the sentence "was
// waiting for …". alarm, when not nil, ends the wait with its error.
func (o *observer) until(ctx context.Context, limit time.Duration, what string, is func(*donav1.StatusReply) bool, alarm func() error) (*donav1.StatusReply, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		reply, changed := o.newest()
		if reply != nil && is(reply) {
			return reply, nil
		}
		if alarm != nil {
			if err := alarm(); err != nil {
				return reply, err
			}
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return reply, fmt.Errorf("was waiting for %s: %w", what, ctx.Err())
		}
	}
}
