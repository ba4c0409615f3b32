package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// pair is two hosts on one store.
type pair struct {
	t       *testing.T
	server  *redistest.Server        // nil on a group
	master  func() *redistest.Server // who has the data
	cluster string
	hosts   [2]*process
}

// newPair makes a pair on one Redis server of its own.
func newPair(t *testing.T) *pair {
	t.Helper()
	server := redistest.Start(t, redistest.Safe...)
	p := newPairAt(t, "pair", func(int) []string { return []string{"--store", "redis://" + server.Addr} })
	p.server, p.master = server, func() *redistest.Server { return server }
	return p
}

// newPairAt makes a pair whose hosts are given these arguments each, beside the
// cluster's name.
func newPairAt(t *testing.T, cluster string, args func(host int) []string) *pair {
	t.Helper()
	p := &pair{t: t, cluster: cluster}
	for i := range p.hosts {
		h := newProcess(t)
		h.args = append([]string{"--redis-cluster", cluster}, args(i)...)
		h.look = p.look
		p.hosts[i] = h
	}
	p.hosts[0].peers, p.hosts[1].peers = []string{p.hosts[1].grpc}, []string{p.hosts[0].grpc}
	return p
}

func (p *pair) start() {
	p.t.Helper()
	for _, h := range p.hosts {
		h.start()
	}
}

