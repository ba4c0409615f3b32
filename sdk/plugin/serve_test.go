//go:build unix

package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// The test binary is the plugin when it is started with "serve".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		plugin.Serve(plugin.AnalysisOf("echo", "1.0.0-rc.1", echo{}, plugin.Summary("says what it was told"), plugin.MaxConcurrency(8)))
	}
	goleak.VerifyTestMain(m)
}

type settings struct {
	Word string `json:"word"`
}

type echo struct{}

func (echo) Configure(_ context.Context, s settings) error {
	if s.Word == "no" {
		return errors.New("word is no")
	}
	return nil
}

func (echo) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	s, _ := plugin.Config[settings](ctx)
	switch req.GetQuery().GetQuery() {
	case "panic":
		panic("oops")
	case "error":
		return nil, fmt.Errorf("no such series")
	case "nil":
		return nil, nil
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	case "print":
		fmt.Println("on stdout")
		_, _ = syscall.Write(1, []byte("on descriptor 1\n"))
		plugin.Logger(ctx).Warn("in the log")
	}
	return &pluginv1.EvaluateReply{Detail: strings.Join([]string{s.Word, plugin.Instance(ctx), plugin.RolloutID(ctx)}, " ")}, nil
}

func (echo) Drain(context.Context) error {
	return os.WriteFile(os.Getenv("DRAINED"), []byte("yes"), 0o600)
}

// process is a plugin process with a connection to it.
type process struct {
	life     pluginv1.LifecycleClient
	analysis pluginv1.AnalysisClient
	cmd      *exec.Cmd
	lifeline *os.File
	drained  string
	stderr   *bytes.Buffer
	client   *goplugin.Client
}

type connection struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (connection) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }
func (connection) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

func start(t *testing.T) *process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{lifeline: w, drained: filepath.Join(t.TempDir(), "drained"), stderr: &bytes.Buffer{}}
	p.cmd = exec.Command(os.Args[0], "serve")
	p.cmd.ExtraFiles = []*os.File{r}
	p.cmd.Env = []string{wire.LifelineEnv + "=3", "DRAINED=" + p.drained, "TMPDIR=" + os.TempDir()}
	p.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: connection{}}},
		Cmd:              p.cmd, SkipHostEnv: true, AutoMTLS: true, Logger: hclog.NewNullLogger(), Stderr: p.stderr,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
	})
	t.Cleanup(func() { _ = w.Close(); p.client.Kill() })
	protocol, err := p.client.Client()
	_ = r.Close()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := protocol.Dispense(wire.PluginSet)
	if err != nil {
		t.Fatal(err)
	}
	p.life = pluginv1.NewLifecycleClient(conn.(*grpc.ClientConn))
	p.analysis = pluginv1.NewAnalysisClient(conn.(*grpc.ClientConn))
	return p
}

func (p *process) configure(t *testing.T, id string, fields map[string]any, checkOnly bool) []*pluginv1.Violation {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.life.Configure(t.Context(), &pluginv1.ConfigureRequest{InstanceId: id, Config: s, ValidateOnly: checkOnly})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetViolations()
}

func ask(query string) *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{InstanceId: "i", RolloutId: "r", Query: &donav1.AnalysisQuery{Query: query}}
}

// ended waits until the process is gone, and says whether it was.
func (p *process) ended(t *testing.T) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for !p.client.Exited() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			t.Fatal("the process lives")
		}
	}
}

func TestDescribeAndConfigure(t *testing.T) {
	p := start(t)
	d, err := p.life.Describe(t.Context(), &pluginv1.DescribeRequest{})
	if err != nil || d.GetName() != "echo" || d.GetVersion() != "1.0.0-rc.1" || d.GetKind() != pluginv1.Kind_KIND_ANALYSIS || d.GetMaxConcurrency() != 8 || !strings.Contains(d.GetConfigSchema(), `"word"`) {
		t.Fatalf("%v, %v", d, err)
	}
	for _, tc := range []struct {
		fields map[string]any
		path   string
		want   string
	}{
		{map[string]any{"word": "w"}, "", ""},
		{map[string]any{}, "", "missing property 'word'"},
		{map[string]any{"word": 1}, "/word", "got number, want string"},
		{map[string]any{"word": "w", "x": 1}, "", "additional properties 'x' not allowed"},
		{map[string]any{"word": "no"}, "", "word is no"},
	} {
		bad := p.configure(t, "check", tc.fields, true)
		if tc.want == "" && len(bad) == 0 {
			continue
		}
		if len(bad) != 1 || bad[0].GetPath() != tc.path || bad[0].GetMessage() != tc.want {
			t.Errorf("%v: %v, want %q at %q", tc.fields, bad, tc.want, tc.path)
		}
	}
	if _, err := p.analysis.Evaluate(t.Context(), ask("")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an instance that was never configured: %v", err)
	}
	p.configure(t, "i", map[string]any{"word": "w"}, false)
	p.configure(t, "i", map[string]any{"word": "w"}, false)
	if r, err := p.analysis.Evaluate(t.Context(), ask("")); err != nil || r.GetDetail() != "w i r" {
		t.Errorf("%v, %v", r, err)
	}
	if h, err := p.life.WatchHealth(t.Context(), &pluginv1.WatchHealthRequest{}); err != nil {
		t.Error(err)
	} else if first, err := h.Recv(); err != nil || first.GetState() != pluginv1.Health_STATE_HEALTHY {
		t.Errorf("%v, %v", first, err)
	}
}

