package plugintest

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"syscall"
	"time"
)

// endWait is how long a plugin may take to end when it is asked to.
const endWait = 5 * time.Second

func checkSigterm(ctx context.Context, r *run) error {
	return ends(ctx, r, "SIGTERM", "catch SIGTERM: finish what is in flight, end your children, exit within 5 s",
		func(s *session) error { return syscall.Kill(s.process.PID(), syscall.SIGTERM) })
}

func checkLifeline(ctx context.Context, r *run) error {
	return ends(ctx, r, "the end of the file DONA_PLUGIN_LIFELINE", "read the descriptor that DONA_PLUGIN_LIFELINE names until it ends: then the host is gone, and so must you and your children be within 5 s",
		func(s *session) error { s.process.CutLifeline(); return nil })
}

// ends asks a plugin that has worked to end.
func ends(ctx context.Context, r *run, what, do string, ask func(*session) error) error {
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	for range 3 {
		_ = c.call(shortly(ctx))
	}
	began := time.Now()
	if err := ask(c.session); err != nil {
		return broke(do, "%s: %v", what, err)
	}
	select {
	case <-c.process.Done():
	case <-time.After(endWait + slack):
		return broke(do, "it lives %v after %s", time.Since(began).Round(time.Second), what)
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.strays) > 0 {
		return broke(do, "after %s it ended and left %d processes of its own running", what, len(c.strays))
	}
	return nil
}

func checkLogs(ctx context.Context, r *run) error {
	const do = `log one JSON object a line to stderr, with the texts "@level" (trace, debug, info, warn, error), "@message" and "@timestamp"; plugin.Logger does, and so does hclog with JSONFormat`
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	for range 10 {
		_ = c.call(shortly(ctx))
	}
	for _, in := range c.inputs() {
		_ = c.send(shortly(ctx), in.req)
	}
	c.process.CutLifeline() // its last words belong to it
	select {
	case <-c.process.Done():
	case <-time.After(endWait + slack): // which is for another check
	}
	stderr, stdout := c.output()
	for _, line := range stderr {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return broke(do, "stderr has the line %.120q", line)
		}
		for _, key := range []string{"@level", "@message", "@timestamp"} {
			if _, is := fields[key].(string); !is {
				return broke(do, "stderr has a line whose %s is no text: %.120q", key, line)
			}
		}
	}
	if len(stdout) > 0 {
		return broke("print to stderr, or log: what is on stdout after the handshake is nobody's", "it printed %.100q to stdout", stdout[0])
	}
	return nil
}

func checkLeaks(ctx context.Context, r *run) error {
	// Growth that no garbage collector explains.
	const (
		files = 16
		loops = 64
		bytes = 24 << 20
	)
	c, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	n := 10_000
	if r.target.quick {
		n = 1_000
	}
	workers := min(16, c.concurrency())
	batch := func(n int) (usage, error) {
		if err := c.many(ctx, n, workers); err != nil {
			return usage{}, broke("cure the calls first", "%v", err)
		}
		return c.usage()
	}
	before, err := batch(n / 5)
	if err != nil {
		return err
	}
	var after usage
	grown := func() string { return after.over(before, files, loops, bytes) }
	// A heap may grow once; what grows again with the same work is a leak.
	for try := range 3 {
		work := n - n/5
		if try > 0 {
			before, work = after, n/2
		}
		if after, err = batch(work); err != nil {
			return err
		}
		if grown() == "" {
			return nil
		}
	}
	return broke("what a call opens, starts or keeps has to go with it: close files and bodies, end goroutines with ctx, bound maps",
		"after %d calls %s more than before the last %d", n+n, grown(), n/2)
}

// temporary makes a directory of its own.
func temporary() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "pt")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// goroutines counts those of this process, once they had a moment to end.
func goroutines() int {
	n := runtime.NumGoroutine()
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		n = min(n, runtime.NumGoroutine())
	}
	return n
}
