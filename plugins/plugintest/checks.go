package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/runner"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func checkStart(ctx context.Context, r *run) error {
	s, err := open(ctx, r.target)
	if err != nil {
		return broke("cure what it says; PLUGINS.md has the messages, docs/plugin-protocol.md what a start is", "%v", err)
	}
	r.open = append(r.open, s.close)
	if _, stdout := s.output(); len(stdout) > 0 {
		return broke("print to stderr, or log: stdout is for the handshake", "it printed %.100q to stdout", stdout[0])
	}
	return nil
}

const describeDo = "Describe has to be the same for one build: take nothing into it that varies, such as times, hosts or the environment"

func checkDescribe(ctx context.Context, r *run) error {
	first, err := r.start(ctx)
	if err != nil {
		return err
	}
	second, err := r.start(ctx)
	if err != nil {
		return err
	}
	same := func(s *session, host, what string) error {
		again, err := pluginv1.NewLifecycleClient(s.conn).Describe(ctx, &pluginv1.DescribeRequest{HostVersion: host})
		if err != nil {
			return broke("Describe has to answer at any time", "%s: %v", what, err)
		}
		if !proto.Equal(again, first.said) {
			return broke(describeDo, "%s it says %s, and before %s", what, oneLine(again), oneLine(first.said))
		}
		return nil
	}
	if !proto.Equal(second.said, first.said) {
		return broke(describeDo, "started again it says %s, and before %s", oneLine(second.said), oneLine(first.said))
	}
	errs := make(chan error, 16)
	for i := range cap(errs) {
		go func() { errs <- same(first, fmt.Sprintf("9.%d.0", i), "asked by another host, with others at once,") }()
	}
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return firstOf(err)
	}
	if err := same(first, "", "asked again"); err != nil {
		return err
	}
	return describeFlag(ctx, r, first.said)
}

// describeFlag compares with what the file says when it is run by hand.
func describeFlag(ctx context.Context, r *run, said *pluginv1.DescribeReply) error {
	const do = "with --describe as its argument, and no cookie in its environment, it has to print DescribeReply as JSON to stdout, and end with 0 within 2 s"
	if r.target.local != nil || r.target.part {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, describeWait+slack)
	defer cancel()
	dir, remove, err := temporary()
	if err != nil {
		return err
	}
	defer remove()
	out, err := runner.Output(ctx, runner.Config{
		Name: "describe", Path: r.target.path, Args: append(r.target.args[:len(r.target.args):len(r.target.args)], "--describe"),
		Env: runner.Environment(dir, "info", r.target.env), Dir: dir, SocketDir: dir,
	}, 512<<10)
	switch {
	case err != nil:
		return broke(do, "run with --describe: %v", err)
	case out.Exit.Code != 0:
		return broke(do, "run with --describe it ended with %s; it said: %.200q", out.Exit, out.LastLine)
	}
	printed := new(pluginv1.DescribeReply)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(bytes.TrimSpace(out.Stdout), printed); err != nil {
		return broke(do, "what it prints with --describe is no description: %v", err)
	}
	if !proto.Equal(printed, said) {
		return broke("print with --describe what Describe answers", "with --describe it says %s, and asked %s", oneLine(printed), oneLine(said))
	}
	return nil
}

func checkConfigure(ctx context.Context, r *run) error {
	p, err := talking()
	if err != nil {
		return err
	}
	defer p.close()
	s, err := r.start(ctx)
	if err != nil {
		return err
	}
	c, err := s.caller(r.target.config, p)
	if err != nil {
		return err
	}
	const do = "the same instance with the same configuration changes nothing: accept it again, and guard what Configure changes with a lock"
	if err := c.configure(ctx, instance, c.config, true); err != nil {
		return refusedConfig(err)
	}
	errs := make(chan error, 64)
	for i := range cap(errs) { // 8 instances, each 8 times
		go func() { errs <- c.configure(ctx, fmt.Sprint("many-", i%8), c.config, i%16 == 15) }()
	}
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return broke(do, "of 64 calls of Configure at once, with 8 instances, not all went well: %v", firstOf(err))
	}
	for range 3 {
		if err := c.configure(ctx, instance, c.config, false); err != nil {
			return broke(do, "Configure once more: %v", err)
		}
	}
	if err := c.alive(); err != nil {
		return broke(do, "after Configure %v", err)
	}
	return nil
}

