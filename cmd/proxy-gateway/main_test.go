package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/internal/startup/startuptest"
	"github.com/dodona-project/dodona/host/loopback"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
	"github.com/dodona-project/dodona/sdk/worker/digest"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// asProgram has the test's own binary be the gateway.
const asProgram = "PROXY_GATEWAY_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const patience = 30 * time.Second

// plane is a control plane of one worker and one snapshot at a time.
type plane struct {
	controlplanev1.UnimplementedWorkerControlPlaneServer
	address  string
	server   *grpc.Server
	hold     chan struct{} // no snapshot is sent before it is closed; nil = at once
	validity time.Duration
	maxStale time.Duration
	skew     time.Duration            // of its clock
	usable   map[string]time.Duration // how long proxies are, from each snapshot on

	mu         sync.Mutex
	content    *controlplanev1.WorkerSnapshot
	version    uint64
	sent       time.Time // the last snapshot, or a moment before
	change     chan struct{}
	draining   bool
	refuses    bool // the worker, from the next snapshot on
	registered *controlplanev1.RegisterWorkerRequest
	last       *controlplanev1.ReportRuntimeRequest
	outcomes   []*controlplanev1.Outcome
}

// stop ends the control plane before the test does. Who connects to it then is not answered.
func (p *plane) stop() { p.server.Stop() }

// kept is a listener that keeps its address when it is closed, or another test's control plane
// might be found there.
type kept struct{ *net.TCPListener }

func (l kept) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

func startPlane(t *testing.T, content *controlplanev1.WorkerSnapshot, options ...grpc.ServerOption) *plane {
	t.Helper()
	p := &plane{content: content, change: make(chan struct{}), validity: time.Minute, maxStale: 2 * time.Minute}
	l, err := net.Listen("tcp", freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	s := grpc.NewServer(options...)
	p.server = s
	controlplanev1.RegisterWorkerControlPlaneServer(s, p)
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(kept{l.(*net.TCPListener)}) })
	t.Cleanup(func() {
		s.Stop()
		done.Wait()
		_ = l.Close()
	})
	return p
}

// push has each stream get the next snapshot.
func (p *plane) push() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.change)
	p.change = make(chan struct{})
}

func (p *plane) RegisterWorker(_ context.Context, r *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registered = r; p.refuses {
		return nil, status.Error(codes.PermissionDenied, "not this one")
	}
	return &controlplanev1.RegisterWorkerResponse{
		SessionId: "session", OwnershipEpoch: 1, MaxStaleAge: durationpb.New(p.maxStale), SessionTtl: durationpb.New(30 * time.Second),
		RuntimeInterval: durationpb.New(100 * time.Millisecond), MaxRuntimeCounters: 4096, MaxOutcomeBatch: 512, ProtocolVersion: 1,
	}, nil
}

func (p *plane) WatchSnapshots(_ *controlplanev1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[controlplanev1.SnapshotUpdate]) error {
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	for {
		p.mu.Lock()
		if p.refuses {
			p.mu.Unlock()
			return status.Error(codes.FailedPrecondition, "the session is over")
		}
		p.version++
		s := proto.CloneOf(p.content)
		change := p.change
		s.Version, s.OwnershipEpoch, s.ClusterId = p.version, 1, "prod"
		p.sent = time.Now()
		s.GeneratedAt, s.ValidUntil = timestamppb.New(p.sent.Add(p.skew)), timestamppb.New(p.sent.Add(p.skew+p.validity))
		for _, far := range s.GetProxies() {
			if left := p.usable[far.GetProxyId()]; left > 0 {
				far.UsableUntil = timestamppb.New(p.sent.Add(p.skew + left))
			}
		}
		p.mu.Unlock()
		sum := digest.OfSnapshot(s)
		s.Checksum = sum[:]
		if err := stream.Send(&controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Full{Full: s}}); err != nil {
			return err
		}
		select {
		case <-change:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (p *plane) AcknowledgeSnapshot(context.Context, *controlplanev1.AcknowledgeSnapshotRequest) (*controlplanev1.AcknowledgeSnapshotResponse, error) {
	return &controlplanev1.AcknowledgeSnapshotResponse{}, nil
}

func (p *plane) ReportRuntime(_ context.Context, r *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.draining = r, p.draining || r.GetDraining()
	return &controlplanev1.ReportRuntimeResponse{AcceptedSequence: r.GetReportSequence()}, nil
}

func (p *plane) ReportOutcomes(stream grpc.ClientStreamingServer[controlplanev1.OutcomeBatch, controlplanev1.ReportOutcomesResponse]) error {
	last := uint64(0)
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&controlplanev1.ReportOutcomesResponse{AcceptedSequence: last})
		}
		if err != nil {
			return err
		}
		last = b.GetSequence()
		p.mu.Lock()
		p.outcomes = append(p.outcomes, b.GetOutcomes()...)
		p.mu.Unlock()
	}
}

