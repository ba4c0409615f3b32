package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

var fastRetry = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second}

// crew are the endpoints of a fleet.
type crew struct {
	sync.WaitGroup
	up atomic.Int64 // registered at this moment
}

// fleet are endpoints that register, beat, and register again when their stream
// breaks, until ctx ends.
func fleet(ctx context.Context, client donav1.ControlPlaneClient, variant string, n int) *crew {
	c := &crew{}
	for i := range n {
		first := &donav1.EndpointHeartbeat{Service: "web", EndpointId: fmt.Sprintf("%s-%03d", variant, i), Address: fmt.Sprintf("10.0.0.%d:80", i%250+1), Variant: variant, Region: "eu"}
		c.Go(func() {
			for ctx.Err() == nil {
				hold(ctx, client, first, &c.up)
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(50+i) * time.Millisecond):
				}
			}
		})
	}
	return c
}

func hold(ctx context.Context, client donav1.ControlPlaneClient, first *donav1.EndpointHeartbeat, up *atomic.Int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := client.RegisterEndpoint(ctx, grpc.WaitForReady(true))
	if err != nil || s.Send(first) != nil {
		return
	}
	if _, err := s.Header(); err != nil {
		return
	}
	up.Add(1)
	defer up.Add(-1)
	gone := make(chan struct{}) // the host never sends before the end
	go func() { _ = s.RecvMsg(&donav1.RegisterAck{}); close(gone) }()
	defer func() { cancel(); <-gone }()
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-tick.C:
			if s.Send(&donav1.EndpointHeartbeat{Sequence: n}) != nil {
				return
			}
		}
	}
}

// watcher is a client that only looks: it demands of each frame what no fault may
// break.
type watcher struct {
	least    int // never fewer endpoints, once it has seen as many
	version  atomic.Uint64
	seen     atomic.Int64 // endpoints of the newest frame
	problems problems
	look     func(*donav1.ConfigSnapshot) string // says what else is wrong with a frame; may be nil
}

func (w *watcher) run(ctx context.Context, client donav1.ControlPlaneClient, id string) {
	full := false
	var sum []byte
	var held *mirror.Snapshot
	for stream := 0; ctx.Err() == nil; stream++ {
		// Deltas on every other stream, so that both ways to a version are looked at.
		s, err := client.WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: id, LastVersion: w.version.Load(), LastChecksum: sum,
			AcceptDelta: (len(id)+int(id[len(id)-1])+stream)%2 == 0}, grpc.WaitForReady(true))
		for err == nil {
			var f *donav1.ConfigSnapshot
			if f, err = s.Recv(); err != nil || ctx.Err() != nil { // the test ends, and its endpoints with it
				break
			}
			if f.Version < w.version.Load() {
				w.problems.add("%s: version %d after %d", id, f.Version, w.version.Load())
			}
			w.version.Store(f.Version)
			sum = f.Checksum
			if f.Form == donav1.ConfigSnapshot_FORM_UNCHANGED {
				continue
			}
			var wrong error
			if f.Form == donav1.ConfigSnapshot_FORM_DELTA && held != nil {
				var next *mirror.Snapshot
				if next, wrong = held.Apply(f); wrong == nil {
					held = next
				}
			} else {
				held, wrong = mirror.Full(f)
			}
			if wrong != nil {
				w.problems.add("%s: version %d: %v", id, f.Version, wrong)
				break
			}
			f = held.Config()
			if w.look != nil {
				if wrong := w.look(f); wrong != "" {
					w.problems.add("%s: %s", id, wrong)
				}
			}
			w.seen.Store(int64(len(f.Endpoints)))
			full = full || len(f.Endpoints) >= w.least
			if full && len(f.Endpoints) < w.least {
				w.problems.add("%s: version %d has %d endpoints, want at least %d", id, f.Version, len(f.Endpoints), w.least)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestRestart (D1): 200 endpoints and 50 clients live through kill -9 and a
// restart: nobody sees fewer than nine of ten endpoints, or an older version, and
// no decision fails. At last some of the endpoints die with the host; they go when
// the others are back.
func TestRestart(t *testing.T) {
	const endpoints, mortal, clients = 200, 15, 50
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	wrong := make(problems, 100)
	var conns []*grpc.ClientConn
	for range 4 { // a host takes 250 streams a connection
		conns = append(conns, p.dial())
	}
	stay := fleet(ctx, donav1.NewControlPlaneClient(conns[0]), "v1", endpoints-mortal)
	short, die := context.WithCancel(ctx)
	defer die()
	leave := fleet(short, donav1.NewControlPlaneClient(conns[0]), "v2", mortal)
	all.Go(stay.Wait)
	all.Go(leave.Wait)
	watchers := make([]*watcher, clients)
	for i := range watchers {
		w := &watcher{least: endpoints * 9 / 10, problems: wrong}
		watchers[i] = w
		all.Go(func() { w.run(ctx, donav1.NewControlPlaneClient(conns[1+i%3]), fmt.Sprintf("c%02d", i)) })
	}
	settled := func(what string, n int64) {
		t.Helper()
		until(t, what, func() bool {
			for _, w := range watchers {
				if w.seen.Load() != n {
					return false
				}
			}
			return true
		})
	}
	settled("every client to see every endpoint", endpoints)

	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	svc := client.Service("web")
	if err := svc.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	var decisions, failed atomic.Int64
	all.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			pick, err := svc.Pick(ctx, dona.Request{Unit: fmt.Sprint("user-", i)})
			if err != nil && ctx.Err() == nil {
				failed.Add(1)
			} else if err == nil {
				pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond})
			}
			decisions.Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	version := watchers[0].version.Load()
	restarts := min(rounds, 3)
	for round := range restarts {
		p.kill()
		before, want := decisions.Load(), int64(endpoints)
		if round == restarts-1 {
			die()
			want -= mortal
		}
		until(t, "decisions while the host is away", func() bool { return decisions.Load() > before+100 })
		p.start()
		until(t, "the endpoints to register again", func() bool { return stay.up.Load()+leave.up.Load() == want })
		admin := donav1.NewControlPlaneClient(conns[0])
		flag := &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: fmt.Sprint("after-", round)}}
		if _, err := admin.SetFlag(ctx, flag, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		until(t, "every client to get a change", func() bool {
			for _, w := range watchers {
				if w.version.Load() <= version {
					return false
				}
			}
			return true
		})
		version = watchers[0].version.Load()
		settled(fmt.Sprintf("every client to see every endpoint again, round %d", round), want)
	}
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d decisions failed", n, decisions.Load())
	}
	cancel()
	all.Wait()
	wrong.report(t)
}