func checkUnknownField(ctx context.Context, r *run) error {
	const do = "refuse fields that you do not know, with a violation: a name that is misspelt must not be silently ignored. A plugin without a configuration refuses every field"
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	config := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	if c.config != nil {
		config = proto.CloneOf(c.config)
	}
	config.Fields["no_such_field_3f9"] = structpb.NewNumberValue(1)
	for _, only := range []bool{true, false} {
		err := c.configure(ctx, "unknown", config, only)
		var refused *plugins.ConfigError
		switch {
		case err == nil:
			return broke(do, "the configuration %s was accepted, validate_only %v", oneLine(config), only)
		case !errors.As(err, &refused):
			return broke("answer with violations, and keep errors for when Configure itself did not work", "%v", err)
		}
	}
	return nil
}

func checkDeadline(ctx context.Context, r *run) error {
	c, err := r.caller(ctx, silent)
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	n := min(20, c.concurrency())
	for i := range n {
		calls.Go(func() {
			call, cancel := context.WithTimeout(ctx, time.Duration(20+10*i)*time.Millisecond)
			defer cancel()
			if i%2 == 0 {
				call, cancel = context.WithCancel(ctx)
				time.AfterFunc(time.Duration(20+10*i)*time.Millisecond, cancel)
			}
			_ = c.call(call) // judged by what it leaves
		})
	}
	calls.Wait()
	// All of them are over for the caller, so draining has nothing to wait for.
	const patience = 10 * time.Second
	began := time.Now()
	drain, cancel := context.WithTimeout(ctx, patience+slack)
	defer cancel()
	_, err = pluginv1.NewLifecycleClient(c.conn).Drain(drain, &pluginv1.DrainRequest{Deadline: durationpb.New(patience)})
	const do = "every wait of a call has to end with its context: pass ctx on, select on ctx.Done(), look at it in loops"
	if err != nil {
		return broke(do, "%d calls ended for the caller, and Drain after them: %v", n, err)
	}
	if took := time.Since(began); took > patience/2 {
		return broke(do, "%d calls ended for the caller, and went on in the plugin: Drain took %v", n, took.Round(time.Millisecond))
	}
	return nil
}

func checkConcurrency(ctx context.Context, r *run) error {
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	n := 1000
	if r.target.quick {
		n = 200
	}
	atOnce := min(n, c.concurrency())
	do := fmt.Sprintf("calls come at once, up to %d for this plugin: guard what they share, or ask for fewer with MaxConcurrency", c.concurrency())
	ctx, cancel := context.WithTimeout(ctx, checkWait/2)
	defer cancel()
	if err := c.many(ctx, n, atOnce); err != nil {
		return broke(do, "of %d calls, %d at once: %v", n, atOnce, err)
	}
	if err := c.alive(); err != nil {
		return broke(do, "after %d calls, %d at once, %v", n, atOnce, err)
	}
	return nil
}

func checkInputs(ctx context.Context, r *run) error {
	const do = "answer it, or return an error: what is not there is nil or zero, numbers may be NaN, and messages have up to 16 MiB"
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	for _, in := range c.inputs() {
		call, cancel := context.WithTimeout(ctx, callWait)
		err := c.send(call, in.req)
		cancel()
		if status.Code(err) == codes.Unavailable {
			if end := c.fate(); end != nil {
				return broke(do, "%s: %v", in.what, end)
			}
		}
		if err != nil && broken(err) {
			return broke(do, "%s: %v", in.what, short(err))
		}
	}
	return nil
}

