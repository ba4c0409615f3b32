package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/dodona-project/dodona/sdk/dona"
)

// TestAgent: a workload that knows SPIFFE alone has its identity from dona svid agent,
// and uses it for calls while it is renewed, while the authority is changed, and again
// after the host was away for longer than it lives.
func TestAgent(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	dir, p := secure(t)
	bootstrap := p.args[1]
	p.args = append(p.args, "--identity-ttl", ttl.String(), "--identity-min-ttl", "1s")
	p.start()
	cli := donaProgram(t)
	env := []string{"DONA_IDENTITY=" + filepath.Join(dir, "admin", "ann"), "DONA_HOST=" + p.grpc, "DONA_BOOTSTRAP=" + bootstrap}
	run := func(args ...string) string {
		t.Helper()
		out, code := tool(t, env, cli, args...)
		if code != 0 {
			t.Fatalf("dona %s ends with %d: %s", strings.Join(args, " "), code, out)
		}
		return out
	}
	_, rest, _ := strings.Cut(run("svid", "token", "create", "--service", "web", "--uses", "100"), "token")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Fields(rest)[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	short, err := os.MkdirTemp("", "agent") // a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "run", "agent.sock")
	var said logBuffer
	agent := exec.Command(cli, "svid", "agent", "--socket", socket, "--token-file", token, "--service", "web", "--out", filepath.Join(short, "kept"))
	agent.Env = append(os.Environ(), "DONA_HOST="+p.grpc, "DONA_BOOTSTRAP="+bootstrap)
	agent.Stdout, agent.Stderr = &said, &said
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = agent.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("the agent said:\n%s", said.String())
		}
		secret, _ := os.ReadFile(token)
		if bytes.Contains([]byte(said.String()+p.log.String()), bytes.TrimSpace(secret)) {
			t.Error("the token is in what was said")
		}
	})

	begin, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x, err := workloadapi.NewX509Source(begin, workloadapi.WithClientOptions(workloadapi.WithAddr("unix://"+socket)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	serial := func() string {
		s, err := x.GetX509SVID()
		if err != nil {
			t.Fatal(err)
		}
		return s.Certificates[0].SerialNumber.String()
	}
	call := func() error { // on a connection of its own
		client, err := dona.Dial(t.Context(), p.grpc, dona.WithIdentity(x), dona.WithoutCache(), dona.WithCaller("web", ""))
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return client.Service("web").Ready(ctx)
	}
	calls := 0
	renewed := time.Time{}
	rotate := func(n int) { // makes calls until it was renewed so often
		t.Helper()
		seen := map[string]bool{}
		for end := time.Now().Add(2 * time.Minute); len(seen) <= n; calls++ {
			if time.Now().After(end) {
				t.Fatalf("it was renewed %d times in two minutes", len(seen)-1)
			}
			seen[serial()] = true
			if time.Since(renewed) > ttl/3 {
				renewed = time.Now()
				run("svid", "renew") // the operator's own, which does not live longer
			}
			if err := call(); err != nil {
				t.Fatalf("call %d: %v", calls, err)
			}
		}
	}
	rotate(1)
	run("svid", "ca", "prepare")
	rotate(1)
	run("svid", "ca", "activate")
	if out, code := tool(t, env, cli, "svid", "ca", "retire"); code != 1 || !strings.Contains(out, "valid until") {
		t.Errorf("the authority of an operator's SVID is retired, %d: %s", code, out)
	}
	rotate(1)
	if out := run("svid", "renew"); !strings.Contains(out, "/admin/ann, valid until") {
		t.Errorf("the operator's: %s", out)
	}
	rotate(1)
	t.Logf("%d calls, each on a connection of its own", calls)

	p.kill()
	s, err := x.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	for time.Now().Before(s.Certificates[0].NotAfter.Add(time.Second)) {
		time.Sleep(50 * time.Millisecond) // the host is away for longer than the SVID lives
	}
	p.start()
	back := time.Now()
	until(t, "another SVID", func() bool {
		s, err := x.GetX509SVID()
		return err == nil && time.Now().Before(s.Certificates[0].NotAfter)
	})
	if err := call(); err != nil {
		t.Error(err)
	}
	t.Logf("another SVID %s after the host was back", time.Since(back).Round(time.Millisecond))
}
