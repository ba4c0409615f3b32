//go:build faults

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// wire is a bad network between clients and a host.
type wire struct {
	address string
	target  string
	late    func() time.Duration // what a piece is held up; nil = nothing
	rate    int                  // bytes a second to clients; 0 = as many as come, -1 = none

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
	work  sync.WaitGroup
}

// lay begins to carry what comes to w.address, until the test ends.
func (w *wire) lay(t *testing.T, target string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address, w.target, w.conns = l.Addr().String(), target, map[net.Conn]bool{}
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.carry(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); w.cut(true); w.work.Wait() })
	return w
}

// cut breaks what is open and, when down, lets nothing new through.
func (w *wire) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	host, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer host.Close()
	w.mu.Lock()
	if w.down {
		w.mu.Unlock()
		return
	}
	w.conns[client], w.conns[host] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pump(host, client, 0) })
	both.Go(func() { w.pump(client, host, w.rate) })
	both.Wait()
}

// piece is bytes on their way, due at a time.
type piece struct {
	bytes []byte
	due   time.Time
}

// pump carries one way. Pieces stay in order, and a late one holds up the next.
func (w *wire) pump(to, from net.Conn, rate int) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	window := 4096
	if rate != 0 {
		window = 1 // who reads slowly takes little at a time
	}
	way := make(chan piece, window)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range way {
			time.Sleep(time.Until(p.due))
			if rate > 0 {
				time.Sleep(time.Duration(len(p.bytes)) * time.Second / time.Duration(rate))
			}
			if _, err := to.Write(p.bytes); err != nil {
				break
			}
		}
		_ = from.Close()
		for range way {
		}
	})
	defer func() { close(way); writer.Wait() }()
	for passed := 0; ; {
		if rate < 0 && passed > 4096 { // enough to begin to watch
			<-w.ended(from)
			return
		}
		b := make([]byte, 1024)
		n, err := from.Read(b)
		passed += n
		if err != nil {
			return
		}
		due := time.Now()
		if w.late != nil {
			due = due.Add(w.late())
		}
		way <- piece{b[:n], due}
	}
}

// ended is closed when a connection was cut.
func (w *wire) ended(c net.Conn) <-chan struct{} {
	done := make(chan struct{})
	w.work.Go(func() {
		defer close(done)
		for {
			w.mu.Lock()
			there := w.conns[c]
			w.mu.Unlock()
			if !there {
				return
			}
			pause(context.Background(), 20*time.Millisecond)
		}
	})
	return done
}

// announced are endpoints of "web" that an SDK announces through target.
func announced(ctx context.Context, t *testing.T, target string, n int) *dona.Client {
	t.Helper()
	c, err := dona.Dial(ctx, target, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for i := range n {
		if _, err := c.Register(ctx, dona.OwnEndpoint{Service: "web", ID: fmt.Sprintf("e%02d", i), Address: fmt.Sprintf("10.0.0.%d:80", i+1), Variant: "v1", Region: "eu"}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// keepsPicking has a client decide until stop is called; no decision may fail.
func keepsPicking(ctx context.Context, t *testing.T, svc *dona.Service) (stop func()) {
	until(t, "a first decision", func() bool { _, err := svc.Pick(ctx, dona.Request{}); return err == nil })
	ctx, cancel := context.WithCancel(ctx)
	var picks, failed atomic.Int64
	var work sync.WaitGroup
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			pick, err := svc.Pick(context.WithoutCancel(ctx), dona.Request{Unit: fmt.Sprint("user-", i)})
			picks.Add(1)
			if err != nil && failed.Add(1) == 1 {
				t.Errorf("decision %d: %v", i, err)
			}
			pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond})
			pause(ctx, 5*time.Millisecond)
		}
	})
	return func() {
		cancel()
		work.Wait()
		t.Logf("%d decisions, %d failed", picks.Load(), failed.Load())
	}
}

// disappearances counts, until stop is called, how often each endpoint left the
// snapshots of a client that is well connected.
func disappearances(ctx context.Context, t *testing.T, p *process, endpoints int) (stop func() map[string]int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	gone := map[string]int{}
	var work sync.WaitGroup
	all := make(chan struct{})
	api := donav1.NewControlPlaneClient(p.dial())
	work.Go(func() {
		stream, err := api.WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: "witness"})
		var had map[string]bool
		for err == nil {
			var f *donav1.ConfigSnapshot
			if f, err = stream.Recv(); err != nil {
				break
			}
			now := map[string]bool{}
			for _, e := range f.Endpoints {
				now[e.Id] = true
			}
			if had == nil && len(now) == endpoints {
				close(all)
			} else if had == nil {
				continue
			}
			for id := range had {
				if !now[id] {
					gone[id]++
				}
			}
			had = now
		}
	})
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatal("the endpoints are not there")
	}
	return func() map[string]int { cancel(); work.Wait(); return gone }
}

