package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// A plugin that is put into the plugin directory while the host runs is used
// without a restart: a service gets its plan from it. What is no plugin is shown
// with its reason, and the host ends as it should.
func TestPluginIsDroppedIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := filepath.Join(dir, "plugins")
	place := func(name string) string {
		path := filepath.Join(folder, name, "1.0.0", runtime.GOOS+"_"+runtime.GOARCH, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken := place("broken")
	if err := os.WriteFile(broken, []byte("no plugin\n"), 0o755); err != nil {
		t.Fatal(err)
	}

	p := newProcess(t)
	p.env = []string{"DONA_PLUGIN_DIR=" + folder}
	p.start()
	conn := p.dial()
	client := donav1.NewControlPlaneClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	endpoints := fleet(ctx, client, "v1", 2)
	t.Cleanup(func() { cancel(); endpoints.Wait() })
	plugin := func(kind, name string) *donav1.PluginStatus {
		t.Helper()
		return pluginOf(ctx, t, conn, kind, name)
	}
	until(t, "the broken one to be shown", func() bool {
		s := plugin("unknown", "broken")
		return s.GetState() == "rejected" && strings.Contains(s.GetReason(), broken) && strings.Contains(s.GetReason(), "exec format error")
	})
	choose := func() error {
		_, err := client.SetServicePolicy(ctx, &donav1.SetServicePolicyRequest{Service: "web", Strategy: "strategy-new"})
		return err
	}
	if err := choose(); status.Code(err) != codes.InvalidArgument {
		t.Fatalf("a strategy that is not there: %v", err)
	}
	stampPlugin(t, place("strategy-new"), "strategy-new", "1.0.0")
	until(t, "the new strategy to be taken", func() bool { return choose() == nil })
	until(t, "a plan by it", func() bool {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.GetConfig().GetPlan().GetStrategy() == "strategy-new" && len(s.GetConfig().GetEndpoints()) == 2
	})
	s := plugin("strategy", "strategy-new")
	if s.GetState() != "ready" || s.GetSource() != "file" || s.GetVersion() != "1.0.0" || s.GetPid() == 0 {
		t.Errorf("the plugin is %v", s)
	}
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if alive(int(s.GetPid())) {
		t.Error("the plugin lives")
	}
	p.ledger()
}

// stampPlugin writes the plugin of the tests of package external, built, to path as one
// of a name and a version.
func stampPlugin(t *testing.T, path, name, version string) {
	t.Helper()
	program, err := os.ReadFile(pluginProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", fmt.Appendf(program, "\nDONA %s %s\n", name, version), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// A plugin directory that is none: nothing is started, and the answer says why.
func TestPluginDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.env = []string{"DONA_PLUGIN_DIR=/nonexistent/plugins"}
	code, stderr := p.refuse()
	if code != exitConfig || !strings.Contains(stderr, "DONA_PLUGIN_DIR: plugins.dir: is \"/nonexistent/plugins\": no such file or directory") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("a data directory was made: %v", err)
	}
}

// A host that is killed while it asks a file what it is leaves nothing of that:
// no process, however it was started, and no directory.
func TestKillWhileAFileIsAsked(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("children that left their group are found on Linux only")
	}
	folder, mark := t.TempDir(), filepath.Join(t.TempDir(), "mark")
	path := filepath.Join(folder, "forks", "1.0.0", runtime.GOOS+"_"+runtime.GOARCH, "forks")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nsleep 600 &\none=$!\nsetsid sleep 600 &\necho $$ $one $! \"$HOME\" >" + mark + ".part\nmv " + mark + ".part " + mark + "\nwait\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p := newProcess(t)
	p.env = []string{"DONA_PLUGIN_DIR=" + folder}
	p.spawn()
	var words []string
	until(t, "the file to be asked", func() bool {
		text, _ := os.ReadFile(mark)
		words = strings.Fields(string(text))
		return len(words) == 4
	})
	p.kill()
	for _, word := range words[:3] {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "process "+word+" to end", func() bool { return !alive(pid) })
	}
	until(t, "its directory to go", func() bool { _, err := os.Stat(words[3]); return os.IsNotExist(err) })
}

// Files that never say what they are do not hold up the start of the host, nor
// its end.
func TestFilesThatHangDoNotHoldUpTheHost(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for i := range 40 {
		name := "hangs-" + strconv.Itoa(i)
		path := filepath.Join(folder, name, "1.0.0", runtime.GOOS+"_"+runtime.GOARCH, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := newProcess(t)
	p.env = []string{"DONA_PLUGIN_DIR=" + folder}
	began := time.Now()
	p.start()
	up := time.Since(began)
	began = time.Now()
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	t.Logf("up after %v, down after %v", up, time.Since(began))
	if up > 30*time.Second || time.Since(began) > 15*time.Second { // milliseconds, on a machine that is not busy
		t.Errorf("up after %v, down after %v", up, time.Since(began))
	}
}
