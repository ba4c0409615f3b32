package api

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// caller is who makes a call.
type caller struct {
	actor string // as audit entries name it
	roles []Role
}

type callerKey struct{}

// DevActor is everyone on loopback with --dev.
const DevActor = "local:dev"

// identify says who calls. Without --dev nobody can be told apart yet, so nobody
// is let in; config refuses to start such a host.
func (g *guard) identify(context.Context) (caller, error) {
	if !g.dev {
		return caller{}, status.Error(codes.Unauthenticated, "the caller has no identity")
	}
	return caller{actor: DevActor, roles: []Role{Workload, Checker, Admin}}, nil
}

func (c caller) may(roles []Role) bool {
	return slices.Contains(roles, Anyone) || slices.ContainsFunc(c.roles, func(r Role) bool { return slices.Contains(roles, r) })
}

// actor is the caller of a call that was admitted.
func actor(ctx context.Context) string {
	who, _ := ctx.Value(callerKey{}).(caller)
	return who.actor
}

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