// process is a running gateway.
type process struct {
	*exec.Cmd
	stderr         *output
	clients, admin string
}

// output keeps what a process writes.
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

// freeAddress is one that no other process gets: clients of a control plane that has
// ended, in whichever test on this machine, look for it where it was.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := loopback.Free()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// startGateway starts one and waits until it listens for clients.
func startGateway(t *testing.T, config string, args ...string) *process {
	t.Helper()
	p := launchGateway(t, config, args...)
	listening := regexp.MustCompile(`clients=(127\.0\.0\.1:\d+)`)
	eventually(t, "the gateway listens", func() bool {
		if m := listening.FindStringSubmatch(p.stderr.String()); m != nil {
			p.clients = m[1]
		}
		return p.clients != ""
	})
	return p
}

func launchGateway(t *testing.T, config string, args ...string) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &process{stderr: &output{}, admin: freeAddress(t)}
	p.Cmd = exec.Command(os.Args[0], append([]string{
		"-cluster-id", "prod", "-worker-id", "w1", "-instance-id", "i1", "-config", file, "-listen", "127.0.0.1:0", "-admin-listen", p.admin,
	}, args...)...)
	p.Dir = t.TempDir() // where nothing is written
	p.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+p.Dir, "HOME="+p.Dir)
	p.Stderr = p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		if t.Failed() {
			t.Log(p.stderr.String())
		}
		if files, err := os.ReadDir(p.Dir); err != nil || len(files) > 0 {
			t.Errorf("it leaves %v, %v", files, err)
		}
	})
	return p
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func (p *process) ask(path string) (int, string) {
	answer, err := http.Get("http://" + p.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func (p *process) proxy(user *url.Userinfo) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", User: user, Host: p.clients})}}
}

// world is a target, a proxy that leads to it, and a snapshot that has that proxy.
func world(t *testing.T, on controlplanev1.OnUnavailable) *controlplanev1.WorkerSnapshot {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	origin := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello "+r.Host) })}
	var done sync.WaitGroup
	done.Go(func() { _ = origin.Serve(l) })
	t.Cleanup(func() {
		_ = origin.Close()
		done.Wait()
	})
	up := proxytest.Start(t, proxytest.Options{
		Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5, Username: "user", Password: "secret", Hosts: map[string]string{"shop.example:80": l.Addr().String()},
	})
	far := up.Proxy()
	far.ExpiresAt, far.UsableUntil = timestamppb.New(time.Now().Add(time.Hour)), timestamppb.New(time.Now().Add(time.Hour))
	far.AssignmentEpoch = 1
	return &controlplanev1.WorkerSnapshot{
		Routings: []*controlplanev1.Routing{{
			Name: "all", Match: &controlplanev1.RoutingMatch{}, OnUnavailable: on,
			Upstreams: []*controlplanev1.UpstreamRef{{Name: "test", Weight: 1}}, Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN},
		}},
		Proxies: []*controlplanev1.Proxy{far}, Credentials: []*controlplanev1.Credential{up.Credential()},
	}
}

