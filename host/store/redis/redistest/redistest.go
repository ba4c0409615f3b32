// Package redistest starts real Redis servers for tests, on loopback, with their
// data in a directory of the test's: one server, or a master with replicas and
// Sentinels. A test needs the programs redis-server and redis-sentinel on the PATH.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// patience is how long a server may take for what it always does. Sentinels that find
// the machine too busy do nothing for 30 s at a time.
const patience = 3 * time.Minute

// Safe are the settings of a server that loses nothing it has acknowledged.
var Safe = []string{"appendonly", "yes", "appendfsync", "always", "maxmemory-policy", "noeviction"}

// Server is one process of Redis.
type Server struct {
	Addr string // host:port
	Dir  string

	t        testing.TB
	door     string // port at which the members of a group find it
	program  string
	settings []string
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has ended
}

// Start starts a server with these settings, given as name and value in turn. It
// is ended with the test.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return start(t, "redis-server", nil, settings...)
}

// start starts a process, in a network if there is one.
func start(t testing.TB, program string, n *Network, settings ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%v: install it with make redis", err)
	}
	s := &Server{t: t, Dir: t.TempDir(), program: program, settings: settings}
	t.Cleanup(s.Kill)
	// A server that is started again has to find its port free.
	for range 5 {
		s.Addr = freeAddr(t)
		if s.door = s.Port(); n != nil {
			s.settings = append(n.member(s), settings...)
		}
		if s.run() {
			return s
		}
	}
	t.Fatalf("%s does not start: %s", program, s.Log())
	return nil
}