// TestLongLink (N5): half a second away, more or less, and with three of ten pieces
// sent again, no endpoint loses its lease, no decision fails, and changes arrive.
func TestLongLink(t *testing.T) {
	t.Parallel()
	const endpoints = 10
	p := newProcess(t)
	p.args = []string{"--heartbeat", "5s"}
	p.start()
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(5, 1))
	link := (&wire{late: func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		late := time.Duration(300+r.IntN(400)) * time.Millisecond
		for again := 200 * time.Millisecond; r.IntN(10) < 3 && again < 2*time.Second; again *= 2 {
			late += again
		}
		return late
	}}).lay(t, p.grpc)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := announced(ctx, t, link.address, endpoints)
	gone := disappearances(ctx, t, p, endpoints)
	stop := keepsPicking(ctx, t, client.Service("web"))
	admin := donav1.NewControlPlaneClient(p.dial())
	var worst time.Duration
	for n := uint32(1); n <= 8; n++ {
		if _, err := admin.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: n, RolloutVariant: "v1"}}); err != nil {
			t.Fatal(err)
		}
		status, err := admin.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		until(t, "the change", func() bool { return client.Service("web").Status().Version >= status.Config.Version })
		worst = max(worst, time.Since(began))
		pause(ctx, 2*time.Second)
	}
	stop()
	t.Logf("changes took %v at worst", worst.Round(time.Millisecond))
	if worst > 20*time.Second { // 3 s is the goal; the rest is for a busy machine
		t.Errorf("a change took %v", worst)
	}
	if lost := gone(); len(lost) > 0 {
		t.Errorf("endpoints lost their leases: %v", lost)
	}
}

// TestFlappingLink (N7): a link to all endpoints and a client that is down every
// other half second for half a minute costs no decision: together they are not
// removed at once. How often one alone is, its own waits before it comes back decide.
func TestFlappingLink(t *testing.T) {
	t.Parallel()
	const endpoints, lasts = 30, 30 * time.Second
	p := newProcess(t)
	p.args = []string{"--heartbeat", "5s"} // a client that comes back waits up to 5 s
	p.start()
	link := (&wire{}).lay(t, p.grpc)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := announced(ctx, t, link.address, endpoints)
	gone := disappearances(ctx, t, p, endpoints)
	stop := keepsPicking(ctx, t, client.Service("web"))
	for over := time.Now().Add(lasts); time.Now().Before(over); {
		link.cut(true)
		pause(ctx, 500*time.Millisecond)
		link.heal()
		pause(ctx, 500*time.Millisecond)
	}
	healed := time.Now()
	admin := donav1.NewControlPlaneClient(p.dial())
	until(t, "all to be well again", func() bool {
		s, err := admin.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		st := client.Service("web").Status()
		return err == nil && len(s.Config.Endpoints) == endpoints && st.Version == s.Config.Version && !st.Stale
	})
	stop()
	lost := gone()
	most := 0
	for _, n := range lost {
		most = max(most, n)
	}
	t.Logf("well again %v after the link; endpoints left the snapshots %d times at most: %v", time.Since(healed).Round(time.Millisecond), most, lost)
}

