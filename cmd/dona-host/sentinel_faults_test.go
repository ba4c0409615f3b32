//go:build faults

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// newPairOver makes a pair over Sentinels, whose hard writes wait for so many replicas.
func newPairOver(t *testing.T, g *redistest.Group, cluster string, replicas int) *pair {
	t.Helper()
	p := newPairAt(t, cluster, func(int) []string {
		return []string{"--store", g.URL(), "--redis-replicas", fmt.Sprint(replicas)}
	})
	p.master = func() *redistest.Server { return g.Master(t) }
	return p
}

// newPairIn makes a pair in a network, where its hosts are called near and far.
func newPairIn(t *testing.T, n *redistest.Network, replicas int) *pair {
	t.Helper()
	p := newPairAt(t, "pair", func(i int) []string {
		return []string{"--store", n.Join([]string{"near", "far"}[i]), "--redis-replicas", fmt.Sprint(replicas)}
	})
	p.master = func() *redistest.Server { return n.Master(t) }
	return p
}

// quiet waits until the watchers of all hosts are at one version.
func (c *crowd) quiet() {
	c.p.t.Helper()
	until(c.p.t, "all watchers to be at one version", func() bool {
		for _, w := range c.watchers {
			if w.version.Load() != c.watchers[0].version.Load() {
				return false
			}
		}
		return true
	})
}

// decide waits for so many decisions more.
func (c *crowd) decide(what string, n int64) {
	c.p.t.Helper()
	before := c.decisions.Load()
	until(c.p.t, "decisions "+what, func() bool { return c.decisions.Load() >= before+n })
}

// refused demands that a change is refused at a host, or its outcome called unknown.
func (c *crowd) refused(at int, what string) {
	c.p.t.Helper()
	err := c.change(donav1.NewControlPlaneClient(c.p.alone(at)))
	if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
		c.p.t.Errorf("a change %s: %v, want that it is refused", what, err)
	}
}

// refusesHard is what hosts say of themselves while hard writes wait for more replicas than
// are there.
const refusesHard = "hard writes are refused: they wait for "