// look reads the store beside the hosts, which must not write meanwhile: each read is
// a transaction of its own.
func (p *pair) look(look func(tx store.ReadTx, log *audit.Log)) {
	p.t.Helper()
	target, err := redis.ParseURL("redis://" + p.master().Addr)
	if err != nil {
		p.t.Fatal(err)
	}
	target.Cluster = p.cluster
	s, err := redis.Open(context.Background(), redis.Options{Target: target, Dir: p.t.TempDir() + "/look", CallTimeout: 10 * time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	look(reads{s}, audit.New("dona.local"))
}

// reads makes of each read a transaction, for code that cannot be run again.
type reads struct{ s store.Store }

func read[T any](r reads, fn func(tx store.ReadTx) (T, error)) (v T, err error) {
	err = r.s.View(context.Background(), func(tx store.ReadTx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v, err
}

func (r reads) Revision() uint64 {
	n, _ := read(r, func(tx store.ReadTx) (uint64, error) { return tx.Revision(), nil })
	return n
}

func (r reads) Now() time.Time {
	now, _ := read(r, func(tx store.ReadTx) (time.Time, error) { return tx.Now(), nil })
	return now
}

func (r reads) Get(key string) (store.Record, error) {
	return read(r, func(tx store.ReadTx) (store.Record, error) { return tx.Get(key) })
}

func (r reads) GetMany(keys ...string) ([]store.Record, error) {
	return read(r, func(tx store.ReadTx) ([]store.Record, error) { return tx.GetMany(keys...) })
}

func (r reads) Scan(index string, from, to uint64, limit int) ([]store.Entry, error) {
	return read(r, func(tx store.ReadTx) ([]store.Entry, error) { return tx.Scan(index, from, to, limit) })
}

func (r reads) ReadLog(log string, from uint64, limit int) ([]store.LogEntry, error) {
	return read(r, func(tx store.ReadTx) ([]store.LogEntry, error) { return tx.ReadLog(log, from, limit) })
}

// alone is a connection to one host that goes nowhere else.
func (p *pair) alone(i int) *grpc.ClientConn {
	p.t.Helper()
	peers := p.hosts[i].peers
	p.hosts[i].peers = nil
	defer func() { p.hosts[i].peers = peers }()
	return p.hosts[i].dial()
}

// sums are the checksums of the versions that watchers of both hosts have seen: a
// version has one content, wherever it is read.
type sums struct {
	mu   sync.Mutex
	seen map[uint64]string
	at   map[uint64]time.Time // when it was seen first
	gaps []time.Duration      // how much later the other host's watcher had a version
	from map[uint64]int
}

func newSums() *sums {
	return &sums{seen: map[uint64]string{}, at: map[uint64]time.Time{}, from: map[uint64]int{}}
}

// look says what is wrong with a frame that a watcher of host has got.
func (s *sums) look(host int) func(*donav1.ConfigSnapshot) string {
	return func(f *donav1.ConfigSnapshot) string {
		if wrong := checkFrame(f); wrong != "" {
			return wrong
		}
		return s.note(host, f.Version, f.Checksum)
	}
}

// note returns what is wrong with a version as a watcher of host saw it.
func (s *sums) note(host int, version uint64, sum []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	had, known := s.seen[version]
	switch {
	case !known:
		s.seen[version], s.at[version], s.from[version] = string(sum), now, host
	case had != string(sum):
		return fmt.Sprintf("version %d has the checksum %x at one host and %x at another", version, had, sum)
	case s.from[version] == 1-host:
		s.gaps = append(s.gaps, now.Sub(s.at[version]))
		s.from[version] = -1
	}
	return ""
}

// quantile of durations, 0 when there are none.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Clone(all)
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// insist makes a call until it succeeds: on a busy machine a store may be away for
// a moment. Any other error ends the test.
func insist(t *testing.T, what string, call func(ctx context.Context) error) {
	t.Helper()
	until(t, what, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := call(ctx)
		if code := status.Code(err); err != nil && code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

// TestTwoHosts: endpoints, reports and commands go to either of two hosts, and both
// are one control plane: a version has one content at both, windows add up, and a rollout
// takes each step once.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	var clients [2]donav1.ControlPlaneClient
	sums := newSums()
	wrong := make(problems, 100)
	var watchers [2]*watcher
	for i := range clients {
		clients[i] = donav1.NewControlPlaneClient(p.alone(i))
		all.Go(fleet(ctx, clients[i], fmt.Sprint("v", i+1), 5).Wait)
		watchers[i] = &watcher{problems: wrong, look: sums.look(i)}
		all.Go(func() { watchers[i].run(ctx, clients[i], fmt.Sprint("c", i)) })
	}
	until(t, "both to see all endpoints", func() bool { return watchers[0].seen.Load() == 10 && watchers[1].seen.Load() == 10 })

	// Each host gets 20 batches of 5 calls: half of them of a reporter that moves from
	// one to the other. Each comes a second time to the other host, and counts once.
	now := time.Now().UnixMilli()
	for n := range 20 {
		for _, reporter := range []string{"moves", fmt.Sprint("stays-", n%2)} {
			batch := &donav1.StatsBatch{ReporterId: reporter, Sequence: uint64(n + 1), Calls: []*donav1.CallOutcome{
				{Service: "web", Variant: "v1", EndpointId: "v1-000", Success: true, LatencyUs: 1000, UnixMs: now, Count: 5}}}
			for _, i := range []int{n % 2, 1 - n%2} {
				insist(t, "a report", func(ctx context.Context) error {
					_, err := clients[i].ReportStats(ctx, batch)
					return err
				})
			}
		}
	}
	for i, client := range clients {
		var s *donav1.StatusReply
		insist(t, "a status", func(ctx context.Context) (err error) {
			s, err = client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
			return err
		})
		var requests uint64
		for _, v := range s.Stats {
			requests += v.Requests
		}
		if requests != 200 {
			t.Errorf("host %d knows of %d calls, 200 were reported to both", i, requests)
		}
	}

	// A rollout is started at one host and watched at both.
	insist(t, "a rollout", func(ctx context.Context) error {
		_, err := clients[0].StartRollout(ctx, &donav1.StartRolloutRequest{
			Service: "web", CanaryVariant: "v2", StableVariant: "v1", Steps: []uint32{20, 50, 100}, StepSeconds: 1, MaxErrorPercent: 50, MinRequests: 1,
		})
		if s, serr := clients[0].GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}); err != nil && serr == nil && s.Rollout.GetId() != "" {
			return nil // the answer of an earlier try was lost
		}
		return err
	})
	all.Go(func() {
		for n := uint64(1); ctx.Err() == nil; n++ {
			_, _ = clients[n%2].ReportStats(ctx, &donav1.StatsBatch{ReporterId: "canary", Sequence: n, Calls: []*donav1.CallOutcome{
				{Service: "web", Variant: "v2", EndpointId: "v2-000", Success: true, LatencyUs: 1000, UnixMs: time.Now().UnixMilli(), Count: 5}}})
			pause(ctx, 50*time.Millisecond)
		}
	})
	until(t, "the rollout to be promoted", func() bool {
		s, err := clients[1].GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && s.Rollout.GetState() == donav1.RolloutStatus_STATE_PROMOTED
	})
	until(t, "both watchers to be at one version", func() bool { return watchers[0].version.Load() == watchers[1].version.Load() })
	cancel()
	all.Wait()
	wrong.report(t)
	for _, h := range p.hosts {
		h.kill()
	}
	l := p.hosts[0].ledger()
	if r := l.rollouts[l.newest]; r == nil || r.entries != 5 || r.ends != 1 {
		t.Errorf("the audit chain tells of the rollout %+v, want its start, three steps and its end", r)
	}
	t.Logf("%d versions, the other host's watcher had them after %v (p50) and %v (p99)", len(sums.seen),
		quantile(sums.gaps, .5).Round(time.Millisecond), quantile(sums.gaps, .99).Round(time.Millisecond))
}
