package pool_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
)

// extractAll has callers extract one proxy each, at the same time and over these hosts,
// and again with the same key when what came of it is not known. It returns who got
// which; each is called with how many have, one after another.
func extractAll(t *testing.T, hosts []*pool.Pool, callers int, each func(won int)) map[string]string {
	t.Helper()
	var mu sync.Mutex
	won := map[string]string{}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			key := fmt.Sprint("caller-", i)
			req := &controlplanev1.ExtractRequest{IdempotencyKey: key, Upstream: "dc", Count: 1}
			resp, err := hosts[i%len(hosts)].Extract(t.Context(), operator, req)
			for began := time.Now(); err != nil && !refusal.Is(err, refusal.Exhausted); {
				if time.Since(began) > patience {
					t.Errorf("%s: %v", key, err)
					return
				}
				time.Sleep(20 * time.Millisecond) // as its client would back off
				resp, err = hosts[(i+1)%len(hosts)].Extract(t.Context(), operator, req)
			}
			if err != nil {
				return
			}
			again, err := hosts[(i+1)%len(hosts)].Extract(t.Context(), operator, req)
			if err != nil || !again.Replayed || again.Proxies[0].Proxy.ProxyId != resp.Proxies[0].Proxy.ProxyId {
				t.Errorf("%s: the same key is answered %v, %v; first it was %v", key, again, err, resp)
			}
			mu.Lock()
			defer mu.Unlock()
			if by := won[resp.Proxies[0].Proxy.ProxyId]; by != "" {
				t.Errorf("%s is given to %s and to %s", resp.Proxies[0].Proxy.ProxyId, by, key)
			}
			won[resp.Proxies[0].Proxy.ProxyId] = key
			each(len(won))
		})
	}
	all.Wait()
	return won
}

// TestHundredExtractors: of a hundred callers over fifty proxies fifty win, each
// another proxy.
func TestHundredExtractors(t *testing.T) {
	w := newWorld(t)
	ids := w.add("dc", 50)
	won := extractAll(t, []*pool.Pool{w.p, w.host("h2")}, 100, func(int) {})
	if got := slices.Sorted(maps.Keys(won)); len(got) != 50 {
		t.Errorf("%d have won %d proxies", len(won), len(ids))
	}
	for _, s := range w.proxies() {
		if s.State != ownership.Extracted {
			t.Errorf("%s is %s", s.Proxy.ProxyId, s.State)
		}
	}
}

// TestExtractKeys: a key belongs to its caller and its request, for a day.
func TestExtractKeys(t *testing.T) {
	w := newWorld(t)
	w.publish(document[:len(document)-1] + "\nallocation: {safetyMargin: 5s}\n")
	w.add("dc", 5)
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 2, MinRemaining: durationpb.New(time.Minute), Labels: map[string]string{"tier": "gold"}}
	first, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if len(first.Proxies) != 2 || first.Shortfall != 0 {
		t.Fatalf("the first answer is %v", first)
	}
	got, err := w.p.Extraction(w.ctx, operator, first.ExtractionId)
	w.must(err)
	want := proto.CloneOf(first)
	want.Replayed = true
	if !proto.Equal(got, want) {
		t.Errorf("by its id it is %v, want %v", got, want)
	}
	_, err = w.p.Extraction(w.ctx, "somebody else", first.ExtractionId)
	refusedAs(t, "somebody else's", err, refusal.NotFound)
	other := proto.CloneOf(req)
	other.Count = 1
	_, err = w.p.Extract(w.ctx, operator, other)
	refusedAs(t, "the key with another request", err, refusal.AlreadyExists)
	theirs, err := w.p.Extract(w.ctx, "somebody else", req)
	w.must(err)
	if theirs.Replayed || theirs.ExtractionId == first.ExtractionId {
		t.Errorf("somebody else's key is answered %v", theirs)
	}
	short := proto.CloneOf(req)
	short.IdempotencyKey, short.Count = "short", 3
	some, err := w.p.Extract(w.ctx, operator, short)
	w.must(err)
	if len(some.Proxies) != 1 || some.Shortfall != 2 {
		t.Errorf("one is left: %v", some)
	}
	none := proto.CloneOf(req)
	none.IdempotencyKey = "none"
	_, err = w.p.Extract(w.ctx, operator, none)
	refusedAs(t, "nothing is left", err, refusal.Exhausted)
	// What had no answer is not remembered.
	w.clock.advance(2 * time.Hour)
	w.must(w.p.Sweep(w.ctx))
	w.add("dc", 2)
	late, err := w.p.Extract(w.ctx, operator, none)
	w.must(err)
	if late.Replayed || len(late.Proxies) != 2 {
		t.Errorf("later: %v", late)
	}
	w.clock.advance(22 * time.Hour)
	w.add("dc", 3)
	again, err := w.p.Extract(w.ctx, operator, short)
	w.must(err)
	if again.Replayed {
		t.Errorf("a key of yesterday that nobody has swept is answered %v", again)
	}
	w.must(w.p.Sweep(w.ctx))
	_, err = w.p.Extraction(w.ctx, operator, first.ExtractionId)
	refusedAs(t, "an extraction of yesterday", err, refusal.NotFound)
	w.add("dc", 2)
	fresh, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if fresh.Replayed {
		t.Errorf("a key of yesterday is answered %v", fresh)
	}
}

