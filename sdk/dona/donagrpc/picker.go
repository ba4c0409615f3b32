package donagrpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/sdk/dona"
)

// picker decides calls over the connections as they were when it was made. The
// decision itself is always by the newest snapshot.
type picker struct {
	*found
	byAddress map[string]*connection
	ready     int      // of them, those that were connected when the picker was made
	away      []string // ids of endpoints that were not, when they are few
	waiting   bool     // a connection may become ready soon
	problem   error    // why others do not

	once    sync.Once
	allAway []string // as away, however many
}

// When many are away, which is so at the start and when a network is cut, they are
// found by picking them.
const (
	maxAway = 32 // endpoints left out beforehand: each costs a comparison for each one picked
	turns   = 32 // decisions for one attempt of a call, when more are away
)

// everyAway returns the ids of all endpoints that are not connected. To leave out so
// many is slow, and better than to fail.
func (p *picker) everyAway() []string {
	p.once.Do(func() {
		for i := range p.endpoints {
			if c := p.byAddress[p.endpoints[i].Address]; c == nil || !c.ready.Load() {
				p.allAway = append(p.allAway, p.endpoints[i].ID)
			}
		}
	})
	return p.allAway
}

// errNotConnected is for calls whose variant has endpoints, none of them connected.
var errNotConnected = errors.New("no endpoint of the variant is connected")

// Pick decides one attempt of a call. Errors without a status let calls that wait
// for readiness wait, and end others with UNAVAILABLE.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	if p.ready == 0 && p.waiting {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	req := p.config.Request(info.Ctx, info.FullMethodName)
	asked := req.Tried
	if failed := p.failed.of(info.Ctx); len(failed) > 0 {
		req.Tried = slices.Concat(asked, p.away, failed)
		result, err := p.pick(info, req)
		var out *dona.UnavailableError
		if !errors.As(err, &out) && !errors.Is(err, errNotConnected) && !errors.Is(err, balancer.ErrNoSubConnAvailable) {
			return result, err
		}
		// All that are connected were tried: better once more than not at all.
	}
	req.Tried = asked
	if len(p.away) > 0 {
		req.Tried = slices.Concat(asked, p.away)
	}
	return p.pick(info, req)
}

func (p *picker) pick(info balancer.PickInfo, req dona.Request) (balancer.PickResult, error) {
	missed := len(p.away) > 0 // an endpoint was left out because it is not connected
	for turn := range turns + 1 {
		if turn == turns {
			if p.waiting {
				break
			}
			req.Tried = slices.Concat(req.Tried, p.everyAway())
		}
		pick, err := p.service.Pick(info.Ctx, req)
		if err != nil {
			return balancer.PickResult{}, p.refused(err, missed)
		}
		at, known := p.byAddress[pick.Endpoint.Address]
		if known && at.ready.Load() {
			c := &call{pick: pick, route: p.route, ctx: info.Ctx, began: time.Now()}
			return balancer.PickResult{SubConn: at.sub, Done: c.done}, nil
		}
		pick.Cancel()
		if !known {
			// The snapshot is newer than this picker: the next one is on its way.
			return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
		}
		missed = true
		req.Tried = append(slices.Clip(req.Tried), pick.Endpoint.ID)
	}
	return balancer.PickResult{}, p.refused(errNotConnected, true)
}

// refused says what becomes of a call for which there is no endpoint.
func (p *picker) refused(err error, missed bool) error {
	var denied *dona.DeniedError
	var out *dona.UnavailableError
	switch {
	case errors.As(err, &denied):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.As(err, &out), errors.Is(err, errNotConnected):
		if missed && p.waiting {
			return balancer.ErrNoSubConnAvailable
		}
		if missed && p.problem != nil {
			// As text: a status inside would end calls that wait for readiness.
			return fmt.Errorf("%w; the last connection that failed: %s", err, p.problem.Error())
		}
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	// The request itself is wrong, like a unit with a zero byte. gRPC lets no
	// picker say INVALID_ARGUMENT.
	return status.Error(codes.Internal, err.Error())
}

// call is one attempt of a call, on its way.
type call struct {
	pick  dona.Pick
	route *route
	ctx   context.Context
	began time.Time
}

func (c *call) done(info balancer.DoneInfo) {
	code := status.Code(info.Err)
	unsent := info.Err == nil && !info.BytesSent && !info.BytesReceived
	if unsent || code == codes.Canceled && c.ctx.Err() != nil {
		// The connection was lost before the call was sent, or the caller has left:
		// it says nothing about the endpoint.
		c.pick.Cancel()
		return
	}
	if info.Err != nil {
		c.route.failed.add(c.ctx, c.pick.Endpoint.ID)
	}
	c.pick.Done(dona.Outcome{
		Success: info.Err == nil || !c.route.config.Failure(info.Err),
		Latency: time.Since(c.began),
		Code:    code.String(),
	})
}

// failed remembers which endpoints the attempts of running calls failed on. gRPC
// gives a picker no name for a call, but all attempts of one share the channel that
// ends with the call, and no other call has it.
type failed struct {
	some   atomic.Int64 // calls in it
	mu     sync.Mutex
	byCall map[<-chan struct{}][]string
}

// of returns the ids of endpoints that the call of ctx has failed on.
func (f *failed) of(ctx context.Context) []string {
	if f.some.Load() == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byCall[ctx.Done()]
}

// add notes a failure until the call ends.
func (f *failed) add(ctx context.Context, id string) {
	call := ctx.Done()
	if call == nil || ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	tried, there := f.byCall[call]
	if f.byCall == nil {
		f.byCall = map[<-chan struct{}][]string{}
	}
	f.byCall[call] = append(slices.Clip(tried), id)
	f.mu.Unlock()
	if there {
		return
	}
	f.some.Add(1)
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		delete(f.byCall, call)
		f.mu.Unlock()
		f.some.Add(-1)
	})
}