// TestFailovers (S1, S2, S5, S6, S8): two hosts over Sentinels, 50 clients. The master
// is killed, stopped, moved twice; a replica is away, the count of replicas lowered on
// purpose; Sentinels go, some and all. No decision fails, no version falls, no
// acknowledged change is lost, and changes are refused while one could be.
func TestFailovers(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	p := newPairOver(t, g, "pair", 2)
	p.start()
	if d := p.status(0).Durability; d != "durable" {
		t.Errorf("durability: %s", d)
	}
	c := newCrowd(p)
	c.lives("in peace", 0)
	short := func(i int) bool { return strings.HasPrefix(p.status(i).StoreState, refusesHard) }
	recovered := func(what string) {
		t.Helper()
		g.AwaitWhole(t)
		took := c.lives("after "+what, 1)
		c.settled("all endpoints after " + what)
		t.Logf("after %s a change is seen after %v", what, took.Round(time.Millisecond))
	}
	rounds := 1
	if os.Getenv("REPEAT") != "" {
		rounds = 30
	}
	for range rounds { // S1
		old := g.Master(t)
		old.Kill()
		killed := time.Now()
		redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
		until(t, "both hosts to use it", func() bool { return short(0) && short(1) })
		t.Logf("S1: both hosts are on the new master %v after the old one was killed; down-after 1 s + 3 s is the goal", time.Since(killed).Round(time.Millisecond))
		c.refused(0, "with one replica of two")
		c.decide("with one replica of two", 200)
		old.Restart()
		recovered("kill -9 of the master")
	}

	// S2: what the old master is given after it goes on, nobody is told of.
	old := g.Master(t)
	old.Stop()
	stopped := time.Now()
	redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
	until(t, "both hosts to use it", func() bool { return short(0) && short(1) })
	t.Logf("S2: both hosts are on the new master %v after the old one was stopped", time.Since(stopped).Round(time.Millisecond))
	c.refused(1, "while the old master stands still")
	until(t, "eight seconds of it", func() bool { return time.Since(stopped) > 8*time.Second })
	old.Continue()
	recovered("SIGSTOP of the master")

	for range 2 { // S8
		old := g.Master(t)
		redistest.Await(t, "a failover to begin", func() bool {
			conn := g.Sentinels[0].Client()
			defer func() { _ = conn.Close() }()
			return conn.Do(context.Background(), "SENTINEL", "FAILOVER", g.Name).Err() == nil
		})
		redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
		c.decide("right after a failover", 50)
	}
	recovered("two failovers")

	// S5: a replica is away; the count is lowered on purpose, and raised again.
	var replica *redistest.Server
	for _, s := range g.Servers {
		if s != g.Master(t) {
			replica = s
		}
	}
	replica.Kill()
	until(t, "both hosts to miss the replica", func() bool { return short(0) && short(1) })
	c.refused(0, "without a replica")
	c.decide("without a replica", 200)
	c.settled("endpoints without a replica")
	count := func(n int) {
		for i, h := range p.hosts {
			h.kill()
			h.args[slices.Index(h.args, "--redis-replicas")+1] = fmt.Sprint(n)
			h.start()
			c.settled(fmt.Sprint("all endpoints after host ", i, " was restarted"))
		}
	}
	count(1)
	if d := p.status(0).Durability; !strings.HasPrefix(d, "not durable: hard writes wait for 1 of 2 replicas") {
		t.Errorf("durability with a lower count: %s", d)
	}
	c.lives("with a lower count", 0)
	g.Return(t, replica)
	g.AwaitWhole(t)
	count(2)
	recovered("the replica is back and the count is what it was")

	// S6: the master that is there goes on being used.
	kept := g.Master(t)
	for i, n := range []int{2, 1} { // first the majority, then the last
		for _, s := range g.Sentinels[:n] {
			if i == 0 {
				s.Kill()
			}
		}
		if i == 1 {
			g.Sentinels[2].Kill()
		}
		c.lives(fmt.Sprint("without Sentinels, ", i), i)
	}
	for _, s := range g.Sentinels {
		s.Restart()
	}
	recovered("the Sentinels were away")
	if now := g.Master(t); now != kept {
		t.Error("another master was made without a majority of Sentinels")
	}
	c.checked(1)
	c.holds()
	if got, want := p.counts(), []string{"2 to 1", "1 to 2"}; !slices.Equal(got, want) {
		t.Errorf("the audit chain of the hosts tells of the replicas' count %q, want %q", got, want)
	}
}

