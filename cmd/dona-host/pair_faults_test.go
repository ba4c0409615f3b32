//go:build faults

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// crowd is 50 SDK clients that know both hosts and make 200 decisions a second, and
// watchers of each host that look at every version.
type crowd struct {
	p        *pair
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	problems problems
	sums     *sums
	watchers []*watcher // those of host 0 first
	clients  []*dona.Service

	decisions, failed atomic.Int64
	acked             []string // what lives has set, and a host has acknowledged
}

const (
	crowdClients   = 50
	crowdEndpoints = 10 // of each of two variants, at each host at first
)

func newCrowd(p *pair) *crowd {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{p: p, cancel: cancel, problems: make(problems, 100), sums: newSums()}
	p.t.Cleanup(c.end)
	for i, h := range p.hosts {
		// Endpoints move when their host breaks their streams; watchers stay.
		c.wg.Go(fleet(ctx, donav1.NewControlPlaneClient(h.dial()), fmt.Sprint("v", i+1), crowdEndpoints).Wait)
		conn := donav1.NewControlPlaneClient(p.alone(i))
		for n := range 3 {
			w := &watcher{problems: c.problems, least: crowdEndpoints, look: c.sums.look(i)}
			c.watchers = append(c.watchers, w)
			c.wg.Go(func() { w.run(ctx, conn, fmt.Sprintf("h%d-%d", i, n)) })
		}
	}
	c.settled("all endpoints at first")
	for n := range crowdClients {
		client, err := dona.Dial(ctx, p.hosts[0].grpc+","+p.hosts[1].grpc, dona.WithoutCache())
		if err != nil {
			p.t.Fatal(err)
		}
		svc := client.Service("web")
		if err := svc.Ready(ctx); err != nil {
			p.t.Fatal(err)
		}
		c.clients = append(c.clients, svc)
		c.wg.Go(func() {
			defer func() { _ = client.Close() }()
			newest := uint64(0)
			for i := 0; ctx.Err() == nil; i++ {
				pick, err := svc.Pick(ctx, dona.Request{Unit: fmt.Sprint("user-", n, "-", i)})
				switch {
				case err == nil:
					pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond})
					if pick.Decision.ConfigVersion < newest {
						c.problems.add("client %d decides by version %d after %d", n, pick.Decision.ConfigVersion, newest)
					}
					newest = pick.Decision.ConfigVersion
				case ctx.Err() == nil:
					c.failed.Add(1)
					c.problems.add("decision of client %d: %v", n, err)
				}
				c.decisions.Add(1)
				pause(ctx, 250*time.Millisecond)
			}
		})
	}
	return c
}

// settled waits until the watchers of every host that runs see all endpoints.
func (c *crowd) settled(what string, away ...int) {
	c.p.t.Helper()
	until(c.p.t, what, func() bool {
		for n, w := range c.watchers {
			if len(away) > 0 && n/3 == away[0] {
				continue
			}
			if w.seen.Load() != 2*crowdEndpoints {
				return false
			}
		}
		return true
	})
}

// lives waits for decisions and, with a change made at a host, for the watchers of
// every host that runs to see it. It returns how long the change took to the last.
func (c *crowd) lives(what string, at int, away ...int) time.Duration {
	c.p.t.Helper()
	before := c.decisions.Load()
	until(c.p.t, "decisions "+what, func() bool { return c.decisions.Load() > before+100 })
	versions := make([]uint64, len(c.watchers))
	for n, w := range c.watchers {
		versions[n] = w.version.Load()
	}
	client := donav1.NewControlPlaneClient(c.p.alone(at))
	until(c.p.t, "a change to be taken "+what, func() bool { return c.change(client) == nil })
	began := time.Now()
	until(c.p.t, "every watcher to see a change "+what, func() bool {
		for n, w := range c.watchers {
			if (len(away) == 0 || n/3 != away[0]) && w.version.Load() <= versions[n] {
				return false
			}
		}
		return true
	})
	return time.Since(began)
}

// change makes a change at a host, which only hard writes can take.
func (c *crowd) change(client donav1.ControlPlaneClient) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	value := fmt.Sprint("n", time.Now().UnixNano())
	_, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "alive", RolloutVariant: value}}, grpc.WaitForReady(true))
	if err == nil {
		c.acked = append(c.acked, value)
	}
	return err
}

