package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/internal/startup/startuptest"
	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/plugins/lock"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// What the test's own binary is when it is started again.
const (
	asProgram = "PROXY_CHECKER_AS_PROGRAM"
	newProbe  = "probe-of-the-test" // by the name of the file
)

func TestMain(m *testing.M) {
	if exe, _ := os.Executable(); filepath.Base(os.Args[0]) == newProbe || filepath.Base(exe) == newProbe {
		plugin.Serve(plugin.Probe(newProbe, "1.0.0", func(_ context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
			return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS, Detail: "by the new probe"}, nil
		}))
	}
	builtin.Dispatch()
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const patience = 60 * time.Second

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// output keeps what is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// plane is a host in this process.
type plane struct {
	t      *testing.T
	ctx    context.Context
	grpc   string
	pools  controlplanev1.PoolAdminClient
	checks controlplanev1.CheckerControlPlaneClient
}

func startPlane(t *testing.T, flags map[string]string) *plane {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	all := map[string]string{"dev": "true", "data-dir": dir, "grpc-listen": "127.0.0.1:0", "http-listen": "127.0.0.1:0", "check-interval": "1s", "check-timeout": "2s"}
	maps.Copy(all, flags)
	c, err := config.Load("", nil, all)
	fatal(t, err)
	log := &output{}
	h, err := host.New(c, hclog.New(&hclog.LoggerOptions{Output: log}))
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	p := &plane{t: t}
	eventually(t, "the host listens", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "host.json"))
		var where struct{ GRPC string }
		if err != nil || json.Unmarshal(text, &where) != nil {
			return false
		}
		p.grpc = where.GRPC
		return true
	})
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	var end func()
	p.ctx, end = context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(end)
	p.pools, p.checks = controlplanev1.NewPoolAdminClient(conn), controlplanev1.NewCheckerControlPlaneClient(conn)
	return p
}

// publish puts a configuration in force whose one upstream has these proxies; check is
// what else the upstream has.
func (p *plane) publish(servers []*proxytest.Server, check string) {
	p.t.Helper()
	var lines []string
	for _, s := range servers {
		lines = append(lines, net.JoinHostPort(s.Proxy().Host, fmt.Sprint(s.Proxy().Port)))
	}
	p.publishAt(lines, check)
}

// publishAt is publish with addresses.
func (p *plane) publishAt(lines []string, check string) {
	p.t.Helper()
	_, err := p.pools.PublishConfig(p.ctx, &controlplanev1.PublishConfigRequest{Yaml: fmt.Sprintf(`
cluster: {id: c1}
upstreams:
  - name: dc
    protocol: http
    allowAddresses: [loopback]
    source: {type: static, proxies: [%s]}
    %s
routings:
  - {name: all, upstreams: [{name: dc}]}
`, strings.Join(lines, ", "), check)})
	fatal(p.t, err)
}

func (p *plane) in(state string) []*controlplanev1.ProxyStatus {
	p.t.Helper()
	resp, err := p.pools.ListProxies(p.ctx, &controlplanev1.ListProxiesRequest{State: state})
	fatal(p.t, err)
	return resp.Proxies
}

func servers(t *testing.T, n int, o proxytest.Options) []*proxytest.Server {
	o.Protocol = controlplanev1.Proxy_PROTOCOL_HTTP
	all := make([]*proxytest.Server, n)
	for i := range all {
		all[i] = proxytest.Start(t, o)
	}
	return all
}

// process is a running checker.
type process struct {
	*exec.Cmd
	t      *testing.T
	stderr *output
	admin  string
}

// startChecker runs the program; its probes may check loopback.
func startChecker(t *testing.T, p *plane, id string, args ...string) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "checker.yaml")
	fatal(t, os.WriteFile(file, []byte("controlPlane: {tls: {mode: disabled}}\nchecker: {drain: 5s}\nplugins: {probe: {proxy: {env: {PROBE_ALLOW: loopback}}}}\n"), 0o600))
	admin, err := loopback.Free()
	fatal(t, err)
	c := &process{t: t, stderr: &output{}, admin: admin}
	c.Cmd = exec.Command(os.Args[0], append([]string{
		"-control-plane", p.grpc, "-checker-id", id, "-instance-id", id + "-1", "-config", file, "-admin-listen", c.admin, "-log-level", "debug",
	}, args...)...)
	c.Env = append(os.Environ(), asProgram+"=1")
	c.Stderr = c.stderr
	fatal(t, c.Start())
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		if t.Failed() {
			t.Log(c.stderr)
		}
	})
	return c
}

