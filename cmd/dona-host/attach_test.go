package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// A host for development uses a plugin that somebody else has started, as a debugger
// does: it stands still for longer than a call may take, and goes on; it outlives
// the host; and when it is gone the host does without.
func TestAttachedPlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	attached := filepath.Join(dir, "strategy-attached")
	stampPlugin(t, attached, "strategy-attached", "1.2.3")
	cmd := exec.Command(attached, "--attach")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	flag := ""
	for lines := bufio.NewScanner(out); flag == "" && lines.Scan(); {
		_, flag, _ = strings.Cut(lines.Text(), "dona-host --dev --attach ")
	}
	if !strings.HasPrefix(flag, "strategy/strategy-attached=/") {
		t.Fatalf("it prints the flag %q", flag)
	}

	p := newProcess(t)
	p.args = []string{"--attach", flag}
	p.start()
	conn := p.dial()
	client := donav1.NewControlPlaneClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	endpoints := fleet(ctx, client, "v1", 2)
	t.Cleanup(func() { cancel(); endpoints.Wait() })
	if _, err := client.SetServicePolicy(ctx, &donav1.SetServicePolicyRequest{Service: "web", Strategy: "strategy-attached"}); err != nil {
		t.Fatal(err)
	}
	planned := func() bool {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.GetConfig().GetPlan().GetStrategy() == "strategy-attached"
	}
	until(t, "a plan by it", planned)
	status := func() *donav1.PluginStatus { return pluginOf(ctx, t, conn, "strategy", "strategy-attached") }
	if s := status(); s.GetState() != "ready" || s.GetSource() != "attached" || s.GetPid() != 0 {
		t.Errorf("the plugin is %v", s)
	}
	// At a breakpoint: calls are late, and nobody is replaced for it.
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	late := 0
	for variant := range 100 { // every new endpoint asks for a plan, and no answer comes
		if late >= 4 {
			break
		}
		more := fleet(ctx, client, fmt.Sprint("w", variant), 1)
		t.Cleanup(func() { cancel(); more.Wait() })
		until(t, "a call to be late", func() bool {
			now := lateCalls(t, p)
			grown := now > late
			late = max(now, late)
			return grown
		})
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the plugin to be ready after it stood", func() bool { return status().GetState() == "ready" && planned() })
	if s := status(); s.GetStarts() != 1 || s.GetExits() != 0 {
		t.Errorf("after it stood, the plugin is %v", s)
	}
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !alive(cmd.Process.Pid) {
		t.Fatal("the plugin ended with the host")
	}
	// The next host finds it as it was.
	p.start()
	until(t, "a plan by it from the next host", planned)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	until(t, "the host to see that it is gone", func() bool { return status().GetState() == "backoff" })
	if !planned() {
		t.Error("the last good plan is gone")
	}
	p.kill()
	p.ledger()
}

// lateCalls is how many calls of strategies were late.
func lateCalls(t *testing.T, p *process) (n int) {
	t.Helper()
	reply, err := http.Get("http://" + p.http + "/metrics")
	if err != nil {
		return 0
	}
	defer func() { _ = reply.Body.Close() }()
	text, _ := io.ReadAll(reply.Body)
	if m := regexp.MustCompile(`dona_plugin_call_seconds_count\{.*outcome="deadline".*plugin="strategy-attached".*\} (\d+)`).FindSubmatch(text); m != nil {
		n, _ = strconv.Atoi(string(m[1]))
	}
	return n
}
