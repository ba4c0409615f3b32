package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/plugins/probe"
)

// A Prober has a probe plugin make one check. An error comes with an observation
// that is inconclusive.
type Prober interface {
	Check(ctx context.Context, plugin string, config *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error)
}

// A Namer is a Prober that knows which probes it has; its checker is given tasks of those
// only. One that is none is given all.
type Namer interface {
	Names() []string // sorted
}

const (
	inFlightMost  = 256 // checks at once
	inFlightScope = 64  // of one scope, so that one whose targets hang leaves room
	reportPause   = 20 * time.Millisecond
	reportMost    = 512
)

// Checker makes the checks of one host. A target that hangs holds one of many
// places, and a scope of them no more than a quarter.
type Checker struct {
	broker *Broker
	prober Prober
	id     string

	mu   sync.Mutex
	held map[string]int // checks under way by plane/scope
	all  int

	freed chan struct{} // one slot: a check ended, or was reported
	done  chan Report
}

// NewChecker returns the checker of this id, which no other one has: [A-Za-z0-9._-],
// beginning with InsidePrefix.
func NewChecker(b *Broker, p Prober, id string) *Checker {
	return &Checker{broker: b, prober: p, id: id, held: map[string]int{}, freed: make(chan struct{}, 1), done: make(chan Report, inFlightMost)}
}

// Run checks until ctx ends, and returns when the checks under way have ended. It
// returns nil: a store that fails is logged and tried again.
func (c *Checker) Run(ctx context.Context) error {
	var checks, reporter sync.WaitGroup
	reporter.Go(func() { c.reports(ctx) })
	defer reporter.Wait()
	defer func() { checks.Wait(); close(c.done) }()
	for {
		tasks, next, err := c.claim(ctx)
		if err != nil {
			c.failed(ctx, "claim", err)
		}
		for _, t := range tasks {
			checks.Go(func() {
				r := c.check(ctx, t)
				c.done <- r
				c.release(t)
			})
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-c.freed:
			timer.Stop()
		}
	}
}

// claim takes as many tasks as there are places.
func (c *Checker) claim(ctx context.Context) ([]Task, time.Duration, error) {
	c.mu.Lock()
	free := inFlightMost - c.all
	held := maps.Clone(c.held)
	c.mu.Unlock()
	if free == 0 {
		return nil, longSleep, nil
	}
	ask := Claim{Checker: c.id, Most: free, Scope: inFlightScope, Held: held}
	if n, ok := c.prober.(Namer); ok {
		ask.Probes = n.Names()
	}
	tasks, next, err := c.broker.Claim(ctx, ask)
	c.mu.Lock()
	for _, t := range tasks {
		c.held[group{t.Plane, t.Scope}.member()]++
	}
	c.all += len(tasks)
	c.mu.Unlock()
	c.broker.metrics.inFlight.Add(float64(len(tasks)))
	return tasks, next, err
}

func (c *Checker) release(t Task) {
	member := group{t.Plane, t.Scope}.member()
	c.mu.Lock()
	// Nobody waits for a place unless there was none.
	waited := c.all == inFlightMost || c.held[member] == inFlightScope
	c.all--
	if c.held[member]--; c.held[member] == 0 {
		delete(c.held, member)
	}
	c.mu.Unlock()
	c.broker.metrics.inFlight.Dec()
	if waited {
		select {
		case c.freed <- struct{}{}:
		default:
		}
	}
}

// check makes a task's check: attempts until one succeeds or their time is over.
func (c *Checker) check(ctx context.Context, t Task) Report {
	r := Report{Plane: t.Plane, Scope: t.Scope, ID: t.ID, Token: t.Token, Subject: t.Subject(), Result: controlplanev1.HealthObservation_RESULT_INCONCLUSIVE}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(t.Attempts, 1))*(t.Timeout+probe.Slack))
	defer cancel()
	for range max(t.Attempts, 1) {
		address := t.Address
		if t.Proxy != nil {
			address = "" // it is one or the other
		}
		o, err := c.prober.Check(ctx, t.Probe, t.Config, &pluginv1.CheckRequest{
			EndpointAddress: address, Proxy: t.Proxy, Credential: t.Credential, Level: r.Subject.Level,
			Url: t.URL, ExpectStatus: t.ExpectStatus, Timeout: durationpb.New(t.Timeout),
		})
		if r.Subject.EgressIP = ""; o.EgressIP.IsValid() {
			r.Subject.EgressIP = o.EgressIP.String()
		}
		r.Result, r.ErrorClass, r.Detail, r.Status, r.Latency = o.Result, o.ErrorClass, o.Detail, o.Status, o.Latency
		if err != nil {
			r.Result = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
			if r.Detail == "" {
				r.Detail = fmt.Sprintf("the check could not be made: %.256s", err)
			}
		}
		if r.Result == success || ctx.Err() != nil {
			break
		}
	}
	return r
}

// reports sends what the checks saw, gathered over a moment: a store takes one
// transaction more easily than many.
func (c *Checker) reports(ctx context.Context) {
	for r := range c.done {
		batch := []Report{r}
		for late := time.After(reportPause); len(batch) < reportMost; {
			select {
			case r, open := <-c.done:
				if open {
					batch = append(batch, r)
					continue
				}
			case <-late:
			}
			break
		}
		// What was seen is told although the host stops; what cannot be is checked
		// again when the lease has run out.
		tell, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_, err := c.broker.Report(tell, c.id, batch)
		cancel()
		if err != nil {
			c.failed(ctx, "report", err)
		}
		// What was reported leaves room under caps, and may have made others due.
		select {
		case c.freed <- struct{}{}:
		default:
		}
	}
}

func (c *Checker) failed(ctx context.Context, op string, err error) {
	if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
		return // on the way out
	}
	c.broker.metrics.failures.Inc()
	c.broker.log.Error("a checker could not reach the store; it tries again", "op", op, "error", err)
}
