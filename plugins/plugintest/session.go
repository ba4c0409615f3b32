package plugintest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	goplugin_runner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/runner"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Clocks of a start, as the host's.
const (
	handshakeWait = 10 * time.Second
	describeWait  = 2 * time.Second
	healthWait    = 5 * time.Second
)

// maxLines is how many lines of a plugin's output are kept to be judged.
const maxLines = 10_000

// A session is one run of the plugin: a process, or a server in this one.
type session struct {
	target  Target
	said    *pluginv1.DescribeReply
	id      plugins.ID
	conn    *grpc.ClientConn
	process *runner.Process // nil = in this process
	client  *goplugin.Client
	server  *grpc.Server
	dir     string

	mu      sync.Mutex
	stderr  []string
	stdout  []string // what is not the handshake
	strays  []int    // left when the process ended by itself
	known   map[string]bool
	closing bool
}

// open starts the plugin. The error says which step of the start failed.
func open(ctx context.Context, t Target) (*session, error) {
	s := &session{target: t, known: make(map[string]bool)}
	var err error
	if t.local != nil {
		err = s.serveLocal()
	} else {
		err = s.spawn(ctx)
	}
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		s.close()
		if words := s.lastWords(); words != "" {
			err = fmt.Errorf("%w; it said: %s", err, words)
		}
		return nil, err
	}
	return s, nil
}

// begin has the plugin say what it is and how it is.
func (s *session) begin(ctx context.Context) error {
	describe, cancel := context.WithTimeout(ctx, describeWait+slack)
	defer cancel()
	said, err := pluginv1.NewLifecycleClient(s.conn).Describe(describe, &pluginv1.DescribeRequest{HostVersion: plugin.SDKVersion})
	if err != nil {
		return fmt.Errorf("call of Describe within %v: %w", describeWait, err)
	}
	if err := plugins.CheckDescription(said); err != nil {
		return err
	}
	kind, _ := plugins.KindOf(said.GetKind())
	s.said, s.id = said, plugins.ID{Kind: kind, Name: said.GetName()}
	if s.process != nil {
		runner.LimitFiles(s.process.PID(), uint64(max(256, 4*s.concurrency())))
	}
	watch, cancel := context.WithTimeout(ctx, healthWait+slack)
	defer cancel()
	stream, err := pluginv1.NewLifecycleClient(s.conn).WatchHealth(watch, &pluginv1.WatchHealthRequest{})
	if err == nil {
		var h *pluginv1.Health
		if h, err = stream.Recv(); err == nil && h.GetState() != pluginv1.Health_STATE_HEALTHY && h.GetState() != pluginv1.Health_STATE_DEGRADED {
			return fmt.Errorf("its first health is %s: %s", h.GetState(), h.GetReason())
		}
	}
	if err != nil {
		return fmt.Errorf("first health within %v: %w", healthWait, err)
	}
	return nil
}

// concurrency is how many calls the plugin takes at once.
func (s *session) concurrency() int {
	if n := int(s.said.GetMaxConcurrency()); n > 0 {
		return n
	}
	return wire.DefaultConcurrency
}

func (s *session) serveLocal() error {
	server, err := plugin.NewServer(s.target.local, nil)
	if err != nil {
		return err
	}
	l := bufconn.Listen(1 << 20)
	s.server = server
	go func() { _ = server.Serve(l) }()
	s.conn, err = grpc.NewClient("passthrough:plugin", append(dialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	return err
}

func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessageLen), grpc.MaxCallSendMsgSize(wire.MaxMessageLen)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	}
}

// spawn starts the process as the host does: its own group and directories,
// nothing of this environment, mutual TLS, and a pipe that tells it when we go.
func (s *session) spawn(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "pt")
	if err != nil {
		return err
	}
	s.dir = dir
	private := filepath.Join(dir, "t")
	if err := os.Mkdir(private, 0o700); err != nil {
		return err
	}
	s.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: runner.Connection{}}},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (goplugin_runner.Runner, error) {
			p := runner.New(runner.Config{
				Name: filepath.Base(s.target.path), Path: s.target.path, Args: s.target.args,
				Env: runner.Environment(private, "info", s.target.env), Dir: private, SocketDir: socketDir,
				Stderr: func(line []byte) { s.note(&s.stderr, line) },
				Stdout: func(line []byte) { s.note(&s.stdout, line) },
				Gone:   func(pgid int) { s.gone(pgid, socketDir) },
			}, cmd.Env)
			s.mu.Lock()
			s.process = p
			s.mu.Unlock()
			return p, nil
		},
		StartTimeout:     handshakeWait,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		AutoMTLS:         true,
		SkipHostEnv:      true,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: dir},
		GRPCDialOptions:  dialOptions(),
	})
	connected := make(chan error, 1)
	go func() {
		var err error
		s.conn, err = runner.Dial(s.client)
		connected <- err
	}()
	select {
	case err = <-connected:
	case <-ctx.Done():
		for { // whatever go-plugin waits for ends with the process
			s.kill()
			select {
			case <-connected:
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	if err == nil || s.process == nil {
		return err
	}
	var refused *runner.StartError
	switch {
	case errors.As(err, &refused):
		return refused
	case s.process.Handshake() == nil:
		if exit, ended := s.process.Exited(); ended && !exit.ByHost {
			return fmt.Errorf("no handshake line on stdout: the process ended with %s", exit)
		}
		return fmt.Errorf("no handshake line on stdout within %v", handshakeWait)
	case s.process.Handshake().Version > wire.ProtocolVersion:
		return fmt.Errorf("plugin speaks plugin protocol %d, the host %d: upgrade the host", s.process.Handshake().Version, wire.ProtocolVersion)
	case s.process.Handshake().Version < wire.ProtocolVersion:
		return fmt.Errorf("plugin speaks plugin protocol %d, the host %d: upgrade the plugin", s.process.Handshake().Version, wire.ProtocolVersion)
	}
	return err
}

func (s *session) note(to *[]string, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(*to) < maxLines {
		*to = append(*to, string(line))
	}
}

func (s *session) gone(pgid int, socketDir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.strays = runner.Strays(pgid, socketDir)
	}
}

// output returns what the plugin wrote so far.
func (s *session) output() (stderr, stdout []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.stderr), slices.Clone(s.stdout)
}

