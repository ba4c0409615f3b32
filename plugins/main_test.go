//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/badplugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// The test binary is the host's program in these tests: started again it is a
// plugin, the watchdog, a plugin that keeps no rules, or a host to be killed.
func TestMain(m *testing.M) {
	benchProcess()
	refuseToStart()
	plugins.Dispatch(testPlugins())
	if len(os.Args) > 1 && os.Args[1] == hostArg {
		hostProcess(os.Args[2])
		return
	}
	_ = flag.Set("test.parallel", "6") // the command line wins
	before := takeStock(&failer{})
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeProgram()
		if left := leftOver(before); code == 0 && left != "" {
			fmt.Fprintln(os.Stderr, "left by tests that ran beside one another:", left)
			code = 1
		}
		os.Exit(code)
	}))
}

// leftOver says what this process has at its end that it had not at its beginning.
func leftOver(before stock) string {
	var t failer
	if left := zombies(&t, os.Getpid()); len(left) > 0 {
		return fmt.Sprintf("zombies %v", left)
	}
	for _, dir := range pluginDirs(&t) {
		if !before.strays[dir] {
			return dir + " in the shared temporary folder"
		}
	}
	if n := openDescriptors(&t); n > before.descriptors+few {
		return fmt.Sprintf("%d descriptors, there were %d", n, before.descriptors)
	}
	return ""
}

// testPlugins misbehave on request: the query's text says how.
func testPlugins() []*plugin.Plugin {
	return append(badplugins.Builtins(),
		plugin.AnalysisOf("acts", "1.2.3", acts{}, plugin.Summary("does what it is told"), plugin.MaxConcurrency(4), plugin.OwnVerdict()),
		plugin.Strategy("turns", "0.1.0", turns),
		plugin.Analysis("env", "0.1.0", showEnv),
		plugin.AnalysisOf("moody", "0.1.0", moody{}),
		plugin.Analysis("forgetful", "0.1.0", forget),
		plugin.ProbeOf("looks", "0.1.0", looks{}, plugin.MaxConcurrency(1)),
	)
}

type actsConfig struct {
	Word  string `json:"word" jsonschema:"minLength=1"`
	Times int    `json:"times,omitempty" jsonschema:"minimum=0"`
}

type acts struct{}

func (acts) Configure(_ context.Context, c actsConfig) error {
	if c.Word == "refuse" {
		return errors.New("word is refuse: choose another, with " + os.Getenv("API_TOKEN"))
	}
	return nil
}

func (acts) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	config, _ := plugin.Config[actsConfig](ctx)
	detail := config.Word
	switch do, arg, _ := strings.Cut(req.GetQuery().GetQuery(), " "); do {
	case "panic":
		panic("deliberate")
	case "crash":
		go func() { panic("deliberate crash") }()
		<-ctx.Done()
	case "exit":
		os.Exit(7)
	case "hang":
		<-make(chan struct{})
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	case "pid":
		detail = fmt.Sprint(os.Getpid())
	case "fork":
		detail = fork(arg)
	case "slow":
		d, _ := time.ParseDuration(arg)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "print":
		fmt.Println("printed on stdout")
		fmt.Fprintln(os.Stderr, arg)
		plugin.Logger(ctx).Info("logged", "arg", arg)
	case "chatter":
		for range 2000 {
			fmt.Fprintln(os.Stderr, "and another thing")
		}
	case "large":
		return &pluginv1.EvaluateReply{Evidence: make([]byte, 64<<20)}, nil
	case "flood":
		line := []byte(strings.Repeat("x", 1<<20) + "\n")
		for range 32 {
			_, _ = syscall.Write(1, line)
			_, _ = syscall.Write(2, line)
		}
	}
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS, Detail: detail}, nil
}

// fork starts a child that holds stdout and stderr, in a session of its own if
// asked for, and returns its process id.
func fork(arg string) string {
	cmd := exec.Command("sleep", "600")
	cmd.Stdout, cmd.Stderr = os.NewFile(1, "1"), os.NewFile(2, "2")
	if arg == "setsid" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	return fmt.Sprint(cmd.Process.Pid)
}

// moody is as healthy as the file named by MOOD is absent.
type moody struct{}

func (moody) Evaluate(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS}, nil
}

func (moody) Health(context.Context) error {
	if _, err := os.Stat(os.Getenv("MOOD")); err == nil {
		return errors.New("not today: " + os.Getenv("MOOD"))
	}
	return nil
}

var forgot atomic.Int32

// forget says once that it does not know its instance.
func forget(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	if forgot.Add(1) == 1 {
		return nil, status.Error(codes.FailedPrecondition, "instance is not configured")
	}
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS}, nil
}

func turns(context.Context, *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}}, nil
}

func showEnv(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{
		Verdict:  donav1.Verdict_VERDICT_PASS,
		Evidence: []byte(strings.Join(os.Environ(), "\n")),
	}, nil
}

// refuseToStart ends a plugin's process when the file that it is told of exists.
func refuseToStart() {
	if f := os.Getenv("REFUSE_TO_START_IF"); f != "" {
		if _, err := os.Stat(f); err == nil {
			fmt.Fprintln(os.Stderr, "refusing to start")
			os.Exit(9)
		}
	}
	if f := os.Getenv("HANG_AT_START_IF"); f != "" {
		if _, err := os.Stat(f); err == nil {
			select {}
		}
	}
}

// newOptions are quick and have a short run directory.
func newOptions(t testing.TB) plugins.Options {
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := plugins.Options{
		Logger:      hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: testWriter{t}}),
		RunDir:      filepath.Join(dir, "run"),
		HostVersion: "0.1.0-test",
		Builtins:    testPlugins(),
	}
	quicken(&o)
	return o
}

// quicken has plugins come back without long waits.
func quicken(o *plugins.Options) {
	o.Backoff = plugins.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	o.Limits.RestartBudget = 1000
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func startHost(t testing.TB, o plugins.Options) *plugins.Host {
	t.Helper()
	h, err := plugins.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(context.Background()) })
	return h
}

// patience is how long a condition may take on a busy machine.
const patience = 60 * time.Second

func await(t testing.TB, h *plugins.Host, kind plugins.Kind, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.Await(ctx, kind, name); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until the plugins' states make ok true.
func eventually(t testing.TB, h *plugins.Host, what string, ok func() bool) {
	t.Helper()
	changed, cancel := h.Watch()
	defer cancel()
	until(t, what, changed, ok)
}

// until waits for a condition, looking again at each notice and every 10 ms.
func until(t testing.TB, what string, notice <-chan struct{}, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-notice:
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func stateOf(t testing.TB, h *plugins.Host, name string) *donav1.PluginStatus {
	t.Helper()
	s, err := h.Status(plugins.KindAnalysis, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
