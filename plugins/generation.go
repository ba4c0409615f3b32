package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	goplugin_runner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/plugins/restrict"
	"github.com/dodona-project/dodona/plugins/runner"
	"github.com/dodona-project/dodona/sdk/plugin/schema"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Bounds of what a plugin sends, in bytes. An answer takes many times its length
// once it is decoded, so that each method allows what it can need: this is for
// those that say nothing else. An error travels in headers.
const (
	maxReplyLen    = 128 << 10
	maxDescription = schema.MaxLen + 64<<10
	maxHeaderLen   = 64 << 10
)

// How much a plugin may send ahead of its being read, in bytes. Without them gRPC
// lets it grow to 16 MiB.
const (
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// killWait is how long a process may take to be gone after SIGKILL.
const killWait = time.Second

// launch is what a generation needs to know to start.
type launch struct {
	id      ID
	number  uint64
	file    File
	config  PluginConfig
	limits  Limits
	version string // of the host
	dir     string // made by start, removed when the process is gone
	exe     string // of the host
	// protocols are the wire majors of the host, newest first.
	protocols []int
	carry     []Instance // what the generation before was told of, last used first
	logger    hclog.Logger
	meter     *callMeter
	started   func(pgid int, dir string)
	ended     func(pgid int)
	dropped   func(lines int)
}

// A generation is one process of a plugin, from its start to its end. Callers
// see it only after start returned without an error.
type generation struct {
	launch
	program runner.Program
	process atomic.Pointer[runner.Process] // nil before go-plugin asked for it
	client  *goplugin.Client
	conn    *grpc.ClientConn // nil before the handshake
	output  *output
	born    time.Time

	description *description
	instances   *instances
	slots       *slots
	missed      atomic.Int32 // deadlines in a row
	health      atomic.Pointer[health]
	healthy     chan struct{} // one token: health changed
	recycle     chan string   // one token: why the process has to be replaced
	background  sync.WaitGroup
	cancel      context.CancelFunc // ends the health watch

	mu       sync.Mutex
	closing  bool
	inflight int
	idle     chan struct{} // closed when closing and nothing is in flight
}

// start runs the whole transaction. When it fails, nothing of the process is
// left and the error has its last words.
func start(ctx context.Context, l launch) (*generation, error) {
	g := &generation{
		launch: l, born: time.Now(),
		healthy: make(chan struct{}, 1), recycle: make(chan string, 1),
		idle: make(chan struct{}), instances: newInstances(),
	}
	for i := len(l.carry) - 1; i >= 0; i-- {
		g.instances.get(l.carry[i])
	}
	g.output = newOutput(l.logger.With("generation", l.number), l.config.Env, l.dropped)
	if err := g.begin(ctx); err != nil {
		g.discard()
		return nil, g.explain(err)
	}
	return g, nil
}

func (g *generation) begin(ctx context.Context) error {
	tmp := filepath.Join(g.dir, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	connect := g.connect
	if g.attached() {
		connect = g.attach
	} else {
		var err error
		if g.program, err = g.file.place(filepath.Join(g.dir, "program")); err != nil {
			return err
		}
	}
	if err := connect(ctx, tmp); err != nil {
		return err
	}
	if err := g.describe(ctx); err != nil {
		return err
	}
	if pid := g.pid(); pid != 0 {
		runner.LimitFiles(pid, uint64(max(256, 4*g.slots.most)))
	}
	if err := g.reconfigure(ctx); err != nil {
		return err
	}
	return g.watchHealth(ctx)
}

// connect spawns the process and waits for its handshake. go-plugin's own
// calls cannot be given up, so they run aside: the end of the process ends
// them.
func (g *generation) connect(ctx context.Context, tmp string) error {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Handshake)
	defer cancel()
	var catch connCatcher
	config := g.clientConfig(tmp, &catch)
	g.client = goplugin.NewClient(config)
	done := make(chan error, 1)
	var conn *grpc.ClientConn
	go func() {
		var err error
		if conn, err = runner.Dial(g.client); err != nil {
			catch.close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		g.conn = conn
		return g.versionError(ctx, err)
	case <-ctx.Done():
	}
	// Whatever go-plugin does now ends with the process.
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		if p := g.process.Load(); p != nil {
			_ = p.Kill(ctx)
		}
		select {
		case <-done:
			tick.Stop()
			g.conn = conn
			if ctx.Err() == context.DeadlineExceeded {
				return fmt.Errorf("no handshake within %v", g.limits.Handshake)
			}
			return ctx.Err()
		default:
		}
	}
}

// pid is the process id, 0 before there is a process.
func (g *generation) pid() int {
	if p := g.process.Load(); p != nil {
		return p.PID()
	}
	return 0
}

// versionError says which side is too old when that is why there is no
// connection.
func (g *generation) versionError(ctx context.Context, err error) error {
	p := g.process.Load()
	if err == nil || p == nil {
		return err
	}
	var refused *runner.StartError
	if errors.As(err, &refused) {
		if refused.Permanent() {
			return permanent("%w", refused)
		}
		return refused
	}
	shake := p.Handshake()
	switch {
	case p.PID() == 0:
		return err // the host has no room for one more process
	case shake == nil && g.config.Restricted && p.Wait(ctx) != nil && p.Exit().Code == restrict.Refused:
		return permanent("it cannot be started restricted")
	case shake == nil:
		// go-plugin's words are for its own maintainers.
		return errors.New("the process printed no handshake line")
	case shake.Core != goplugin.CoreProtocolVersion:
		return permanent("plugin speaks version %d of go-plugin's protocol, the host version %d: rebuild the plugin with the host's SDK", shake.Core, goplugin.CoreProtocolVersion)
	case shake.Version > g.protocols[0]:
		return permanent("plugin speaks plugin protocol %d, the host %s: upgrade the host", shake.Version, protocolWords(g.protocols))
	case shake.Version < g.protocols[len(g.protocols)-1]:
		return permanent("plugin speaks plugin protocol %d, the host %s: upgrade the plugin", shake.Version, protocolWords(g.protocols))
	}
	return err
}

func (g *generation) clientConfig(tmp string, catch *connCatcher) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: pluginSets(g.protocols),
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (goplugin_runner.Runner, error) {
			p := runner.New(runner.Config{
				Name: g.id.String(), Path: g.file.Path, Program: g.program, Args: g.file.Args,
				Env:       runner.Environment(tmp, g.logger.GetLevel().String(), g.config.Env),
				Dir:       tmp,
				SocketDir: socketDir,

				AddressSpace: g.config.AddressSpace,
				Restrict:     g.restriction(),
				Stderr:       g.output.stderr,
				Stdout:       g.output.stdout,
				Started:      func(pgid int) { g.started(pgid, g.dir) },
				Ended:        g.ended,
			}, cmd.Env)
			g.process.Store(p)
			return p, nil
		},
		StartTimeout:     g.limits.Handshake + time.Second, // ours comes first
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(), // it says nothing that we do not say better
		AutoMTLS:         true,
		SkipHostEnv:      true,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: g.dir},
		SyncStdout:       &lineWriter{line: g.output.stdout},
		SyncStderr:       &lineWriter{line: g.output.stderr},
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReplyLen), grpc.MaxCallSendMsgSize(wire.MaxMessageLen)),
			grpc.WithMaxHeaderListSize(maxHeaderLen),
			grpc.WithInitialWindowSize(streamWindow),
			grpc.WithInitialConnWindowSize(connWindow),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
			grpc.WithStreamInterceptor(catch.intercept),
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(),
		},
	}
}