// checked has a host check the store while everything goes on, as dona store check
// does.
func (c *crowd) checked(at int) {
	c.p.t.Helper()
	until(c.p.t, "the store to be checked", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		r, err := donav1.NewHostAdminClient(c.p.alone(at)).CheckStore(ctx, &donav1.CheckStoreRequest{}, grpc.WaitForReady(true))
		for _, problem := range r.GetProblems() {
			c.p.t.Errorf("store check: %s", problem)
		}
		return err == nil
	})
}

// holds ends everything and demands that no change that was acknowledged is lost, and
// that records and audit chain agree.
func (c *crowd) holds() {
	c.p.t.Helper()
	c.end()
	for _, h := range c.p.hosts {
		h.kill()
	}
	l := c.p.hosts[0].ledger()
	for _, value := range c.acked {
		if n := strings.Count(" "+strings.Join(l.settings["alive"], " ")+" ", " "+value+" "); n != 1 {
			c.p.t.Errorf("the change %s was acknowledged and is in the audit chain %d times", value, n)
		}
	}
	c.p.t.Logf("%d decisions, %d failed; %d versions; %d changes acknowledged, of which the chain has %d", c.decisions.Load(), c.failed.Load(),
		len(c.sums.seen), len(c.acked), len(l.settings["alive"]))
}

// status is what a host says of itself, and why not in its StoreState.
func (p *pair) status(i int) *donav1.HostStatus {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	h, err := donav1.NewHostAdminClient(p.alone(i)).GetHost(ctx, &donav1.GetHostRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return &donav1.HostStatus{StoreState: err.Error()}
	}
	return h
}

// moved waits until no client is at a host, and all have what its other has.
func (c *crowd) moved(what string, from int) {
	c.p.t.Helper()
	to := c.p.hosts[1-from].grpc
	began := time.Now()
	until(c.p.t, what, func() bool {
		newest := c.watchers[3*(1-from)].version.Load()
		for _, svc := range c.clients {
			if now := svc.Status(); now.Host != to || now.Stale || now.Version < newest {
				return false
			}
		}
		return true
	})
	c.p.t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
}

// end stops it all and reports what went wrong.
func (c *crowd) end() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	c.wg.Wait()
	c.cancel = nil
	if n := c.failed.Load(); n > 0 {
		c.p.t.Errorf("%d of %d decisions failed", n, c.decisions.Load())
	}
	c.problems.report(c.p.t)
}

// TestFaultsUnderTwoHosts (R1, R4, H3): kill -9 and SIGSTOP of either host, and of
// their Redis: no decision fails, no version falls or has two contents, and a change
// made at one host is soon at the other's watchers.
func TestFaultsUnderTwoHosts(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.start()
	c := newCrowd(p)

	var took []time.Duration
	for n := range 50 {
		took = append(took, c.lives(fmt.Sprint("in peace, ", n), n%2))
	}
	t.Logf("a change is with all watchers of both hosts after %v (p50), %v (p99); 500 ms is the goal", quantile(took, .5).Round(time.Millisecond), quantile(took, .99).Round(time.Millisecond))
	if p50 := quantile(took, .5); p50 > 5*time.Second {
		t.Errorf("a change takes %v", p50)
	}
	for i, h := range p.hosts {
		what := fmt.Sprintf("while host %d is dead", i)
		h.kill()
		c.lives(what, 1-i, i)
		c.moved(fmt.Sprintf("all clients have left host %d, which is dead", i), i)
		c.settled("the endpoints to move to the other host", i)
		h.start()
		t.Logf("%s, and after: a change is seen after %v", what, c.lives("after its restart", i).Round(time.Millisecond))
		c.settled("all endpoints after a restart")
	}
	p.server.Kill()
	before := c.decisions.Load()
	until(t, "decisions while Redis is dead", func() bool { return c.decisions.Load() > before+300 })
	p.server.Restart()
	t.Logf("after a restart of Redis a change is seen after %v", c.lives("after a restart of Redis", 0).Round(time.Millisecond))
	c.settled("all endpoints after a restart of Redis")

	p.server.Stop()
	before = c.decisions.Load()
	until(t, "decisions while Redis stands still", func() bool { return c.decisions.Load() > before+600 })
	p.server.Continue()
	t.Logf("after Redis stood still a change is seen after %v", c.lives("after Redis stood still", 1).Round(time.Millisecond))
	c.settled("all endpoints after Redis stood still")

	for i, h := range p.hosts {
		if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("while host %d stands still", i)
		c.lives(what, 1-i, i)
		pause(context.Background(), 3*time.Second) // two lease times: its endpoints are not heard
		c.lives(what, 1-i, i)
		if err := h.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, and after: a change is seen after %v", what, c.lives("after it goes on", i).Round(time.Millisecond))
		c.settled("all endpoints after it goes on")
	}
	c.checked(0)
	c.holds()
}

