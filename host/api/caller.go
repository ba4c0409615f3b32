package api

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/refusal"
)

// caller is who makes a call.
type caller struct {
	actor string // as audit entries name it
	roles []Role
	id    identity.ID // without a kind: everyone at once, who may speak for anyone
}

type callerKey struct{}

const (
	// DevActor is everyone on loopback with --dev.
	DevActor = "local:dev"

	// PlaintextActor is everyone where the configuration lets them in without an
	// identity.
	PlaintextActor = "plaintext:anyone"
)

var everyone = []Role{Workload, Worker, Checker, Admin}

// roleOf is what each kind of identity is to the API.
var roleOf = map[identity.Kind]Role{
	identity.Service: Workload, identity.Worker: Worker, identity.Checker: Checker, identity.Admin: Admin, identity.Host: Host,
}

// callerOf is who has an identity.
func callerOf(id identity.ID) caller {
	return caller{actor: id.String(), id: id, roles: []Role{roleOf[id.Kind]}}
}

// placed refuses workers and checkers of another environment than the one served: that
// of the published configuration, where it names one, or else the host's.
func (g *guard) placed(ctx context.Context, who caller, rule Rule) error {
	if who.id.Environment == "" || slices.Contains(rule.Roles, Anyone) {
		return nil
	}
	want := g.environment
	if g.published != nil {
		named, err := g.published(ctx)
		if err != nil {
			return err
		}
		want = cmp.Or(named, want)
	}
	if want != "" && who.id.Environment != want {
		return refusal.New(refusal.Denied, "this identity is of environment %s, and this host serves %s", who.id.Environment, want)
	}
	return nil
}

// identify says who calls: whose certificate the connection was made with, and
// without certificates whoever the configuration takes everyone for.
func (g *guard) identify(ctx context.Context) (caller, *visitor, error) {
	var v *visitor
	if p, ok := peer.FromContext(ctx); ok {
		v, _ = p.AuthInfo.(*visitor)
	}
	if v != nil {
		if err := v.still(time.Now()); err != nil {
			return caller{}, nil, err
		}
	}
	switch {
	case v != nil && v.certs != nil:
		return v.caller, v, nil
	case g.dev:
		return caller{actor: DevActor, roles: everyone}, v, nil
	case g.plaintext:
		return caller{actor: PlaintextActor, roles: everyone}, v, nil
	}
	return caller{}, nil, status.Error(codes.Unauthenticated, "the caller has no identity")
}

// secretive are the methods that answer with credentials of proxies.
var secretive = map[string]bool{
	controlplanev1.WorkerControlPlane_WatchSnapshots_FullMethodName:    true,
	controlplanev1.PoolAdmin_Extract_FullMethodName:                    true,
	controlplanev1.CheckerControlPlane_StreamCheckTasks_FullMethodName: true,
}

// overheard refuses to send credentials in plaintext to another machine.
func (g *guard) overheard(method string, v *visitor) error {
	if !g.plaintext || !secretive[method] {
		return nil
	}
	if v != nil {
		if from, err := netip.ParseAddr(v.seat.address); err == nil && from.Unmap().IsLoopback() {
			return nil
		}
	}
	return status.Error(codes.PermissionDenied, "this host speaks plaintext, in which credentials of proxies go to loopback alone: give the hosts identities, and workers theirs")
}

func (c caller) may(roles []Role) bool {
	return slices.Contains(roles, Anyone) || slices.ContainsFunc(c.roles, func(r Role) bool { return slices.Contains(roles, r) })
}

// service is the service that a workload belongs to; empty = the caller speaks for
// any.
func (c caller) service() string {
	if c.id.Kind == identity.Service {
		return c.id.Name
	}
	return ""
}

// is refuses a caller of a kind that speaks for itself alone, when a request names
// another. The answer is the same whether or not there is one of that name.
func (c caller) is(kind identity.Kind, field, name string) error {
	if c.id.Kind == kind && c.id.Name != name {
		return refusal.New(refusal.Denied, "%s is not this caller's: its identity speaks for itself alone", field)
	}
	return nil
}

// who is the caller of a call that was admitted.
func who(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// actor is its name in audit entries.
func actor(ctx context.Context) string { return who(ctx).actor }

// limiters bound how often one identity calls one method.
type limiters struct {
	mu sync.Mutex
	by map[limited]*rate.Limiter
}

type limited struct{ method, actor string }

const maxLimiters = 10_000

func newLimiters() *limiters { return &limiters{by: map[limited]*rate.Limiter{}} }

// take returns 0, or how long to wait before the call would be admitted.
func (l *limiters) take(method, actor string, rule Rule) time.Duration {
	key := limited{method, actor}
	l.mu.Lock()
	limiter := l.by[key]
	if limiter == nil {
		if len(l.by) >= maxLimiters {
			clear(l.by) // forgetting is safe: everyone starts with a full bucket again
		}
		limiter = rate.NewLimiter(rate.Limit(rule.Rate), rule.Burst)
		l.by[key] = limiter
	}
	l.mu.Unlock()
	if limiter.Allow() {
		return 0
	}
	return time.Duration(math.Ceil(1000/rule.Rate)) * time.Millisecond
}

func tooOften(rule Rule, wait time.Duration) error {
	s := status.Newf(codes.ResourceExhausted, "called too often: allowed are %g a second with a burst of %d", rule.Rate, rule.Burst)
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		s = with
	}
	return s.Err()
}