func (c *process) ask(path string) (int, string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer, err := client.Get("http://" + c.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func (c *process) ready() bool { code, _ := c.ask("/readyz"); return code == http.StatusOK }

// metric is the value of a line of /metrics; empty when there is none.
func (c *process) metric(name string) string {
	_, text := c.ask("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}

// TestChecker: a checker that is a process of its own checks proxies with credentials,
// which are in none of its logs and metrics, and drains when it is told to end.
func TestChecker(t *testing.T) {
	t.Parallel()
	secrets := t.TempDir()
	fatal(t, os.WriteFile(filepath.Join(secrets, "dc"), []byte("ada:planted-password\n"), 0o600))
	p := startPlane(t, map[string]string{"pool-secrets-dir": secrets})
	c := startChecker(t, p, "paris")
	eventually(t, "the program serves", func() bool { code, _ := c.ask("/healthz"); return code == http.StatusOK })
	if c.ready() {
		t.Error("it is ready, and there is nothing to check")
	}
	p.publish(servers(t, 6, proxytest.Options{Username: "ada", Password: "planted-password"}), `secretRef: "file:dc"`)
	eventually(t, "it is ready", c.ready)
	eventually(t, "all proxies are available", func() bool { return len(p.in("AVAILABLE")) == 6 })
	eventually(t, "it has checked", func() bool {
		n := c.metric("proxy_checker_observations_reported_total")
		return n != "" && n != "0" && c.metric(`proxy_checker_checks_total{result="failure"}`) == "0"
	})
	_, text := c.ask("/metrics")
	if strings.Contains(text+c.stderr.String(), "planted") {
		t.Error("a secret is in its metrics or its log")
	}
	fatal(t, c.Process.Signal(syscall.SIGTERM))
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if c.metric("up") != "" {
		t.Error("somebody still serves")
	}
}

// TestCheckerKilled: what a checker held when it was killed is checked by others in the
// time of a lease.
func TestCheckerKilled(t *testing.T) {
	t.Parallel()
	p := startPlane(t, nil)
	c := startChecker(t, p, "paris")
	// Slow ones, so that it dies with tasks.
	slow := servers(t, 4, proxytest.Options{Talk: func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); time.Sleep(time.Second) }})
	p.publish(slow, "")
	eventually(t, "it checks", func() bool { n := c.metric("proxy_checker_checks_running"); return n != "" && n != "0" })
	fatal(t, c.Process.Kill())
	_ = c.Wait()
	began := time.Now()
	checked := func() (last time.Time) {
		for _, s := range p.in("") {
			if at := s.LastCheckedAt.AsTime(); s.LastCheckedAt == nil {
				return time.Time{}
			} else if last.IsZero() || at.Before(last) {
				last = at
			}
		}
		return last
	}
	eventually(t, "each is checked by somebody else", func() bool { return checked().After(began) })
	t.Logf("all were checked %s after the kill", time.Since(began))
}

// TestNewProbe: a probe that is dropped into a running checker is used, with no restart.
func TestNewProbe(t *testing.T) {
	t.Parallel()
	p, dir := startPlane(t, nil), t.TempDir()
	c := startChecker(t, p, "paris", "-plugin-dir", dir)
	p.publish(servers(t, 3, proxytest.Options{Status: 500}), "check: {probe: "+newProbe+"}")
	eventually(t, "it is on a stream", c.ready)
	eventually(t, "the proxies are listed", func() bool { return len(p.in("NEW")) == 3 })
	exe, err := os.ReadFile(os.Args[0])
	fatal(t, err)
	folder := filepath.Join(dir, newProbe, "1.0.0", runtime.GOOS+"_"+runtime.GOARCH)
	fatal(t, os.MkdirAll(folder, 0o755))
	fatal(t, os.WriteFile(filepath.Join(folder, "part"), exe, 0o755))
	fatal(t, os.Rename(filepath.Join(folder, "part"), filepath.Join(folder, newProbe)))
	fatal(t, lock.Write(filepath.Join(dir, lock.Name), new(lock.Lock).With(lock.Entry{Name: newProbe, Version: "1.0.0", Kind: "probe",
		Platforms: map[string]string{runtime.GOOS + "_" + runtime.GOARCH: fmt.Sprintf("sha256:%x", sha256.Sum256(exe))}})))
	began := time.Now()
	eventually(t, "the proxies are available", func() bool { return len(p.in("AVAILABLE")) == 3 })
	t.Logf("%s after it was dropped in", time.Since(began))
	if pid := c.Process.Pid; c.Process.Signal(syscall.Signal(0)) != nil {
		t.Errorf("process %d is gone", pid)
	}
}

// liar is a checker that says of everything the same.
type liar struct {
	p      *plane
	id     string
	result controlplanev1.HealthObservation_Result
	seen   sync.Map // proxies that it spoke of
}

func (l *liar) run(ctx context.Context) {
	for ctx.Err() == nil {
		l.once(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *liar) once(ctx context.Context) {
	if _, err := l.p.checks.RegisterChecker(ctx, &controlplanev1.RegisterCheckerRequest{
		CheckerId: l.id, InstanceId: l.id, Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC}, MaxInFlight: 256,
		SupportedProtocolVersion: 1, Probes: []*controlplanev1.ProbePlugin{{Name: "proxy"}},
	}); err != nil {
		return
	}
	stream, err := l.p.checks.StreamCheckTasks(ctx, &controlplanev1.StreamCheckTasksRequest{CheckerId: l.id, InstanceId: l.id, MaxInFlight: 256})
	if err != nil {
		return
	}
	for {
		task, err := stream.Recv()
		if err != nil {
			return
		}
		o := &controlplanev1.HealthObservation{TaskId: task.TaskId, LeaseToken: task.LeaseToken, ProxyId: task.ProxyId, Level: task.Level, Result: l.result}
		if l.result == controlplanev1.HealthObservation_RESULT_FAILURE {
			o.ErrorClass = controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
		}
		if _, err := l.p.checks.ReportObservations(ctx, &controlplanev1.ReportObservationsRequest{CheckerId: l.id, Observations: []*controlplanev1.HealthObservation{o}}); err == nil {
			l.seen.Store(task.ProxyId, true)
		}
	}
}

func (l *liar) count() (n int) {
	l.seen.Range(func(any, any) bool { n++; return true })
	return n
}

// TestOneCheckerSaysAllDown: its word makes no more than half of an upstream suspect and
// nobody unhealthy, as long as another checker does not agree; and all come back when it
// is gone.
func TestOneCheckerSaysAllDown(t *testing.T) {
	t.Parallel()
	p := startPlane(t, nil)
	c := startChecker(t, p, "honest")
	p.publish(servers(t, 8, proxytest.Options{}), "")
	eventually(t, "all proxies are available", func() bool { return len(p.in("AVAILABLE")) == 8 })
	life, end := context.WithCancel(p.ctx)
	defer end()
	l := &liar{p: p, id: "liar", result: controlplanev1.HealthObservation_RESULT_FAILURE}
	done := make(chan struct{})
	go func() { l.run(life); close(done) }()
	defer func() { end(); <-done }()
	eventually(t, "it has spoken of all", func() bool { return l.count() == 8 })
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n := len(p.in("UNHEALTHY")); n > 0 {
			t.Fatalf("%d are unhealthy by one checker's word", n)
		}
		if n := len(p.in("SUSPECT")); n > 4 {
			t.Fatalf("%d of 8 are suspect by one checker's word", n)
		}
	}
	end()
	<-done
	eventually(t, "all are available again", func() bool { return len(p.in("AVAILABLE")) == 8 })
	if !c.ready() {
		t.Error("the honest one is not ready")
	}
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		env  []string
		code int
		says string
	}{
		{nil, nil, startup.ExitUsage, "-control-plane is missing"},
		{[]string{"-control-plane", "127.0.0.1:1"}, nil, startup.ExitUsage, "-checker-id is missing"},
		{[]string{"-checker-id", "c"}, []string{"PROXY_POOL_CONTROL_PLANE_ADDRESS=127.0.0.1:1"}, startup.ExitUsage, "PROXY_POOL_CHECKER_INSTANCE_ID"},
		{[]string{"-levels", "basic,basic"}, nil, startup.ExitUsage, "twice"},
		{[]string{"-levels", "all"}, nil, startup.ExitUsage, "allowed are basic, egress and target"},
		{[]string{"-max-in-flight", "257"}, nil, startup.ExitUsage, "1 to 256"},
		{[]string{"-nope"}, nil, startup.ExitUsage, "-help"},
		{[]string{"-control-plane", "127.0.0.1:1", "-checker-id", "c", "-instance-id", "i"}, nil, startup.ExitConfig, "checkerTLS"},
		{nil, []string{"PROXY_POOL_AUTO_IDENTITY=1"}, startup.ExitUsage, "true and false"},
		{[]string{"-help"}, nil, startup.ExitOK, ""},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(tc.args, tc.env, &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.says) {
			t.Errorf("%v %v: %d %s, want %d and %q", tc.args, tc.env, code, stderr.String(), tc.code, tc.says)
		}
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	fatal(t, os.WriteFile(file, []byte("controlPlane: {tls: {mode: disabled}}\n"), 0o600))
	base := []string{"-config", file, "-checker-id", "c", "-instance-id", "i"}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-control-plane", "192.0.2.1:443"}, startup.ExitConfig, "not on loopback"},
		{[]string{"-control-plane", "127.0.0.1:1", "-auto-identity"}, startup.ExitUsage, "tls.mode is disabled"},
		{[]string{"-control-plane", "127.0.0.1:1", "-plugin-dir", filepath.Join(filepath.Dir(file), "none")}, startup.ExitConfig, "plugin directory"},
		{[]string{"-control-plane", "127.0.0.1:1", "-admin-listen", "127.0.0.1:0", "-plugin-dir", filepath.Join(filepath.Dir(file), "none")}, startup.ExitConfig, "plugin directory"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(slices.Concat(base, tc.args), nil, &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.says) {
			t.Errorf("%v: %d %s, want %d and %q", tc.args, code, stderr.String(), tc.code, tc.says)
		}
	}
}

// register is a control plane that keeps who registers.
type register struct {
	controlplanev1.UnimplementedCheckerControlPlaneServer
	who chan *controlplanev1.RegisterCheckerRequest
}

func (r register) RegisterChecker(_ context.Context, req *controlplanev1.RegisterCheckerRequest) (*controlplanev1.RegisterCheckerResponse, error) {
	select {
	case r.who <- req:
	default:
	}
	return &controlplanev1.RegisterCheckerResponse{ProtocolVersion: 1, MaxInFlight: 1}, nil
}

func (register) StreamCheckTasks(_ *controlplanev1.StreamCheckTasksRequest, stream grpc.ServerStreamingServer[controlplanev1.CheckTask]) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestAutoIdentity: with mTLS, who the checker is comes from its certificate alone.
func TestAutoIdentity(t *testing.T) {
	ca := svidtest.NewCA(t, "prod.example")
	own := ca.Source("/host/h1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(tlsconfig.MTLSServerConfig(own, own, tlsconfig.AuthorizeAny()))))
	r := register{who: make(chan *controlplanev1.RegisterCheckerRequest, 1)}
	controlplanev1.RegisterCheckerControlPlaneServer(server, r)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	dir := t.TempDir()
	ca.Source("/prod/checker/c7").Write(t, dir)
	file := filepath.Join(dir, "checker.yaml")
	fatal(t, os.WriteFile(file, []byte("controlPlane: {checkerTLS: {cert: cert.pem, key: key.pem, ca: bundle.pem}}\n"), 0o600))
	startChecker(t, &plane{grpc: l.Addr().String()}, "", "-config", file, "-checker-id", "", "-instance-id", "", "-auto-identity")
	select {
	case req := <-r.who:
		if req.CheckerId != "c7" || req.InstanceId != "c7" || len(req.Levels) != 3 || len(req.Probes) == 0 {
			t.Errorf("it registers as %v", req)
		}
	case <-time.After(patience):
		t.Error("it does not register")
	}
	// Others' certificates, and keys that others can read.
	ca.Source("/prod/worker/w7").Write(t, dir)
	args := []string{"-config", file, "-control-plane", "127.0.0.1:1", "-auto-identity"}
	var out, errs bytes.Buffer
	if code := run(args, nil, &out, &errs); code != startup.ExitUsage || !strings.Contains(errs.String(), "/checker/<checker id>") {
		t.Errorf("with a worker's certificate: %d %s", code, errs.String())
	}
	fatal(t, os.Chmod(filepath.Join(dir, "key.pem"), 0o644))
	errs.Reset()
	if code := run(args, nil, &out, &errs); code != startup.ExitConfig || !strings.Contains(errs.String(), "chmod 600") {
		t.Errorf("with a key that others can read: %d %s", code, errs.String())
	}
}

// TestPage: the page names every flag, variable and metric.
func TestPage(t *testing.T) {
	var help, none bytes.Buffer
	run([]string{"-help"}, nil, &help, &none)
	startuptest.Page(t, "../../docs/checker.md", help.String(), metrics{})
}