// TestSlowRedis (R4): the line between the hosts and their Redis is slow, or thin, or
// both. No decision fails, no version falls, and changes are taken soon after.
func TestSlowRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	proxies := [2]*redistest.Proxy{redistest.StartProxy(t, server.Addr), redistest.StartProxy(t, server.Addr)}
	p := newPairAt(t, "pair", func(i int) []string { return []string{"--store", "redis://" + proxies[i].Addr} })
	p.master = func() *redistest.Server { return server }
	p.start()
	c := newCrowd(p)
	for _, tt := range []struct {
		name    string
		latency time.Duration
		rate    int
	}{{"200 ms of latency", 200 * time.Millisecond, 0}, {"10 KiB/s", 0, 10 << 10}, {"both", 200 * time.Millisecond, 10 << 10}} {
		c.lives("before "+tt.name, 0)
		for _, proxy := range proxies {
			proxy.Slow(tt.latency, tt.rate)
		}
		slow := time.Now()
		until(t, "five seconds of "+tt.name, func() bool { return time.Since(slow) > 5*time.Second })
		before := c.decisions.Load()
		until(t, "decisions with "+tt.name, func() bool { return c.decisions.Load() > before+200 })
		for _, proxy := range proxies {
			proxy.Slow(0, 0)
		}
		good := time.Now()
		until(t, "both hosts to use their Redis after "+tt.name, func() bool { return p.status(0).StoreState == "ready" && p.status(1).StoreState == "ready" })
		ready := time.Since(good)
		c.lives("after "+tt.name, 1)
		t.Logf("%s: both hosts are ready %v after the line is good, and a change is seen after %v; 2 s is the goal", tt.name,
			ready.Round(time.Millisecond), time.Since(good).Round(time.Millisecond))
		c.settled("all endpoints after " + tt.name)
	}
	c.checked(0)
	c.holds()
}

// TestRedisDiskFull (R8): the disk of Redis's log is full for longer than leases last,
// so that it takes no writes. Streams and decisions go on, changes are refused at once,
// and all goes on by itself when there is space.
func TestRedisDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=700"); err != nil {
		t.Skipf("needs the right to mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	server := redistest.Start(t, "appendonly", "yes", "appendfsync", "everysec", "auto-aof-rewrite-percentage", "0", "dir", dir)
	p := newPairAt(t, "pair", func(int) []string { return []string{"--store", "redis://" + server.Addr} })
	p.master = func() *redistest.Server { return server }
	p.start()
	if d := p.status(0).Durability; !strings.HasPrefix(d, "not durable: appendfsync of the server is everysec") {
		t.Errorf("durability: %s", d)
	}
	c := newCrowd(p)
	c.lives("before the disk is full", 0)
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 4096, 1} { // to the last byte
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	_ = f.Close()
	client := donav1.NewControlPlaneClient(p.alone(0))
	var took time.Duration
	until(t, "changes to be refused", func() bool {
		began := time.Now()
		err = c.change(client)
		took = time.Since(began)
		return status.Code(err) == codes.Unavailable
	})
	t.Logf("a change was refused after %v (100 ms is the goal): %v", took.Round(time.Microsecond), err)
	full := time.Now()
	until(t, "twice the time of a lease", func() bool { return time.Since(full) > 3*time.Second })
	before := c.decisions.Load()
	until(t, "decisions while the disk is full", func() bool { return c.decisions.Load() > before+400 })
	late := &watcher{problems: c.problems, least: 2 * crowdEndpoints, look: checkFrame}
	ctx, leave := context.WithCancel(context.Background())
	c.wg.Go(func() { late.run(ctx, client, "late") })
	until(t, "a client that comes while the disk is full", func() bool { return late.seen.Load() == 2*crowdEndpoints })
	leave()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	free := time.Now()
	c.lives("with space again", 1)
	t.Logf("a change is seen %v after there is space; 5 s is the goal", time.Since(free).Round(time.Millisecond))
	c.settled("all endpoints with space again")
	c.checked(0)
	c.holds()
}