// TestSlowReaders (N4): clients that read 1 KiB a second, or nothing, delay nobody
// else, and are cut when they are too slow.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	fleets := fleet(ctx, donav1.NewControlPlaneClient(p.dial()), "v1", 3)
	defer func() { cancel(); fleets.Wait() }()
	admin := donav1.NewControlPlaneClient(p.dial())
	for n := range 60 { // so that a whole snapshot is no small thing
		f := &donav1.FlagRule{Service: "web", Flag: fmt.Sprintf("big-%02d", n), RolloutVariant: "v1"}
		for v := range 8 {
			f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: "a", Values: []string{strings.Repeat(fmt.Sprint(v), 200)}, Variant: "v1"})
		}
		if _, err := admin.SetFlag(ctx, &donav1.SetFlagRequest{Rule: f}); err != nil {
			t.Fatal(err)
		}
	}
	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	svc := client.Service("web")
	if err := svc.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	// latencies of changes that skip the window.
	latencies := func(n int) []time.Duration {
		var all []time.Duration
		for range n {
			before, began := svc.Status().Version, time.Now()
			if _, err := admin.SetServicePolicy(ctx, &donav1.SetServicePolicyRequest{Service: "web", Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: fmt.Sprint("r", began.UnixNano())}}); err != nil {
				t.Fatal(err)
			}
			until(t, "a change", func() bool { return svc.Status().Version > before })
			all = append(all, time.Since(began))
			pause(ctx, 50*time.Millisecond)
		}
		slices.Sort(all)
		return all
	}
	calm := latencies(100)
	cuts := func() string {
		resp, err := http.Get("http://" + p.http + "/metrics")
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		for line := range strings.Lines(string(text)) {
			if value, is := strings.CutPrefix(line, "dona_snapshot_cut_total "); is {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	const slow = 10
	for n := range slow {
		rate := 1024
		if n%2 == 0 {
			rate = -1
		}
		link := (&wire{rate: rate}).lay(t, p.grpc)
		conn, err := grpc.NewClient(link.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			stream, err := donav1.NewControlPlaneClient(conn).WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: fmt.Sprint("slow-", n)}, grpc.WaitForReady(true))
			for err == nil {
				_, err = stream.Recv()
			}
		}()
		defer func() { cancel(); <-watching }()
	}
	until(t, "all watchers", func() bool {
		s, err := admin.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.GetWatchers().GetConnected() >= slow
	})
	beside := latencies(100)
	p99 := func(all []time.Duration) time.Duration { return all[len(all)*99/100].Round(100 * time.Microsecond) }
	t.Logf("a change took %v, and %v at the 99th percentile; beside %d slow readers %v and %v", calm[50], p99(calm), slow, beside[50], p99(beside))
	if p99(beside) > p99(calm)+5*time.Second { // 10 ms is the goal; the rest is for a busy machine
		t.Errorf("slow readers delay others: %v instead of %v", p99(beside), p99(calm))
	}
	until(t, "those that do not read to be cut", func() bool {
		latencies(1)
		n := cuts()
		return n != "" && n != "0"
	})
	t.Logf("%s streams cut", cuts())
}

// TestReconnectStorm (N6): 2,000 clients, each on a connection of its own, lose
// their host with kill -9. All are back in sync soon after it is there again, and it
// stays small meanwhile.
func TestReconnectStorm(t *testing.T) {
	t.Parallel()
	const clients, most = 2000, 400 << 20
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	fleets := fleet(ctx, donav1.NewControlPlaneClient(p.dial()), "v1", 10)
	defer func() { cancel(); fleets.Wait() }()
	until(t, "the fleet", func() bool { return fleets.up.Load() == 10 })
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	all := make([]*dona.Service, clients)
	for i := range all {
		c, err := dona.Dial(ctx, p.grpc, dona.WithoutCache(), dona.WithDialer(dial), dona.WithReportInterval(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		all[i] = c.Service("web")
	}
	synced := func(version uint64) (n int) {
		for _, svc := range all {
			if st := svc.Status(); st.Version >= version && !st.Stale {
				n++
			}
		}
		return n
	}
	admin := donav1.NewControlPlaneClient(p.dial())
	version := func() uint64 {
		s, err := admin.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return s.Config.Version
	}
	largest := int64(0)
	quarters := func(what string) {
		t.Helper()
		for quarter := 1; quarter <= 4; quarter++ { // a busy machine has time for each
			until(t, fmt.Sprintf("%d of 4 quarters of the clients to be %s", quarter, what), func() bool {
				largest = max(largest, resident(t, p.cmd.Process.Pid))
				return synced(version()) >= clients*quarter/4
			})
		}
	}
	quarters("in sync")
	p.kill()
	until(t, "all clients to notice", func() bool { return synced(0) == 0 })
	p.start()
	began := time.Now()
	quarters("in sync again")
	t.Logf("%d clients in sync %v after the host was back, which took up to %d MiB", clients, time.Since(began).Round(time.Millisecond), largest>>20)
	if largest > most {
		t.Errorf("the host took %d MiB, want at most %d", largest>>20, most>>20)
	}
	for _, svc := range all {
		if _, err := svc.Pick(ctx, dona.Request{}); err != nil {
			t.Fatal(err)
		}
	}
}

// resident is the memory of a process, in bytes.
func resident(t *testing.T, pid int) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if kib, is := strings.CutPrefix(line, "VmRSS:"); is {
			if _, err := fmt.Sscan(kib, &bytes); err != nil {
				t.Fatal(err)
			}
			return bytes << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
