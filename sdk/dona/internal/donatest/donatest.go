// Package donatest runs a real dona-host for the tests of the SDK's adapters: a
// process of its own, built from this module, on loopback and a folder that the
// test owns.
package donatest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// Main is the TestMain of packages that start hosts: it checks that no goroutine is
// left and removes the built program.
func Main(m *testing.M) {
	code := m.Run()
	if name, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(name))
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// program builds the host once for all tests of a package.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "dona-host-test-*")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "dona-host")
	if out, err := exec.Command("go", "build", "-o", name, "github.com/dodona-project/dodona/cmd/dona-host").CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build dona-host: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return name, nil
})

// Host is a host that runs until the test ends.
type Host struct {
	Address string // of its gRPC server
	Admin   donav1.ControlPlaneClient

	stop func()
}

// Stop ends the host before its test does.
func (h *Host) Stop() { h.stop() }

// Start starts a host with heartbeats of half a second.
func Start(t testing.TB) *Host {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	log := &lockedBuffer{}
	cmd := exec.Command(name, "--dev", "--data-dir", dir, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--heartbeat", "500ms")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("the host's log:\n%s", log)
		}
	})
	var where struct {
		GRPC string
		PID  int
	}
	Until(t, "the host serves", func() bool {
		select {
		case <-exited:
			t.Fatalf("the host ended at its start: %v\n%s", cmd.ProcessState, log)
		default:
		}
		text, err := os.ReadFile(filepath.Join(dir, "host.json"))
		return err == nil && json.Unmarshal(text, &where) == nil && where.PID == cmd.Process.Pid
	})
	conn, err := grpc.NewClient(where.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Host{Address: where.GRPC, Admin: donav1.NewControlPlaneClient(conn), stop: stop}
}

// Dial makes a client that lives until the test ends and reports often.
func (h *Host) Dial(t testing.TB, opts ...dona.Option) *dona.Client {
	t.Helper()
	opts = append([]dona.Option{dona.WithoutCache(), dona.WithReportInterval(50 * time.Millisecond)}, opts...)
	c, err := dona.Dial(t.Context(), h.Address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Register announces an endpoint and waits until the host has it.
func Register(t testing.TB, c *dona.Client, e dona.OwnEndpoint) *dona.Registration {
	t.Helper()
	r, err := c.Register(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// Status returns what the host says of a service, nothing when it does not know it.
func (h *Host) Status(t testing.TB, service string) *donav1.StatusReply {
	s, err := h.Admin.GetStatus(t.Context(), &donav1.GetStatusRequest{Service: service})
	if err != nil {
		return &donav1.StatusReply{}
	}
	return s
}

// patience is a wait that only a hang reaches.
const patience = time.Minute

// Until waits for a condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