// TestRedisLosesItsData (R2, R3): after FLUSHALL, after a restart without the log, and
// after one with an older copy of it, both hosts say so, nobody is shown anything empty
// or older, and adopting at either host is the only way on, for both.
func TestRedisLosesItsData(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.start()
	c := newCrowd(p)
	admins := [2]donav1.HostAdminClient{donav1.NewHostAdminClient(p.alone(0)), donav1.NewHostAdminClient(p.alone(1))}
	state := func(i int) string { return p.status(i).StoreState }
	log, old := filepath.Join(p.server.Dir, "appendonlydir"), filepath.Join(t.TempDir(), "old")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for round, loss := range []struct {
		found string // what hosts say of it
		lose  func()
	}{
		{"it is empty", func() { p.server.Do("FLUSHALL") }},
		{"it is empty", func() {
			p.server.Kill()
			must(os.RemoveAll(log))
			p.server.Restart()
		}},
		{"it was rewound", func() {
			p.server.Kill()
			must(os.RemoveAll(log))
			must(os.CopyFS(log, os.DirFS(old)))
			p.server.Restart()
		}},
	} {
		foreign := func() bool {
			for i := range admins {
				if s := state(i); !strings.HasPrefix(s, "foreign: ") || !strings.Contains(s, loss.found) {
					return false
				}
			}
			return true
		}
		at := round % 2
		c.lives("before a copy is made", at)
		p.server.Stop() // so that the copy is of one moment
		must(os.RemoveAll(old))
		must(os.CopyFS(old, os.DirFS(log)))
		p.server.Continue()
		c.lives("before the loss", at)
		until(t, "quiet", func() bool { return c.watchers[0].version.Load() == c.watchers[5].version.Load() })
		versions := make([]uint64, len(c.watchers))
		for n, w := range c.watchers {
			versions[n] = w.version.Load()
		}
		loss.lose()
		lost := time.Now()
		until(t, "both hosts to notice", foreign)
		t.Logf("noticed after %v; 1 s is the goal", time.Since(lost).Round(time.Millisecond))
		before := c.decisions.Load()
		until(t, "decisions without a store", func() bool { return c.decisions.Load() > before+400 })
		for n, w := range c.watchers {
			if w.version.Load() != versions[n] || w.seen.Load() != 2*crowdEndpoints {
				t.Errorf("watcher %d is shown version %d with %d endpoints by a host whose store is foreign", n, w.version.Load(), w.seen.Load())
			}
		}
		if !foreign() {
			t.Errorf("the hosts went on by themselves: %s; %s", state(0), state(1))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		h, err := admins[at].AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: fmt.Sprint("round ", round)})
		cancel()
		if err != nil || h.StoreState != "ready" {
			t.Fatalf("adopting: %v, %v", h, err)
		}
		adopted := time.Now()
		until(t, "the other host to go on", func() bool { return state(1-at) == "ready" })
		c.lives("after the adoption", 1-at)
		c.settled("all endpoints after the adoption")
		t.Logf("all clients are on the new generation after %v", time.Since(adopted).Round(time.Millisecond))
	}
	c.end()
	for _, h := range p.hosts {
		h.kill()
	}
	p.hosts[0].ledger()
}

// TestStopInTheMiddleOfAStep (H3, C6): a host is stopped in the middle of a step of a
// rollout; the other takes that step and the next, and then the first goes on. What it
// had begun is refused: each step is in the audit chain once, the chain has no fork,
// and no version falls.
func TestStopInTheMiddleOfAStep(t *testing.T) {
	for _, point := range []string{"rollout.before-step", "rollout.inside-step"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.hosts[0].env = []string{"DONA_CRASH_POINT=" + point + ":1:stop"}
			p.start()
			s := startStopped(t, p)
			defer s.end()
			s.goesOn(s.rollout())
			s.end()
			p.hosts[0].ledger() // each step from where the last one left
		})
	}
}

// stopped is a pair whose first host stands still at its crash point, in a step of a
// rollout, with clients of both.
type stopped struct {
	t      *testing.T
	p      *pair
	client donav1.ControlPlaneClient // of the other host
	wrong  problems
	cancel context.CancelFunc
	all    sync.WaitGroup
}

var stoppedSteps = []uint32{10, 20, 30, 40, 50, 100}