// TestExtractOnlyWhatMay: not what is unavailable, ends too soon, is of another
// protocol or label, or is switched off.
func TestExtractOnlyWhatMay(t *testing.T) {
	w := newWorld(t)
	ids := w.add("dc", 4)
	w.find(ownership.Suspect, ids[0])
	w.find(ownership.Unhealthy, ids[1])
	extract := func(edit func(*controlplanev1.ExtractRequest)) (int, error) {
		req := &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 4}
		edit(req)
		resp, err := w.p.Extract(w.ctx, operator, req)
		return len(resp.GetProxies()), err
	}
	_, err := extract(func(r *controlplanev1.ExtractRequest) { r.MinRemaining = durationpb.New(time.Hour) })
	refusedAs(t, "for longer than any lasts", err, refusal.Exhausted)
	_, err = extract(func(r *controlplanev1.ExtractRequest) { r.Protocol = controlplanev1.Proxy_PROTOCOL_SOCKS5 })
	refusedAs(t, "of another protocol", err, refusal.Exhausted)
	_, err = extract(func(r *controlplanev1.ExtractRequest) { r.Labels = map[string]string{"tier": "tin"} })
	refusedAs(t, "with another label", err, refusal.Exhausted)
	_, err = extract(func(r *controlplanev1.ExtractRequest) { r.Upstream, r.Routing = "", "nope" })
	refusedAs(t, "of no routing", err, refusal.NotFound)
	_, err = w.p.SetUpstream(w.ctx, operator, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "dc"})
	w.must(err)
	_, err = extract(func(*controlplanev1.ExtractRequest) {})
	refusedAs(t, "switched off", err, refusal.Precondition)
	_, err = w.p.SetUpstream(w.ctx, operator, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "dc", Enabled: true})
	w.must(err)
	if n, err := extract(func(r *controlplanev1.ExtractRequest) { r.Upstream, r.Routing = "", "all" }); n != 2 || err != nil {
		t.Errorf("of four, two that are available: %d, %v", n, err)
	}
}

// TestShortfall: what is short is taken from workers and kept for extraction.
func TestShortfall(t *testing.T) {
	w := newWorld(t)
	w.add("dc", 3)
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 3 }))
	x.report()
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 2}
	_, err := w.p.Extract(w.ctx, operator, req)
	refusedAs(t, "all are owned", err, refusal.Exhausted)
	w.allocate()
	x.accept(x.until("with fewer proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 1 }))
	if resp := x.report(); len(resp.ReleasedProxyIds) != 2 {
		t.Fatalf("released are %v", resp)
	}
	w.allocate() // they are not given out again
	got, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if len(got.Proxies) != 2 {
		t.Errorf("extracted are %v", got)
	}
}