func checkPanic(ctx context.Context, r *run) error {
	const do = "a panic in one call must not end the process: the SDK recovers in the call's goroutine; recover in those that you start"
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	// Each odd input beside a good call, which must not suffer.
	for _, in := range c.inputs() {
		good := make(chan error, 1)
		go func() {
			call, cancel := context.WithTimeout(ctx, callWait)
			defer cancel()
			good <- c.call(call)
		}()
		call, cancel := context.WithTimeout(ctx, callWait)
		_ = c.send(call, in.req)
		cancel()
		err := <-good
		if end := c.alive(); end != nil {
			return broke(do, "%s: %v", in.what, end)
		}
		if status.Code(err) == codes.Unavailable {
			if end := c.fate(); end != nil {
				return broke(do, "%s: %v", in.what, end)
			}
			return broke(do, "%s: a good call beside it failed: %v", in.what, short(err))
		}
	}
	return nil
}

func checkDrain(ctx context.Context, r *run) error {
	c, err := r.caller(ctx, silent)
	if err != nil {
		return err
	}
	if err := c.call(shortly(ctx)); status.Code(err) == codes.Unavailable {
		return broke("do not refuse calls before Drain", "a call before Drain: %v", err)
	}
	// Calls that last for seconds, where the plugin waits for others at all.
	const n, lasts = 4, 3 * time.Second
	ended := make(chan struct{}, n)
	for range n {
		go func() {
			call, cancel := context.WithTimeout(ctx, lasts)
			defer cancel()
			_ = c.call(call)
			ended <- struct{}{}
		}()
	}
	client := pluginv1.NewLifecycleClient(c.conn)
	drain, cancel := context.WithTimeout(ctx, 10*time.Second+slack)
	defer cancel()
	if _, err := client.Drain(drain, &pluginv1.DrainRequest{Deadline: durationpb.New(10 * time.Second)}); err != nil {
		return broke("Drain waits for the calls in flight, at most for its deadline, and then answers", "Drain: %v", err)
	}
	// A call that came too late for it is refused at once.
	patience := time.NewTimer(lasts / 2)
	defer patience.Stop()
	for i := range n {
		select {
		case <-ended:
		case <-patience.C:
			return broke("Drain waits for the calls in flight, at most for its deadline, and then answers", "Drain answered while %d calls were in flight", n-i)
		}
	}
	err = c.send(shortly(ctx), c.inputs()[0].req)
	if status.Code(err) != codes.Unavailable {
		return broke("after Drain refuse calls with UNAVAILABLE: the host then knows that it may ask elsewhere", "a call after Drain ends with %v", orNil(err))
	}
	again, cancel := context.WithTimeout(ctx, 5*time.Second+slack)
	defer cancel()
	if _, err := client.Drain(again, &pluginv1.DrainRequest{Deadline: durationpb.New(5 * time.Second)}); err != nil {
		return broke("answer Drain again: it is done", "Drain once more: %v", err)
	}
	if err := c.alive(); err != nil {
		return broke("do not end after Drain: the host ends the process", "after Drain %v", err)
	}
	return nil
}

// shortly is enough for a call to be refused, or to be late where that is no
// matter.
func shortly(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func orNil(err error) any {
	if err == nil {
		return "an answer"
	}
	return short(err)
}

// firstOf is the first of errors that were joined.
func firstOf(err error) error {
	var bad *problem
	if errors.As(err, &bad) {
		return bad
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 { //nolint:errorlint // it was joined here
		return firstOf(joined.Unwrap()[0])
	}
	return err
}

// short is an error for a table: what was sent may be in it.
func short(err error) string {
	if text := err.Error(); len(text) > 300 {
		return strings.ToValidUTF8(text[:300], "") + "…"
	}
	return err.Error()
}

func oneLine(m proto.Message) string {
	text, err := protojson.Marshal(m)
	if err != nil || len(text) > 400 {
		return fmt.Sprintf("%.400s…", text)
	}
	return string(text)
}