// startStopped starts a rollout and waits until the first host stands still in it.
func startStopped(t *testing.T, p *pair) *stopped {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &stopped{t: t, p: p, client: donav1.NewControlPlaneClient(p.alone(1)), wrong: make(problems, 100), cancel: cancel}
	sums, first := newSums(), donav1.NewControlPlaneClient(p.alone(0))
	for _, v := range []string{"v1", "v2"} {
		s.all.Go(fleet(ctx, s.client, v, 3).Wait)
	}
	for i := range p.hosts {
		w := &watcher{problems: s.wrong, look: sums.look(i)}
		conn := donav1.NewControlPlaneClient(p.alone(i))
		s.all.Go(func() { w.run(ctx, conn, fmt.Sprint("c", i)) })
		until(t, "the endpoints", func() bool { return w.seen.Load() == 6 })
	}
	s.all.Go(func() {
		for n := uint64(1); ctx.Err() == nil; n++ {
			_, _ = s.client.ReportStats(ctx, &donav1.StatsBatch{ReporterId: "r", Sequence: n, Calls: []*donav1.CallOutcome{
				{Service: "web", Variant: "v2", EndpointId: "v2-000", Success: true, LatencyUs: 1000, UnixMs: time.Now().UnixMilli(), Count: 5}}})
			pause(ctx, 50*time.Millisecond)
		}
	})
	halted := func() bool { return stateOf(p.hosts[0].cmd.Process.Pid) == 'T' }
	until(t, "the host to stop in a step", func() bool {
		if halted() {
			return true
		}
		// The host that takes the call looks at once, and takes the first step.
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, _ = first.StartRollout(ctx, &donav1.StartRolloutRequest{
			Service: "web", CanaryVariant: "v2", StableVariant: "v1", Steps: stoppedSteps, StepSeconds: 1,
			MaxErrorPercent: 50, MinRequests: 1,
		})
		return halted()
	})
	return s
}

func (s *stopped) rollout() (r *donav1.RolloutStatus) {
	s.t.Helper()
	until(s.t, "the rollout's state", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		reply, err := s.client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		r = reply.GetRollout()
		return err == nil
	})
	return r
}

// goesOn waits until the other host has taken two steps since this one, lets the first
// go on, and waits for the end of the rollout.
func (s *stopped) goesOn(step *donav1.RolloutStatus) {
	s.t.Helper()
	until(s.t, "the other host to take two steps", func() bool {
		now := s.rollout()
		return now.Id != step.Id || now.State > donav1.RolloutStatus_STATE_PAUSED || now.StepIndex >= step.StepIndex+2
	})
	if err := s.p.hosts[0].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("stopped at %s of step %d, continued at step %d", step.State, step.StepIndex, s.rollout().StepIndex)
	until(s.t, "the rollout to be promoted", func() bool { return s.rollout().State == donav1.RolloutStatus_STATE_PROMOTED })
}

// end ends clients and hosts.
func (s *stopped) end() {
	s.cancel()
	s.all.Wait()
	s.wrong.report(s.t)
	for _, h := range s.p.hosts {
		h.kill()
	}
}

// stateOf is a process's state as the kernel has it: T is stopped.
func stateOf(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[0]
}

// TestRestartStorm (R10): both hosts and their Redis die and come back in turn, under
// everything a host has to do at once. Nothing acknowledged is lost, nothing is there
// twice, and no step of a rollout is taken twice.
func TestRestartStorm(t *testing.T) {
	t.Parallel()
	rounds := 20
	if os.Getenv("REPEAT") != "" {
		rounds = 60
	}
	p := newPair(t)
	p.start()
	tr := begin(p.hosts[0], load{endpoints: 4, flags: 1, watchers: 3})
	tr.settled("every client to see every endpoint", 8)
	rng := rand.New(rand.NewPCG(7, 11))
	for round := range rounds {
		pause(context.Background(), time.Duration(200+rng.IntN(1500))*time.Millisecond)
		switch what := round % 3; what {
		case 2:
			p.server.Kill()
			p.server.Restart()
		default:
			p.hosts[what].kill()
			p.hosts[what].start()
		}
	}
	before := tr.rollouts()
	until(t, "two rollouts to end after the storm", func() bool { return tr.rollouts() >= before+2 })
	tr.settled("every client to see every endpoint after the storm", 8)
	tr.end()
	for _, h := range p.hosts {
		h.kill()
	}
	tr.holds(p.hosts[0])
}