// inspect reads a copy of a dead host's store.
func inspect(t *testing.T, dir string, look func(tx store.ReadTx, log *audit.Log)) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.Mkdir(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "store.db"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := embedded.Open(copied, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	if err := st.View(context.Background(), func(tx store.ReadTx) error { look(tx, audit.New("dona.local")); return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestSecondHost (H9).
func TestSecondHost(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	began := time.Now()
	code, stderr := p.refuse()
	took := time.Since(began)
	if code != exitRefused || !strings.Contains(stderr, filepath.Join(p.dir, "store.lock")) {
		t.Errorf("a second host ends with %d:\n%s", code, stderr)
	}
	t.Logf("refused after %v", took.Round(time.Millisecond))
	if took > 10*time.Second { // 2 s is the promise; the rest is for a busy machine
		t.Errorf("a second host took %v to say no", took)
	}
	if code := p.signal(syscall.SIGTERM); code != exitOK {
		t.Errorf("SIGTERM ends the first with %d", code)
	}
	p.start()
	if code := p.signal(syscall.SIGINT); code != exitInterrupted {
		t.Errorf("SIGINT ends it with %d", code)
	}
}

// TestPluginsDieWithTheHost (L8), and a plugin that is killed comes back (L4).
func TestPluginsDieWithTheHost(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	tmp := p.ownTemp()
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	conn := p.dial()
	fleets := fleet(ctx, donav1.NewControlPlaneClient(conn), "v1", 3)
	defer func() { cancel(); fleets.Wait() }()
	plan := func() *donav1.StatusReply {
		s, _ := donav1.NewControlPlaneClient(conn).GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return s
	}
	until(t, "a plan", func() bool { return plan().GetConfig().GetPlan().GetStrategy() == "least-connections" })
	first := plugins(t, conn)
	if len(first) != 1 {
		t.Fatalf("the plugins are %v", first)
	}
	if err := syscall.Kill(first[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	until(t, "the plugin to come back", func() bool {
		if s := plan(); s.GetConfig().GetPlan().GetStrategy() != "least-connections" {
			t.Fatalf("the plan is %v while the plugin is away", s.GetConfig().GetPlan())
		}
		now := plugins(t, conn)
		return len(now) == 1 && now[0] != first[0]
	})
	t.Logf("the plugin is back after %v", time.Since(killed).Round(time.Millisecond)) // 1 s is the goal
	group := p.group()
	if len(group) < 3 || len(leftIn(t, tmp)) == 0 { // the plugin twice, and the watchdog
		t.Fatalf("the host has the processes %v and the directories %v", group, leftIn(t, tmp))
	}
	p.kill()
	died := time.Now()
	until(t, "every process of the host to end", func() bool {
		for _, pid := range group {
			if alive(pid) {
				return false
			}
		}
		return true
	})
	until(t, "the sockets and directories of the plugins to go", func() bool { return len(leftIn(t, tmp)) == 0 })
	t.Logf("nothing left after %v", time.Since(died).Round(time.Millisecond)) // 5 s is the promise
	if time.Since(died) > 10*time.Second {
		t.Errorf("something was left for %v", time.Since(died))
	}
}

// TestMassBreak: when 30 of 100 streams break at once, nobody is removed for the
// time of a lease, and the host says so.
func TestMassBreak(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	stable, broken := p.dial(), p.dial()
	fleets := fleet(ctx, donav1.NewControlPlaneClient(stable), "v1", 70)
	defer func() { cancel(); fleets.Wait() }()
	client := donav1.NewControlPlaneClient(broken)
	for i := range 30 {
		s, err := client.RegisterEndpoint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: fmt.Sprint("b", i), Address: "10.0.1.1:80", Variant: "v1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Header(); err != nil {
			t.Fatal(err)
		}
	}
	endpoints := func() int {
		s, err := donav1.NewControlPlaneClient(stable).GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		if err != nil {
			t.Fatal(err)
		}
		return len(s.Config.Endpoints)
	}
	until(t, "all endpoints", func() bool { return endpoints() == 100 })
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the alarm", func() bool {
		h, err := donav1.NewHostAdminClient(stable).GetHost(ctx, &donav1.GetHostRequest{})
		return err == nil && strings.Contains(strings.Join(h.Alarms, "\n"), "mass expiry")
	})
	if n := endpoints(); n < 80 {
		t.Errorf("%d of 100 endpoints are left under the freeze, want at least 80", n)
	}
	until(t, "the broken ones to go after the freeze", func() bool { return endpoints() == 70 })
}

// descendants are the processes below one.
func descendants(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, word := range strings.Fields(string(text)) {
			var child int
			if _, err := fmt.Sscan(word, &child); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}
