package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/host/store"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Each program is built once for all tests, at the first call.
var (
	binary         = program("dona-host", buildTags, ".")
	donaProgram    = program("dona", "../dona")
	pluginProgram  = program("plugin", "../../plugins/external/testdata/plugin")
	ingressProgram = program("ingress", "../../examples/ingress")
)

// program is the file of what go build makes of args.
func program(name string, args ...string) func(t *testing.T) string {
	build := sync.OnceValues(func() (string, error) {
		dir, err := builds()
		if err != nil {
			return "", err
		}
		file := filepath.Join(dir, name)
		out, err := exec.Command("go", append([]string{"build", "-ldflags=-s -w", "-o", file}, args...)...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build of %s: %w\n%s", name, err, out)
		}
		return file, nil
	})
	return func(t *testing.T) string {
		t.Helper()
		file, err := build()
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

// builds is the directory of what was built, for the life of the tests.
var builds = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "dona-host-test-*") })

// TestMain lets more tests run at once than there are processors: most of their
// time they wait for leases, dwells and graces to pass.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // the command line wins
	code := m.Run()
	if dir, err := builds(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// process is one dona-host on a data directory and ports of its own, which it
// keeps over restarts.
type process struct {
	t          *testing.T
	dir        string
	grpc, http string
	env        []string
	args       []string                                    // more than every host gets
	config     string                                      // file of a secured host; empty = --dev
	peers      []string                                    // other hosts of the same store, where a connection goes when this one is away
	look       func(func(tx store.ReadTx, log *audit.Log)) // reads the store when it is not in dir
	cmd        *exec.Cmd
	exited     chan struct{}
	log        *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func newProcess(t *testing.T) *process {
	t.Helper()
	p := &process{t: t, dir: filepath.Join(t.TempDir(), "data"), grpc: freePort(t), http: freePort(t), log: &logBuffer{}}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the host's log:\n%s", p.log)
		}
	})
	return p
}

// freePort is an address for a host, which finds it free also when it comes back.
func freePort(t *testing.T) string {
	t.Helper()
	addr, err := loopback.Free()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func (p *process) command(args ...string) *exec.Cmd {
	p.t.Helper()
	how := []string{"--dev", "--data-dir", p.dir}
	if p.config != "" {
		how = []string{"--config", p.config}
	}
	cmd := exec.Command(binary(p.t), append(append(how, "--grpc-listen", p.grpc, "--http-listen", p.http,
		"--heartbeat", "500ms", "--restart-grace", "5s"), append(p.args, args...)...)...)
	cmd.Env = append(os.Environ(), p.env...)
	return cmd
}

// start starts the host and waits until it serves.
func (p *process) start() {
	p.t.Helper()
	p.spawn()
	p.ready()
}

// ready waits until it serves.
func (p *process) ready() {
	p.t.Helper()
	until(p.t, "the host to serve", func() bool {
		select {
		case <-p.exited:
			p.t.Fatalf("the host ended at its start: %v", p.cmd.ProcessState)
		default:
		}
		return p.serves()
	})
}

// serves reports whether this very process has said that it does.
func (p *process) serves() bool {
	text, err := os.ReadFile(filepath.Join(p.dir, "host.json"))
	var where struct{ PID int }
	return err == nil && json.Unmarshal(text, &where) == nil && where.PID == p.cmd.Process.Pid
}

func (p *process) spawn() {
	p.t.Helper()
	p.cmd = p.command()
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited, cmd := make(chan struct{}), p.cmd
	p.exited = exited
	go func() { _ = cmd.Wait(); close(exited) }()
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// signal sends s and returns the exit code.
func (p *process) signal(s syscall.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		p.t.Fatalf("the host has not ended 30 s after %v", s)
	}
	return p.cmd.ProcessState.ExitCode()
}

// refuse runs the host to its end, which has to come by itself.
func (p *process) refuse() (code int, stderr string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := p.command("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-done
		p.t.Fatalf("the host runs where it should have refused:\n%s", out.String())
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// ledger reads a dead host's audit chain and demands that its records agree.
func (p *process) ledger() (l *ledger) {
	p.t.Helper()
	read := func(tx store.ReadTx, log *audit.Log) {
		l = readLedger(p.t, tx, log)
		l.agrees(p.t, tx)
	}
	if p.look != nil {
		p.look(read)
	} else {
		inspect(p.t, p.dir, read)
	}
	return l
}

func (p *process) dial() *grpc.ClientConn {
	p.t.Helper()
	target, options := p.grpc, []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(fastRetry)}
	if len(p.peers) > 0 {
		r := manual.NewBuilderWithScheme("hosts")
		state := resolver.State{Addresses: []resolver.Address{{Addr: p.grpc}}}
		for _, peer := range p.peers {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: peer})
		}
		r.InitialState(state)
		options = append(options, grpc.WithResolvers(r))
		target = r.Scheme() + ":///"
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// patience is how long is waited for what has to happen: the tests of this package run
// beside one another, and others beside them.
const patience = 3 * time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// children are the processes that p started, by their command lines' marks.
func plugins(t *testing.T, conn *grpc.ClientConn) (pids []int) {
	t.Helper()
	list, err := donav1.NewHostAdminClient(conn).ListPlugins(context.Background(), &donav1.ListPluginsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Plugins {
		if s.Pid > 0 {
			pids = append(pids, int(s.Pid))
		}
	}
	return pids
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