// A gateway as a process: it is ready once it has a snapshot, leads requests by it and
// reports them, follows the next snapshot, and ends within its limit when it is told to,
// after what ran.
func TestProcess(t *testing.T) {
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL))
	password := filepath.Join(t.TempDir(), "alice")
	if err := os.WriteFile(password, []byte("pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startGateway(t, `
controlPlane: {tls: {mode: disabled}}
gateway:
  clients: [{name: alice, passwordFile: `+password+`}]
  upstreams: {allow: [loopback]}
  limits: {drain: 20s}
`, "-control-plane", host.address)
	if code, _ := p.ask("/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	eventually(t, "the gateway is ready", func() bool { code, _ := p.ask("/readyz"); return code == 200 })
	alice := p.proxy(url.UserPassword("alice", "pass"))
	answer, err := alice.Get("http://shop.example/")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != 200 || string(text) != "hello shop.example" {
		t.Errorf("got %d, %q", answer.StatusCode, text)
	}
	if answer, err = p.proxy(nil).Get("http://shop.example/"); err != nil || answer.StatusCode != 407 {
		t.Errorf("nobody gets %v, %v", answer, err)
	} else {
		_ = answer.Body.Close()
	}
	t.Cleanup(func() {
		host.mu.Lock()
		defer host.mu.Unlock()
		if t.Failed() {
			t.Logf("reported: %v", host.outcomes)
		}
	})
	eventually(t, "the outcome is reported", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return len(host.outcomes) == 1 && host.outcomes[0].GetSuccess() && host.outcomes[0].GetStatus() == 200 && host.outcomes[0].GetTargetHost() == "shop.example"
	})
	_, shown := p.ask("/metrics")
	for _, want := range []string{
		`proxy_gateway_answers_total{code="200",own="false"} 1`, `proxy_gateway_answers_total{code="407",own="true"} 1`, `proxy_gateway_state{state="serving"} 1`,
		"proxy_gateway_requests_total 2", "proxy_gateway_proxies 1", "proxy_gateway_snapshot_version 1",
	} {
		if !strings.Contains(shown, want+"\n") {
			t.Errorf("/metrics has no %s in\n%s", want, shown)
		}
	}
	for _, secret := range []string{"secret", "pass"} {
		if strings.Contains(shown, "\""+secret) || strings.Contains(p.stderr.String(), "="+secret) {
			t.Errorf("%q is shown or logged", secret)
		}
	}

	// A tunnel that runs while the gateway is told to end.
	conn, in := p.tunnel(t, "Proxy-Authorization: Basic YWxpY2U6cGFzcw==\r\n")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not ready any more", func() bool { code, text := p.ask("/readyz"); return code == 503 && strings.HasPrefix(text, "draining") })
	eventually(t, "the control plane is told", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return host.draining && len(host.last.GetCounters()) == 1 && host.last.GetCounters()[0].GetActive() == 1
	})
	if c, err := net.Dial("tcp", p.clients); err == nil {
		_ = c.Close()
		t.Error("it takes connections while it drains")
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
	if got, err := io.ReadAll(in); err != nil || !strings.HasSuffix(string(got), "hello shop.example") {
		t.Errorf("the tunnel gives %q, %v", got, err)
	}
	_ = conn.Close()
	if err := p.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if n := len(host.last.GetCounters()); n != 0 {
		t.Errorf("at the end %d proxies are reported in use", n)
	}
}

// A gateway that starts lets nobody in before its first snapshot, so that clients which
// know another one go there; whoever is let in is led.
func TestNobodyIsLetInTooEarly(t *testing.T) {
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL))
	host.hold = make(chan struct{})
	listen := freeAddress(t)
	p := launchGateway(t, "controlPlane: {tls: {mode: disabled}}\ngateway: {upstreams: {allow: [loopback]}}\n", "-control-plane", host.address, "-listen", listen)
	p.clients = listen
	eventually(t, "the worker has registered", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return host.registered != nil
	})
	if code, text := p.ask("/readyz"); code != 503 || !strings.HasPrefix(text, "starting") {
		t.Errorf("without a snapshot /readyz answers %d %q", code, text)
	}
	if conn, err := net.Dial("tcp", listen); err == nil {
		_ = conn.Close()
		t.Error("without a snapshot it takes connections")
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	close(host.hold)
	client := p.proxy(nil)
	eventually(t, "it takes clients", func() bool {
		answer, err := client.Get("http://shop.example/")
		if errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Fatalf("the first that is let in is answered %d, %s", answer.StatusCode, answer.Header.Get("Proxy-Status"))
		}
		return true
	})
}

// What cannot be had at the start ends it with what it is.
func TestDoesNotStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken := l.Addr().String()
	for _, c := range []struct {
		config string
		args   []string
		want   string
	}{
		{"", []string{"-listen", taken}, "listen tcp " + taken + ": bind: address already in use"},
		{"", []string{"-admin-listen", taken}, "listen tcp " + taken + ": bind: address already in use"},
		{"gateway: {clients: [{name: alice, passwordFile: none}]}\n", nil, "none: no such file"},
		{"gateway: {upstreams: {ca: none.pem}}\n", nil, "gateway.upstreams.ca: open "},
	} {
		p := launchGateway(t, "controlPlane: {tls: {mode: disabled}}\n"+c.config, append([]string{"-control-plane", "127.0.0.1:1"}, c.args...)...)
		var exit *exec.ExitError
		if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != startup.ExitConfig && exit.ExitCode() != startup.ExitFailed {
			t.Errorf("ends with %v, want one of its exit codes", err)
		}
		if text := p.stderr.String(); !strings.Contains(text, c.want) || strings.Contains(text, "panic") {
			t.Errorf("says %q, want %q", text, c.want)
		}
	}
}

// tunnel opens one to shop.example:80 and leaves it open.
func (p *process) tunnel(t *testing.T, login string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", p.clients)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "CONNECT shop.example:80 HTTP/1.1\r\nHost: x\r\n"+login+"\r\n")
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		t.Fatalf("CONNECT is answered %q, %v", line, err)
	}
	_, _ = in.ReadString('\n')
	return conn, in
}

// With mTLS, who the worker is comes from its certificate alone.
func TestAutoIdentity(t *testing.T) {
	ca := svidtest.NewCA(t, "prod.example")
	own := ca.Source("/host/h1")
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL), grpc.Creds(credentials.NewTLS(tlsconfig.MTLSServerConfig(own, own, tlsconfig.AuthorizeAny()))))
	dir := t.TempDir()
	ca.Source("/prod/worker/w7").Write(t, dir)
	p := startGateway(t, fmt.Sprintf("controlPlane: {gatewayTLS: {cert: %[1]s/cert.pem, key: %[1]s/key.pem, ca: %[1]s/bundle.pem}}\ngateway: {upstreams: {allow: [loopback]}}\n", dir),
		"-control-plane", host.address, "-worker-id", "", "-instance-id", "", "-auto-identity")
	eventually(t, "the gateway is ready", func() bool { code, _ := p.ask("/readyz"); return code == 200 })
	host.mu.Lock()
	defer host.mu.Unlock()
	if r := host.registered; r.GetWorkerId() != "w7" || r.GetInstanceId() != "w7" || r.GetClusterId() != "prod" {
		t.Errorf("it registers as %v", r)
	}
}

// The page names every flag, variable, key of the file and metric.
func TestPage(t *testing.T) {
	var help, none bytes.Buffer
	run([]string{"-help"}, nil, &help, &none)
	// What the parser allows, by what it says of keys that it does not know.
	file := filepath.Join(t.TempDir(), "g.yaml")
	if err := os.WriteFile(file, []byte("gateway: {x: 1, limits: {x: 1}, upstreams: {x: 1}, clients: [{x: 1}]}\ncontrolPlane: {x: 1, tls: {x: 1}, gatewayTLS: {x: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	run([]string{"-config", file, "-control-plane", "127.0.0.1:1", "-cluster-id", "c", "-worker-id", "w", "-instance-id", "i"}, nil, &none, &errs)
	lists := regexp.MustCompile(`is not a setting \(allowed: ([^)]+)\)`).FindAllStringSubmatch(errs.String(), -1)
	if len(lists) != 7 {
		t.Errorf("%d lists of keys in\n%s", len(lists), errs.String())
	}
	var keys []string
	for _, m := range lists {
		keys = append(keys, strings.Split(m[1], ", ")...)
	}
	startuptest.Page(t, "../../docs/gateway.md", help.String(), metrics{}, keys...)
}

// Settings that do not hold end with the code of their kind, a text that says what to do,
// and nothing started.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	ca := svidtest.NewCA(t, "prod.example")
	good := filepath.Join(dir, "id")
	ca.Source("/prod/worker/w7").Write(t, good)
	open := filepath.Join(dir, "open")
	ca.Source("/prod/worker/w8").Write(t, open)
	if err := os.Chmod(filepath.Join(open, "key.pem"), 0o644); err != nil {
		t.Fatal(err)
	}
	tlsOf := func(folder string) string {
		return fmt.Sprintf("controlPlane: {gatewayTLS: {cert: %[1]s/cert.pem, key: %[1]s/key.pem, ca: %[1]s/bundle.pem}}\n", folder)
	}
	plain := "controlPlane: {tls: {mode: disabled}}\n"
	id := []string{"-control-plane", "127.0.0.1:1", "-cluster-id", "prod", "-worker-id", "w", "-instance-id", "i"}
	for _, c := range []struct {
		name, file string
		args, env  []string
		code       int
		want       string
	}{
		{"no address", plain, id[2:], nil, startup.ExitUsage, "-control-plane is missing: give it, or PROXY_POOL_CONTROL_PLANE_ADDRESS"},
		{"no cluster", plain, append(append([]string{}, id[:2]...), id[4:]...), nil, startup.ExitUsage, "PROXY_POOL_CLUSTER_ID"},
		{"no worker", plain, append(append([]string{}, id[:4]...), id[6:]...), nil, startup.ExitUsage, "PROXY_POOL_WORKER_ID"},
		{"no instance", plain, id[:6], nil, startup.ExitUsage, "PROXY_POOL_INSTANCE_ID"},
		{"nothing at all", "", nil, nil, startup.ExitUsage, "-control-plane is missing"},
		{"no worker, and no TLS", "", id[:4], nil, startup.ExitUsage, "PROXY_POOL_WORKER_ID"},
		{"an id that is none", plain, []string{"-control-plane", "127.0.0.1:1", "-cluster-id", "prod", "-worker-id", "w:1", "-instance-id", "i"}, nil, startup.ExitUsage, `-worker-id is "w:1"`},
		{"a zone that is none", plain, append(id[:8:8], "-zone", "a b"), nil, startup.ExitUsage, `-zone is "a b"`},
		{"one address for two", plain, append(id[:8:8], "-listen", "127.0.0.1:1", "-admin-listen", "127.0.0.1:1"), nil, startup.ExitUsage, "-admin-listen is 127.0.0.1:1"},
		{"unknown flag", plain, []string{"-nonsense"}, nil, startup.ExitUsage, "nonsense"},
		{"an argument", plain, []string{"start"}, nil, startup.ExitUsage, `unexpected argument "start"`},
		{"identity without TLS", plain, append(id[:4:4], "-auto-identity"), nil, startup.ExitUsage, "mode is disabled"},
		{"identity by variable", plain, id, []string{"PROXY_POOL_AUTO_IDENTITY=true"}, startup.ExitUsage, "mode is disabled"},
		{"odd variable", plain, id, []string{"PROXY_POOL_AUTO_IDENTITY=yes"}, startup.ExitUsage, "allowed are true and false"},
		{"identity of another worker", tlsOf(good), append(id[:6:6], "-auto-identity"), nil, startup.ExitUsage, "finds worker w7"},
		{"plaintext over the network", plain, append([]string{"-control-plane", "192.0.2.1:7600"}, id[2:]...), nil, startup.ExitConfig, "not on loopback"},
		{"no TLS", "", id, nil, startup.ExitConfig, "controlPlane.gatewayTLS"},
		{"TLS files that are not there", tlsOf(filepath.Join(dir, "none")), id, nil, startup.ExitConfig, "none/cert.pem"},
		{"a key that others can read", tlsOf(open), id, nil, startup.ExitConfig, "chmod 600 "},
		{"open to all", plain, append(id[:8:8], "-listen", "0.0.0.0:0"), nil, startup.ExitConfig, "gateway.anybody"},
		{"no address to listen on", plain, append(id[:8:8], "-listen", "here"), nil, startup.ExitConfig, "allowed is host:port"},
		{"many errors", plain + "gateway:\n  lissten: x\n  limits: {idle: soon, idle: 5s, waiting: 0}\n  clients: [{name: a}, {name: 'b:c', passwordFile: p}]\n  upstreams: {allow: [private]}\nnothing: 1\n", id, nil, startup.ExitConfig, ""},
		{"no YAML", "a: [", id, nil, startup.ExitConfig, "yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := c.args
			if c.file != "" {
				file := filepath.Join(t.TempDir(), "g.yaml")
				if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append([]string{"-config", file}, args...)
			}
			if code := run(args, c.env, &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("ends with %d and %q, want %d and %q", code, errs.String(), c.code, c.want)
			}
			if c.name == "many errors" {
				for _, want := range []string{
					"g.yaml:3:3: gateway.lissten: is not a setting (allowed: anybody, clients, limits, listen, upstreams)", "g.yaml:4:18: gateway.limits.idle: is \"soon\"",
					":4:24: gateway.limits.idle: is there a second time", "gateway.limits.waiting: is \"0\" (allowed: 1 to ", "gateway.clients[0].passwordFile: is missing",
					"gateway.clients[1].name: is \"b:c\"", "gateway.upstreams.allow[0]: is \"private\" (allowed: loopback", ":7:1: nothing: is not a setting",
				} {
					if !strings.Contains(errs.String(), want) {
						t.Errorf("no %q in\n%s", want, errs.String())
					}
				}
			}
		})
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-help"}, nil, &out, &errs); code != startup.ExitOK || errs.Len() > 0 {
		t.Errorf("-help ends with %d, %q", code, errs.String())
	}
	for _, want := range []string{"PROXY_POOL_CONTROL_PLANE_ADDRESS", "PROXY_POOL_CLUSTER_ID", "PROXY_POOL_WORKER_ID", "PROXY_POOL_INSTANCE_ID", "PROXY_POOL_ZONE", "PROXY_POOL_AUTO_IDENTITY"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("-help does not name %s", want)
		}
	}
}