// counts are the changes of the replicas' count in the audit chain of dead hosts.
func (p *pair) counts() (changes []string) {
	p.look(func(tx store.ReadTx, _ *audit.Log) {
		lines, err := tx.ReadLog("audit/"+audit.HostChain, 1, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, line := range lines {
			var e struct {
				Kind   string
				Detail struct{ From, To string }
			}
			if err := json.Unmarshal(line.Payload, &e); err != nil {
				p.t.Fatal(err)
			}
			if e.Kind == "store.replicas" {
				changes = append(changes, e.Detail.From+" to "+e.Detail.To)
			}
		}
	})
	return changes
}

// TestHostsApart (S3, S4): the old master and one host are cut off from the rest, with
// one replica or without. The host there acknowledges no change and publishes nothing
// that the others do not know, goes on serving what it had, and is where the other is
// soon after the cut is healed.
func TestHostsApart(t *testing.T) {
	redistest.Partitions(t, func(t *testing.T, n *redistest.Network, replicas int) {
		p := newPairIn(t, n, 2)
		p.start()
		c := newCrowd(p)
		rounds := 1
		if os.Getenv("REPEAT") != "" {
			rounds = 30
		}
		for range rounds {
			apart(t, n, p, c, replicas)
		}
		c.rolled()
		c.checked(0)
		c.holds()
	})
}

func apart(t *testing.T, n *redistest.Network, p *pair, c *crowd, replicas int) {
	t.Helper()
	c.lives("before the cut", 0)
	// Somebody changes flags at the near host all the time.
	ctx, cancel := context.WithCancel(context.Background())
	near := donav1.NewControlPlaneClient(p.alone(0))
	var acks []time.Time
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			if c.change(near) == nil {
				acks = append(acks, time.Now())
			}
			pause(ctx, 20*time.Millisecond)
		}
	})
	// And a rollout takes a step each second. A step that only the near host knew would
	// give a version two contents.
	c.roll(near)
	pause(ctx, 300*time.Millisecond)
	old := n.Master(t)
	// A Sentinel on this side goes on naming the old master.
	side := []string{"near", old.Name(), n.Sentinels[0].Name()}
	for _, s := range n.Servers {
		if s != old && len(side) < 3+replicas {
			side = append(side, s.Name())
		}
	}
	n.Split(side...)
	cut := time.Now()
	redistest.Await(t, "another master", func() bool { return n.MasterBy(t, n.Sentinels[1]) != old })
	t.Logf("another master %v after the cut", time.Since(cut).Round(time.Millisecond))
	until(t, "both hosts to refuse hard writes", func() bool {
		return strings.HasPrefix(p.status(0).StoreState, refusesHard) && strings.HasPrefix(p.status(1).StoreState, refusesHard)
	})
	t.Logf("both hosts say that hard writes are refused %v after the cut", time.Since(cut).Round(time.Millisecond))
	c.decide("in the cut", 200)
	// Whoever comes to the near host now is given its last snapshot.
	late := &watcher{problems: c.problems, least: crowdEndpoints, look: checkFrame}
	lateCtx, leave := context.WithCancel(ctx)
	all.Go(func() { late.run(lateCtx, near, "late") })
	until(t, "a client that comes to the near host in the cut", func() bool { return late.seen.Load() >= crowdEndpoints })
	leave()
	cancel()
	all.Wait()
	if len(acks) == 0 {
		t.Error("no change was acknowledged before the cut")
	} else {
		last := acks[len(acks)-1].Sub(cut)
		t.Logf("the near host acknowledged its last change %v after the cut; 500 ms is the goal", last.Round(time.Millisecond))
		if last > 10*time.Second {
			t.Errorf("a host that is cut off acknowledges changes")
		}
	}
	n.Heal()
	healed := time.Now()
	until(t, "both hosts to be on one master", func() bool {
		a, b := p.status(0).StoreState, p.status(1).StoreState
		return a == b && n.MasterBy(t, n.Sentinels[0]) != old
	})
	t.Logf("the near host is on the new master %v after the cut was healed; 3 s is the goal", time.Since(healed).Round(time.Millisecond))
	n.AwaitWhole(t)
	t.Logf("both replicas are in step %v after it", time.Since(healed).Round(time.Millisecond))
	t.Logf("a change is seen after %v", c.lives("after the cut", 0).Round(time.Millisecond))
	c.settled("all endpoints after the cut")
}

// roll starts a rollout of whichever variant has no traffic, if none is under way.
func (c *crowd) roll(client donav1.ControlPlaneClient) {
	c.p.t.Helper()
	until(c.p.t, "a rollout to be under way", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, canary := range []string{"v2", "v1"} {
			_, _ = client.StartRollout(ctx, &donav1.StartRolloutRequest{Service: "web", CanaryVariant: canary, StableVariant: map[string]string{"v1": "v2", "v2": "v1"}[canary],
				Steps: []uint32{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, StepSeconds: 1, MaxErrorPercent: 50, MinRequests: 1})
		}
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.Rollout.GetState() == donav1.RolloutStatus_STATE_PROGRESSING
	})
}

// rolled waits until the rollout that is under way was promoted.
func (c *crowd) rolled() {
	c.p.t.Helper()
	client := donav1.NewControlPlaneClient(c.p.alone(1))
	until(c.p.t, "the rollout to be promoted", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.Rollout.GetState() == donav1.RolloutStatus_STATE_PROMOTED
	})
}