func TestErrors(t *testing.T) {
	p := start(t)
	p.configure(t, "i", map[string]any{"word": "w"}, false)
	for _, tc := range []struct {
		query string
		code  codes.Code
		text  string
	}{
		{"panic", codes.Internal, "panic: oops"},
		{"error", codes.Unknown, "no such series"},
		{"nil", codes.OK, ""},
	} {
		_, err := p.analysis.Evaluate(t.Context(), ask(tc.query))
		if status.Code(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.text) {
			t.Errorf("%s: %v", tc.query, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.analysis.Evaluate(ctx, ask("wait")); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("wait: %v", err)
	}
	if _, err := p.analysis.Evaluate(t.Context(), ask("print")); err != nil {
		t.Errorf("print: %v", err)
	}
	large := ask("")
	large.State = make([]byte, 8<<20)
	if _, err := p.analysis.Evaluate(t.Context(), large); err != nil {
		t.Errorf("8 MiB: %v", err)
	}
	large.State = make([]byte, wire.MaxMessageLen+1)
	if _, err := p.analysis.Evaluate(t.Context(), large); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("over 16 MiB: %v", status.Code(err))
	}
	p.client.Kill()
	if log := p.stderr.String(); !strings.Contains(log, "on descriptor 1") || !strings.Contains(log, `"@message":"in the log"`) || !strings.Contains(log, `"instance":"i"`) || !strings.Contains(log, "serve_test.go") {
		t.Errorf("stderr has no print, log line or stack: %s", log)
	}
}

func TestDrainRefusesAndWaits(t *testing.T) {
	p := start(t)
	p.configure(t, "i", map[string]any{"word": "w"}, false)
	if _, err := p.life.Drain(t.Context(), &pluginv1.DrainRequest{Deadline: durationpb.New(time.Second)}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.drained); err != nil {
		t.Errorf("the plugin's own Drain did not run: %v", err)
	}
	if _, err := p.analysis.Evaluate(t.Context(), ask("")); status.Code(err) != codes.Unavailable {
		t.Errorf("a call after: %v", err)
	}
	if _, err := p.life.Describe(t.Context(), &pluginv1.DescribeRequest{}); err != nil {
		t.Errorf("Describe after: %v", err)
	}
}

func TestEndOfTheHostEndsThePlugin(t *testing.T) {
	p := start(t)
	_ = p.lifeline.Close()
	p.ended(t)
	if _, err := os.Stat(p.drained); err != nil {
		t.Errorf("the plugin's own Drain did not run: %v", err)
	}
}

func TestSignalEndsThePlugin(t *testing.T) {
	p := start(t)
	p.configure(t, "i", map[string]any{"word": "w"}, false)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// The host may still have work for it.
	if _, err := p.analysis.Evaluate(t.Context(), ask("")); err != nil {
		t.Errorf("a call right after the signal: %v", err)
	}
	p.ended(t)
	if _, err := os.Stat(p.drained); err != nil {
		t.Errorf("the plugin's own Drain did not run: %v", err)
	}
}

func TestByHand(t *testing.T) {
	run := func(args ...string) (string, int) {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = []string{}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := run("serve")
	if code != 2 || !strings.Contains(out, "this is the analysis plugin echo of Dodona") {
		t.Errorf("without the host: %d %s", code, out)
	}
	out, code = run("serve", "--describe")
	var d pluginv1.DescribeReply
	if code != 0 || protojson.Unmarshal([]byte(out), &d) != nil || d.GetName() != "echo" || d.GetSdkVersion() != plugin.SDKVersion {
		t.Errorf("--describe: %d %s", code, out)
	}
}