func freeAddr(t testing.TB) string {
	t.Helper()
	addr, err := loopback.Free()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Port of the server.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// run starts the process and waits until it answers, also if only to say that it
// is loading.
func (s *Server) run() bool {
	s.t.Helper()
	conf := filepath.Join(s.Dir, "redis.conf")
	if _, err := os.Stat(conf); err != nil || s.program != "redis-sentinel" {
		var text strings.Builder
		fmt.Fprintf(&text, "port %s\nbind 127.0.0.1\ndir %s\nlogfile %s\ndaemonize no\n", s.Port(), s.Dir, filepath.Join(s.Dir, "log"))
		if s.program == "redis-server" {
			text.WriteString("save \"\"\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n")
		}
		for i := 0; i+1 < len(s.settings); i += 2 {
			fmt.Fprintf(&text, "%s %s\n", s.settings[i], s.settings[i+1])
		}
		if err := os.WriteFile(conf, []byte(text.String()), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	cmd := exec.Command(s.program, conf)
	cmd.SysProcAttr = endsWithUs()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if s.answers() {
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false
}

// answers reports whether the process answers, with an error too.
func (s *Server) answers() bool {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	n, _ := c.Read(make([]byte, 64))
	return n > 0
}

// Client returns a client of the test's own.
func (s *Server) Client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 100,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Do sends one command, which must succeed, and returns its answer.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // as it is
		s.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// Set changes a setting for the next Restart.
func (s *Server) Set(name, value string) {
	for i := 0; i+1 < len(s.settings); i += 2 {
		if s.settings[i] == name {
			s.settings = append([]string(nil), s.settings...)
			s.settings[i+1] = value
			return
		}
	}
	s.settings = append(s.settings[:len(s.settings):len(s.settings)], name, value)
}

// Kill ends the process at once, as a crash does.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// Restart starts the process again on its address, after Kill.
func (s *Server) Restart() {
	s.t.Helper()
	if !s.run() {
		s.t.Fatalf("%s does not start again: %s", s.program, s.Log())
	}
}

// Stop halts the process without ending it, until Continue.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

// Log is the end of what the process has logged.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	if len(text) > 2000 {
		text = text[len(text)-2000:]
	}
	return string(text)
}

// Group is a master with replicas, and three Sentinels over them.
type Group struct {
	Servers   []*Server // the first is the master at the start
	Sentinels []*Server
	Name      string
}

// StartGroup starts a master with so many replicas, all connected, and three
// Sentinels that take it for dead after downAfter.
func StartGroup(t testing.TB, replicas int, downAfter time.Duration, settings ...string) *Group {
	t.Helper()
	return startGroup(t, replicas, downAfter, nil, settings)
}

func startGroup(t testing.TB, replicas int, downAfter time.Duration, n *Network, settings []string) *Group {
	t.Helper()
	g := &Group{Name: "dona"}
	master := start(t, "redis-server", n, settings...)
	g.Servers = append(g.Servers, master)
	for range replicas {
		g.Servers = append(g.Servers, start(t, "redis-server", n, append([]string{"replicaof", "127.0.0.1 " + master.door}, settings...)...))
	}
	g.AwaitReplicas(t, master, replicas)
	for range 3 {
		g.Sentinels = append(g.Sentinels, start(t, "redis-sentinel", n,
			"sentinel", "monitor "+g.Name+" 127.0.0.1 "+master.door+" 2",
			"sentinel", fmt.Sprintf("down-after-milliseconds %s %d", g.Name, downAfter.Milliseconds()),
			"sentinel", fmt.Sprintf("failover-timeout %s %d", g.Name, max(4*downAfter, 4*time.Second).Milliseconds()),
			"sentinel", "parallel-syncs "+g.Name+" 2"))
	}
	for _, s := range g.Sentinels {
		Await(t, "the Sentinels know each other and the replicas", func() bool {
			m := g.master(t, s)
			return m["num-other-sentinels"] == "2" && m["num-slaves"] == strconv.Itoa(replicas)
		})
	}
	return g
}

// AwaitReplicas waits until a master has so many replicas that are connected and
// in step.
func (g *Group) AwaitReplicas(t testing.TB, master *Server, n int) {
	t.Helper()
	c := master.Client()
	defer c.Close()
	Await(t, "the replicas are connected", func() bool {
		info, err := c.Info(context.Background(), "replication").Result()
		return err == nil && strings.Count(info, "state=online") >= n
	})
}

// AwaitWhole waits until whoever is the master has all others as its replicas.
func (g *Group) AwaitWhole(t testing.TB) {
	t.Helper()
	Await(t, "the replicas are connected to the master", func() bool {
		c := g.Master(t).Client()
		defer c.Close()
		info, err := c.Info(context.Background(), "replication").Result()
		return err == nil && strings.Count(info, "state=online") >= len(g.Servers)-1
	})
}

// Return restarts a server that was killed, as a replica of whoever is the master now.
func (g *Group) Return(t testing.TB, s *Server) {
	t.Helper()
	s.Set("replicaof", "127.0.0.1 "+g.Master(t).door)
	s.Restart()
}

func (g *Group) master(t testing.TB, sentinel *Server) map[string]string {
	t.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialTimeout: 10 * time.Second})
	defer c.Close()
	m, err := c.Master(context.Background(), g.Name).Result()
	if err != nil {
		return nil
	}
	return m
}

// Master is the server that the first Sentinel that runs names as the master.
func (g *Group) Master(t testing.TB) *Server {
	t.Helper()
	for _, sentinel := range g.Sentinels {
		if sentinel.cmd == nil {
			continue
		}
		if s := g.MasterBy(t, sentinel); s != nil {
			return s
		}
	}
	t.Fatal("no Sentinel names a master")
	return nil
}

// MasterBy is the server that a Sentinel names as the master, nil when it names none.
func (g *Group) MasterBy(t testing.TB, sentinel *Server) *Server {
	t.Helper()
	port := g.master(t, sentinel)["port"]
	for _, s := range g.Servers {
		if s.door == port {
			return s
		}
	}
	return nil
}

// URL is the group's address for the store.
func (g *Group) URL() string {
	var addrs []string
	for _, s := range g.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + g.Name + "/0"
}

// Await waits until a condition holds. The time is for what is broken only.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for: %s", patience, what)
		}
	}
}