// lastWords is the last line of stderr, or the first one of a panic, cut to what fits
// into an error.
func (s *session) lastWords() string {
	stderr, _ := s.output()
	for _, l := range stderr {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return fmt.Sprintf("%.300q", l)
		}
	}
	for _, l := range slices.Backward(stderr) {
		if l != "" {
			return fmt.Sprintf("%.300q", l)
		}
	}
	return ""
}

// alive says how the process ended, nil when it has not.
func (s *session) alive() error {
	if s.process == nil {
		return nil
	}
	exit, ended := s.process.Exited()
	if !ended {
		return nil
	}
	if words := s.lastWords(); words != "" {
		return fmt.Errorf("the process ended with %s; it said: %s", exit, words)
	}
	return fmt.Errorf("the process ended with %s", exit)
}

// fate is alive for when the connection broke: the death of the process is seen a
// moment later.
func (s *session) fate() error {
	if s.process != nil {
		select {
		case <-s.process.Done():
		case <-time.After(slack):
		}
	}
	return s.alive()
}

func (s *session) kill() {
	s.mu.Lock()
	s.closing = true
	p := s.process
	s.mu.Unlock()
	if p != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Kill(ctx)
	}
}

// close ends the plugin, however it is, and removes what it had.
func (s *session) close() {
	s.kill()
	if s.client != nil && s.process != nil && s.process.PID() != 0 {
		ended := make(chan struct{})
		go func() { defer close(ended); s.client.Kill() }()
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
		}
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// The rest makes a session what facades call plugins through.

// Call configures the instance, unless it was, and runs do.
func (s *session) Call(ctx context.Context, _ plugins.ID, in plugins.Instance, _ string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error) {
	s.mu.Lock()
	known := s.known[in.ID]
	s.mu.Unlock()
	if !known {
		if err := s.configure(ctx, in.ID, in.Config, false); err != nil {
			return plugins.Identity{}, err
		}
		s.mu.Lock()
		s.known[in.ID] = true
		s.mu.Unlock()
	}
	return plugins.Identity{Name: s.id.Name, Version: s.said.GetVersion()}, do(ctx, s.conn)
}

// CallWithin is Call with a deadline.
func (s *session) CallWithin(ctx context.Context, within time.Duration, id plugins.ID, in plugins.Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return s.Call(ctx, id, in, method, do)
}

// Validate asks the plugin about a configuration.
func (s *session) Validate(ctx context.Context, _ plugins.ID, config *structpb.Struct) error {
	return s.configure(ctx, "validate", config, true)
}

// Reject makes the error of a refused answer.
func (s *session) Reject(id plugins.ID, reason, detail string) *plugins.AnswerError {
	return &plugins.AnswerError{Plugin: id, Reason: reason, Detail: detail}
}

// Capable reports what the plugin said of itself.
func (s *session) Capable(_ plugins.ID, capability string) bool {
	return slices.Contains(s.said.GetCapabilities(), capability)
}

// configure tells the plugin of an instance. What it refuses is a
// *plugins.ConfigError.
func (s *session) configure(ctx context.Context, instance string, config *structpb.Struct, only bool) error {
	reply, err := pluginv1.NewLifecycleClient(s.conn).Configure(ctx, &pluginv1.ConfigureRequest{InstanceId: instance, Config: config, ValidateOnly: only})
	if err != nil {
		return fmt.Errorf("call of Configure: %w", err)
	}
	if len(reply.GetViolations()) == 0 {
		return nil
	}
	refused := &plugins.ConfigError{Plugin: s.id}
	for _, v := range reply.GetViolations() {
		refused.Violations = append(refused.Violations, plugins.Violation{Path: v.GetPath(), Message: v.GetMessage()})
	}
	return refused
}
