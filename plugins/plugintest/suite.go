package plugintest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// checkWait is the most that one check may take.
const checkWait = 2 * time.Minute

// A check is one promise. run returns nil when it is kept, a *problem when it is
// not, or why it could not be looked at.
type check struct {
	name    string
	promise string
	process bool         // only a process can show it
	alone   bool         // others beside it would be measured too
	kind    plugins.Kind // only of this kind; empty = all
	run     func(ctx context.Context, r *run) error
}

// checks are all of them, in the order of the report. start comes first: without
// it there are no others.
var checks = []check{
	{name: "start", promise: "it starts, describes itself and is healthy within the host's times, and prints nothing but its handshake", run: checkStart},
	{name: "describe", promise: "it describes itself the same each time, with --describe too", run: checkDescribe},
	{name: "configure", promise: "a good configuration is accepted, repeated and by many at once", run: checkConfigure},
	{name: "unknown-field", promise: "a configuration with a field that it does not know is refused", run: checkUnknownField},
	{name: "deadline", promise: "a call ends with its deadline, or when it is cancelled", run: checkDeadline},
	{name: "concurrency", promise: "it answers as many calls at once as it says it takes", run: checkConcurrency},
	{name: "inputs", promise: "it answers whatever it is asked, without a panic", run: checkInputs},
	{name: "panic", promise: "a call that fails, however it does, ends no other", run: checkPanic},
	{name: "drain", promise: "it finishes the calls in flight and refuses new ones", run: checkDrain},
	{name: "sigterm", promise: "SIGTERM ends it within 5 s, and its children", process: true, run: checkSigterm},
	{name: "lifeline", promise: "the end of its host ends it within 5 s, and its children", process: true, run: checkLifeline},
	{name: "logs", promise: "each line on stderr is one of its log, in JSON", process: true, run: checkLogs},
	{name: "leaks", promise: "10,000 calls later it has as many goroutines, files and bytes as before", alone: true, run: checkLeaks},
	{name: "plan", promise: "its plans can be followed, and are the same for the same request", kind: plugins.KindStrategy, run: checkPlan},
	{name: "no-late-success", promise: "a check that ran out of time is never a success", kind: plugins.KindProbe, run: checkNoLateSuccess},
	{name: "no-data-no-pass", promise: "what was not measured never passes", kind: plugins.KindAnalysis, run: checkNoDataNoPass},
}

// A Promise is what one check looks at.
type Promise struct{ Check, Text string }

// Checks lists what is checked.
func Checks() []Promise {
	list := make([]Promise, len(checks))
	for i, c := range checks {
		list[i] = Promise{c.name, c.promise}
	}
	return list
}

// A problem is a promise that is not kept.
type problem struct{ what, do string }

func (p *problem) Error() string { return p.what }

// broke is a problem: do is what the author does about it, format what was seen.
func broke(do, format string, args ...any) error {
	return &problem{what: fmt.Sprintf(format, args...), do: do}
}

// skip is why a check could not be made.
type skip string

func (s skip) Error() string { return string(s) }

// A run is one check's way to the plugin.
type run struct {
	target Target
	open   []func() // closed at the end, last first
}

// start starts the plugin for this check alone.
func (r *run) start(ctx context.Context) (*session, error) {
	s, err := open(ctx, r.target)
	if err != nil {
		return nil, broke("look at why it does not start: run the check start alone, or the file with --describe", "it did not start this time: %v", err)
	}
	r.open = append(r.open, s.close)
	return s, nil
}

// caller starts the plugin, with a configured instance and a server it may ask.
func (r *run) caller(ctx context.Context, serve func() (*peer, error)) (*caller, error) {
	p, err := serve()
	if err != nil {
		return nil, err
	}
	r.open = append(r.open, p.close)
	s, err := r.start(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.caller(r.target.config, p)
	if err != nil {
		return nil, err
	}
	if err := c.configure(ctx, instance, c.config, false); err != nil {
		return nil, refusedConfig(err)
	}
	return c, nil
}

// refusedConfig is the problem of a configuration that the suite was given.
func refusedConfig(err error) error {
	var refused *plugins.ConfigError
	if errors.As(err, &refused) {
		return broke("give the suite a configuration that the plugin takes: --config JSON, plugintest.Config", "%v", err)
	}
	return broke("Configure has to answer, with violations when it refuses", "%v", err)
}

func (r *run) close() {
	for i := len(r.open) - 1; i >= 0; i-- {
		r.open[i]()
	}
}

// Test runs all checks against a target. The error is one of the target itself, such
// as a configuration that is not JSON, or that of ctx; a plugin that fails has none.
func Test(ctx context.Context, t Target) (*Report, error) {
	t, err := t.check()
	if err != nil {
		return nil, err
	}
	report := &Report{Target: t.name, began: time.Now()}
	first := perform(ctx, t, checks[0])
	report.Results = append(report.Results, first)
	kind := report.describe(ctx, t)
	rest := make([]Result, len(checks)-1)
	// Most of them wait most of the time; four at once leave a small machine to the
	// plugin. Those that measure come last, each alone.
	var group sync.WaitGroup
	turn := make(chan struct{}, 4)
	for _, alone := range []bool{false, true} {
		for i, c := range checks[1:] {
			switch {
			case c.alone != alone || c.kind != "" && c.kind != kind:
			case first.Status != Passed:
				rest[i] = Result{Check: c.name, Promise: c.promise, Status: Skipped, Problem: "it does not start"}
			case c.process && t.local != nil:
				rest[i] = Result{Check: c.name, Promise: c.promise, Status: Skipped, Problem: "only a process can show it"}
			case alone:
				rest[i] = perform(ctx, t, c)
			default:
				turn <- struct{}{}
				group.Go(func() {
					defer func() { <-turn }()
					rest[i] = perform(ctx, t, c)
				})
			}
		}
		group.Wait()
	}
	for _, r := range rest {
		if r.Check != "" {
			report.Results = append(report.Results, r)
		}
	}
	report.Took = time.Since(report.began)
	return report, ctx.Err()
}

func perform(ctx context.Context, t Target, c check) Result {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	began := time.Now()
	r := &run{target: t}
	err := c.run(ctx, r)
	r.close()
	result := Result{Check: c.name, Promise: c.promise, Status: Passed, Took: time.Since(began)}
	var bad *problem
	var no skip
	switch {
	case err == nil:
	case errors.As(err, &no):
		result.Status, result.Problem = Skipped, err.Error()
	case errors.As(err, &bad):
		result.Status, result.Problem, result.Do = Failed, line.Of(bad.what, 2<<10), bad.do
	default:
		result.Status, result.Problem, result.Do = Failed, line.Of(err.Error(), 2<<10), "this is a failure around the plugin: try again, and look at the machine"
	}
	return result
}