// TestReplicaThatLags (S9, S4): hard writes wait for one of two replicas, and the hosts
// call them not durable. The other replica, which lacks some, becomes the master: both
// hosts see that it was rewound, show nobody anything older, and go on when it is
// adopted.
func TestReplicaThatLags(t *testing.T) {
	t.Parallel()
	n := redistest.StartNetwork(t, 2, time.Second, redistest.Safe...)
	p := newPairIn(t, n, 1)
	p.start()
	for i := range p.hosts {
		if d := p.status(i).Durability; !strings.HasPrefix(d, "not durable: hard writes wait for 1 of 2 replicas") {
			t.Errorf("durability of host %d: %s", i, d)
		}
	}
	c := newCrowd(p)
	c.lives("before it lags", 0)
	master, lags, other := n.Servers[0], n.Servers[1], n.Servers[2]
	n.Cut(func(from, to string) bool {
		return from == master.Name() && to == lags.Name() || from == lags.Name() && to == master.Name()
	})
	n.Reset(master.Name(), lags.Name())
	c.lives("while a replica lags", 0)
	c.lives("while a replica lags still", 1)
	c.quiet()
	versions := make([]uint64, len(c.watchers))
	for i, w := range c.watchers {
		versions[i] = w.version.Load()
	}
	other.Kill()
	master.Kill()
	n.Heal()
	redistest.Await(t, "the replica that lags is the master", func() bool { return n.Master(t) == lags })
	until(t, "both hosts to see what it lacks", func() bool {
		a, b := p.status(0).StoreState, p.status(1).StoreState
		return strings.HasPrefix(a, "foreign: ") && strings.Contains(a, "rewound") && strings.HasPrefix(b, "foreign: ")
	})
	c.decide("without a store", 400)
	for i, w := range c.watchers {
		if w.version.Load() != versions[i] || w.seen.Load() != 2*crowdEndpoints {
			t.Errorf("watcher %d is shown version %d with %d endpoints by a host whose store is foreign, it had version %d", i, w.version.Load(), w.seen.Load(), versions[i])
		}
	}
	n.Return(t, other)
	n.Return(t, master)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h, err := donav1.NewHostAdminClient(p.alone(0)).AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: "the others are gone"})
	if err != nil {
		t.Fatalf("adopting: %v, %v", h, err)
	}
	n.AwaitWhole(t)
	c.acked = nil // given up with the adoption
	c.lives("after the adoption", 1)
	c.settled("all endpoints after the adoption")
	c.checked(0)
	c.holds()
}

// TestFailoverInAStep (S10): a host is stopped at each point of a step of a rollout,
// and the master dies; when there is another and all replicas are back, the other host
// takes steps, and the first goes on with what it had begun. Each step is in the audit
// chain once, from where the last one left.
func TestFailoverInAStep(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	for i, point := range []string{"rollout.before-step", "rollout.inside-step", "rollout.after-step"} {
		t.Run(point, func(t *testing.T) {
			p := newPairOver(t, g, fmt.Sprint("pair", i), 2)
			p.hosts[0].env = []string{"DONA_CRASH_POINT=" + point + ":1:stop"}
			p.start()
			s := startStopped(t, p)
			defer s.end()
			step := s.rollout()
			old := g.Master(t)
			old.Kill()
			redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
			g.Return(t, old)
			g.AwaitWhole(t)
			s.goesOn(step)
			s.end()
			l := p.hosts[0].ledger()
			if r := l.rollouts[l.newest]; len(l.rollouts) != 1 || r.ends != 1 || r.entries != 1+uint64(len(stoppedSteps))+1 {
				t.Errorf("the audit chain tells of %d rollouts, the newest is %+v, want one with its start, %d steps and its end", len(l.rollouts), r, len(stoppedSteps))
			}
		})
	}
}
