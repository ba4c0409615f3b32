package check_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/plugins/probe"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// prober is a plugin whose targets behave by their addresses' beginnings: hang-…
// never answers, down-… refuses, all else is well.
type prober struct {
	mu       sync.Mutex
	away     bool
	at       map[string][]time.Time
	now, max int
	scopes   map[string]int
	scopeMax map[string]int
}

func newProber() *prober {
	return &prober{at: map[string][]time.Time{}, scopes: map[string]int{}, scopeMax: map[string]int{}}
}

func (p *prober) enter(address string) (leave func()) {
	scope, _, _ := strings.Cut(address, "-")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[address] = append(p.at[address], time.Now())
	p.now++
	p.scopes[scope]++
	p.max, p.scopeMax[scope] = max(p.max, p.now), max(p.scopeMax[scope], p.scopes[scope])
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
		p.scopes[scope]--
	}
}

func (p *prober) Check(ctx context.Context, _ string, _ *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error) {
	defer p.enter(req.EndpointAddress)()
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	if away {
		return probe.Observation{Result: unclear, Detail: "the plugin is away"}, errors.New("away")
	}
	if strings.HasPrefix(req.EndpointAddress, "hang") {
		select {
		case <-ctx.Done():
			return probe.Observation{Result: unclear}, ctx.Err()
		case <-time.After(req.Timeout.AsDuration()):
		}
		return probe.Observation{Result: bad, ErrorClass: 1, Detail: "no answer in time", Latency: req.Timeout.AsDuration()}, nil
	}
	time.Sleep(20 * time.Millisecond)
	if strings.HasPrefix(req.EndpointAddress, "down") {
		return probe.Observation{Result: bad, ErrorClass: 2}, nil
	}
	return probe.Observation{Result: good}, nil
}

// checks runs a broker and a checker in virtual time for a while.
func checks(t *testing.T, f *fleet, p *prober, during func(b *check.Broker, st store.Store)) {
	synctest.Test(t, func(t *testing.T) {
		st := embedded.OpenMemory(embedded.Options{Clock: time.Now})
		b := check.New(check.Options{Store: st, Planes: map[string]check.Plane{"service": f}, Rules: rules})
		ctx, cancel := context.WithCancel(context.Background())
		var loops sync.WaitGroup
		loops.Go(func() { _ = b.Run(ctx) })
		loops.Go(func() { _ = check.NewChecker(b, p, "c1").Run(ctx) })
		during(b, st)
		cancel()
		loops.Wait()
		_ = st.Close()
	})
}

func targets(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%04d", i))
	}
	return ids
}

// gaps are the waits between the checks of each target whose address begins so.
func (p *prober) gaps(prefix string) (all []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, at := range p.at {
		if strings.HasPrefix(address, prefix) {
			for i := range at[1:] {
				all = append(all, at[i+1].Sub(at[i]))
			}
		}
	}
	return all
}

// Each target is checked every 30 s, a fifth more or less, whatever others do: one
// service has 500 targets that never answer, and takes no more than its share.
func TestScheduleBesideTargetsThatHang(t *testing.T) {
	f, p := newFleet(), newProber()
	f.put("well", 1, targets(200)...)
	f.put("hang", 1, targets(500)...)
	checks(t, f, p, func(*check.Broker, store.Store) { time.Sleep(10 * time.Minute) })
	gaps := p.gaps("well-")
	if len(gaps) < 200*15 {
		t.Fatalf("only %d checks", len(gaps))
	}
	var sum, least, most time.Duration
	least = time.Hour
	for _, g := range gaps {
		sum += g
		least, most = min(least, g), max(most, g)
	}
	mean := sum / time.Duration(len(gaps))
	t.Logf("%d gaps from %v to %v, mean %v; at most %d checks at once, %d of those that hang", len(gaps), least, most, mean, p.max, p.scopeMax["hang"])
	if least < 24*time.Second || most > 37*time.Second {
		t.Errorf("gaps from %v to %v: wanted are 24 s to 36 s and a moment", least, most)
	}
	if mean < 28*time.Second || mean > 32*time.Second {
		t.Errorf("mean gap %v", mean)
	}
	if p.scopeMax["hang"] > 64 || p.max > 256 || p.scopeMax["hang"] < 32 {
		t.Errorf("at most %d checks at once, %d of one scope: wanted are 256 and 64", p.max, p.scopeMax["hang"])
	}
	if hung := p.gaps("hang-"); len(hung) < 500 {
		t.Errorf("those that hang were checked %d times again", len(hung))
	}
}

// First checks are made at once and spread; one that fails is looked at again soon,
// and, once it is out, ever more rarely.
func TestPace(t *testing.T) {
	f, p := newFleet(), newProber()
	f.put("down", 1, "a")
	f.put("down", 1, "b", "c")
	var began time.Time
	checks(t, f, p, func(*check.Broker, store.Store) {
		began = time.Now()
		time.Sleep(3 * time.Minute)
	})
	first := p.at["down-a:80"][0].Sub(began)
	if first > 3*time.Second {
		t.Errorf("first check after %v", first)
	}
	for _, g := range p.gaps("down-") { // all fail, so nobody is out
		if g < 8*time.Second || g > 13*time.Second {
			t.Errorf("a suspect was checked again after %v", g)
		}
	}

	f, p = newFleet(), newProber()
	f.put("down", 1, "a")
	f.scopes["mixed"] = f.scopes["down"]
	delete(f.scopes, "down")
	f.put("mixed", 1, "b", "c", "d")
	checks(t, f, p, func(*check.Broker, store.Store) { time.Sleep(40 * time.Minute) })
	at := p.at["down-a:80"]
	last := at[len(at)-1].Sub(at[len(at)-2])
	t.Logf("%d checks of one that stays down in 40 min, the last after %v", len(at), last)
	if last < 4*time.Minute || last > 6*time.Minute+2*time.Second {
		t.Errorf("the last wait was %v: wanted are 5 min and a fifth", last)
	}
}

// A plugin that is away changes nobody's health, for better or for worse.
func TestPluginAway(t *testing.T) {
	f, p := newFleet(), newProber()
	f.put("down", 1, "a")
	f.put("x", 1, "b", "c", "d")
	f.scopes["down"].targets["b"] = check.Target{ID: "b", Address: "well-b:80", RegisteredMs: 1}
	f.scopes["down"].targets["c"] = check.Target{ID: "c", Address: "well-c:80", RegisteredMs: 1}
	checks(t, f, p, func(b *check.Broker, st store.Store) {
		time.Sleep(2 * time.Minute)
		if got := f.out("down"); len(got) != 1 || got[0] != "a" {
			t.Errorf("out is %v", got)
		}
		states := func() (all []donav1.EndpointHealth_State) {
			if err := st.View(context.Background(), func(tx store.ReadTx) error {
				s, err := b.Status(tx, "service", "down")
				all = nil
				for _, e := range s.GetEndpoints() {
					all = append(all, e.State)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			return all
		}
		before := states()
		p.mu.Lock()
		p.away = true
		checked := len(p.at["well-b:80"])
		p.mu.Unlock()
		time.Sleep(30 * time.Minute)
		if got := f.out("down"); len(got) != 1 || got[0] != "a" {
			t.Errorf("out is %v with the plugin away", got)
		}
		if after := states(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("states were %v, are %v", before, after)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.at["well-b:80"])-checked < 40 {
			t.Errorf("it is not asked any more: %d checks in half an hour", len(p.at["well-b:80"])-checked)
		}
	})
}
