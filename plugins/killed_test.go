//go:build linux

package plugins_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// hostProcess is a host that is there to be killed. It prints the processes it
// is responsible for, and then "ready".
func hostProcess(runDir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	h, err := plugins.New(plugins.Options{RunDir: runDir, Builtins: testPlugins()})
	fail(err)
	fail(h.Start(context.Background()))
	fail(h.Await(context.Background(), plugins.KindAnalysis, "acts"))
	config, err := structpb.NewStruct(map[string]any{"word": "x"})
	fail(err)
	s, err := h.Status(plugins.KindAnalysis, "acts")
	fail(err)
	fmt.Println(s.GetPid())
	for _, do := range []string{"fork", "fork setsid"} {
		m, err := analysis.New(h).Evaluate(context.Background(), "acts", &pluginv1.EvaluateRequest{
			Service: "shop", Query: &donav1.AnalysisQuery{Name: "q", Query: do, Config: config},
		})
		fail(err)
		fmt.Println(m.Detail)
	}
	dog, _ := h.WatchdogPID()
	fmt.Println(dog)
	fmt.Println("ready")
	<-make(chan struct{})
}

// runHost starts a host process and returns it with the processes it started.
func runHost(t *testing.T, runDir string, inherit ...*os.File) (host *exec.Cmd, pids []int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host = exec.Command(exe, "__host", runDir)
	host.ExtraFiles = inherit
	host.Stderr = testWriter{t}
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("host says %q", lines.Text())
		}
		pids = append(pids, pid)
	}
	if len(pids) != 4 {
		t.Fatalf("host started %d processes, want 4", len(pids))
	}
	return host, pids
}

func gone(pids []int) func() bool {
	return func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	}
}

func empty(t *testing.T, dir string) func() bool {
	return func() bool {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	}
}

func TestKilledHostLeavesNothing(t *testing.T) {
	runDir := newOptions(t).RunDir
	host, pids := runHost(t, runDir)
	killed := time.Now()
	_ = host.Process.Kill()
	_ = host.Wait()
	until(t, fmt.Sprintf("plugin, children and watchdog %v gone", pids), nil, gone(pids))
	until(t, "run directory empty", nil, empty(t, runDir))
	t.Logf("all gone %v after the kill", time.Since(killed))
}

// A stopped plugin can do nothing for itself, and without the watchdog only the
// kernel ends it; the next host sweeps the rest.
func TestKilledHostWithoutWatchdog(t *testing.T) {
	runDir := newOptions(t).RunDir
	host, pids := runHost(t, runDir)
	plugin, dog := pids[0], pids[3]
	for _, pid := range []int{host.Process.Pid, dog, plugin} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{dog, host.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = host.Wait()
	until(t, "plugin gone", nil, func() bool { return !alive(plugin) })
	if empty(t, runDir)() {
		t.Fatal("nobody was left to remove the run directory, and it is gone")
	}

	o := newOptions(t)
	o.RunDir = runDir
	h := startHost(t, o)
	until(t, "children gone", nil, gone(pids))
	left, err := os.ReadDir(runDir)
	if err != nil || len(left) != 1 {
		t.Errorf("run directory has %v, %v: want that of this host only", left, err)
	}
	h.Stop(context.Background())
	if !empty(t, runDir)() {
		t.Error("run directory is not empty after the stop")
	}
}

// Only the watchdog can end a child in a session of its own and remove the
// directory: that both go shows that a new one was told what the old one knew.
func TestKilledWatchdogIsReplacedAndToldAgain(t *testing.T) {
	runDir := newOptions(t).RunDir
	host, pids := runHost(t, runDir)
	first := pids[3]
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var second int
	until(t, "another watchdog", nil, func() bool {
		second = watchdogOf(t, host.Process.Pid)
		return second != 0 && second != first
	})
	if err := syscall.Kill(host.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	until(t, "everything gone", nil, gone(append(pids[:3:3], second)))
	until(t, "run directory empty", nil, empty(t, runDir))
}

// watchdogOf finds the watchdog process of a host, 0 when there is none.
func watchdogOf(t *testing.T, host int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "dona-watchdog\x00") {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(host) && alive(pid) {
			return pid
		}
	}
	return 0
}