// restriction is how the process is held back, nil without. How many descriptors it
// may have is lowered further when it has said how many calls it takes.
func (g *generation) restriction() *runner.Restriction {
	if !g.config.Restricted {
		return nil
	}
	return &runner.Restriction{Exe: g.exe, Files: 4 * wire.MaxConcurrency}
}

// brokerMethod is go-plugin's stream on which a plugin offers services of its own
// and asks for those of the host.
const brokerMethod = "/plugin.GRPCBroker/StartStream"

// connCatcher keeps the connection that go-plugin makes, because go-plugin
// forgets it without closing it when it then fails. It also keeps the broker
// shut: the host gives and takes no services there, and each offer would cost a
// goroutine for five seconds.
type connCatcher struct {
	mu   sync.Mutex
	conn *grpc.ClientConn
}

func (c *connCatcher) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.mu.Lock()
	c.conn = cc
	c.mu.Unlock()
	if method == brokerMethod {
		return nil, status.Error(codes.Unimplemented, "the host has no broker")
	}
	return streamer(ctx, desc, cc, method, opts...)
}

func (c *connCatcher) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// explain adds the plugin's own last words to an error of its start.
func (g *generation) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	words := g.output.cause()
	var exit string
	if p := g.process.Load(); p != nil && p.PID() != 0 {
		if e, ended := p.Exited(); ended && !e.ByHost {
			exit = "; the process ended with " + e.String()
		}
	}
	if words != "" {
		words = fmt.Sprintf("; it said: %s", words)
	}
	var p *permanentError
	if errors.As(err, &p) {
		return permanent("%w%s%s", p.err, exit, words)
	}
	return fmt.Errorf("%w%s%s", err, exit, words)
}

// lineWriter cuts what go-plugin's stdio stream brings into lines. It never
// blocks.
type lineWriter struct {
	line func([]byte)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n':
			if len(w.rest) > 0 {
				w.line(w.rest)
			}
			w.rest = w.rest[:0]
		case len(w.rest) < runner.MaxLineLen:
			w.rest = append(w.rest, b)
		}
	}
	return len(p), nil
}

// schema returns the schema of the plugin's configuration.
func (g *generation) schema() *schema.Schema { return g.description.schema }
