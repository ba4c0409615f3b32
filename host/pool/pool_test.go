package pool_test

import (
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
)

// TestDrainThenExtract goes the whole way of a proxy: owned, in use, drained, released
// when its worker says that it is not used any more, extracted.
func TestDrainThenExtract(t *testing.T) {
	w := newWorld(t)
	ids := w.add("dc", 1)
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, ids[0]) }))
	x.uses[ids[0]] = 2
	x.report()
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "k1", Upstream: "dc", Count: 1}
	if _, err := w.p.Extract(w.ctx, operator, req); !refusal.Is(err, refusal.Exhausted) {
		t.Fatalf("an owned proxy was extracted, or: %v", err)
	}
	ticket, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: ids[0], Reason: "for a test"})
	w.must(err)
	if ticket.State != ownership.Pending || ticket.WorkerId != "w1" {
		t.Fatalf("the ticket is %v", ticket)
	}
	without := x.until("without the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, ids[0]) })
	if resp := x.report(); len(resp.RevokeProxyIds) != 1 || len(resp.ReleasedProxyIds) != 0 {
		t.Fatalf("before the barrier: %v", resp)
	}
	x.accept(without)
	if resp := x.report(); len(resp.RevokeProxyIds) != 0 || len(resp.ReleasedProxyIds) != 0 {
		t.Fatalf("while it is in use: %v", resp)
	}
	if _, err := w.p.Extract(w.ctx, operator, req); !refusal.Is(err, refusal.Exhausted) {
		t.Fatalf("a proxy in use was extracted, or: %v", err)
	}
	x.uses = nil
	reserved := func(r *controlplanev1.ReportRuntimeRequest) {
		r.Counters = []*controlplanev1.RuntimeCounter{{ProxyId: ids[0], Reserved: 1, Draining: true}}
	}
	if resp := x.report(reserved); len(resp.ReleasedProxyIds) != 0 {
		t.Fatalf("while a place on it is reserved: %v", resp)
	}
	if resp := x.report(); len(resp.ReleasedProxyIds) != 1 {
		t.Fatalf("unused: %v", resp)
	}
	got, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if len(got.Proxies) != 1 || got.Proxies[0].Proxy.ProxyId != ids[0] || got.Replayed {
		t.Fatalf("extracted: %v", got)
	}
	again, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if !again.Replayed || again.ExtractionId != got.ExtractionId || again.Proxies[0].Proxy.ProxyId != ids[0] {
		t.Fatalf("the same key: %v", again)
	}
	var kinds []string
	for _, e := range w.chain() {
		kinds = append(kinds, e.Kind+" "+e.Detail["state"])
	}
	want := []string{"pool.config ", "pool.import ", "pool.drain PENDING", "pool.drain RELEASED", "pool.extract "}
	if len(kinds) != len(want) {
		t.Fatalf("entries %q", kinds)
	}
	for i := range want {
		if kinds[i] != want[i] {
			t.Errorf("entry %d is %q, want %q", i, kinds[i], want[i])
		}
	}
}
