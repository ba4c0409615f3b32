package pool_test

import (
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/refusal"
)

// TestKeyUsedAgainAfterADay: what is forgotten of a key's first extraction, a day later,
// leaves that which the key stands for by then alone.
func TestKeyUsedAgainAfterADay(t *testing.T) {
	w := newWorld(t)
	w.add("dc", 1)
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "daily", Upstream: "dc", Count: 1}
	first, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	w.clock.advance(24 * time.Hour)
	w.add("dc", 3) // before the hosts have forgotten anything
	second, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if second.Replayed || second.ExtractionId == first.ExtractionId {
		t.Fatalf("a day later the key is answered %v", second)
	}
	w.must(w.p.Sweep(w.ctx))
	_, err = w.p.Extraction(w.ctx, operator, first.ExtractionId)
	refusedAs(t, "the first one", err, refusal.NotFound)
	again, err := w.p.Extract(w.ctx, operator, req)
	w.must(err)
	if !again.Replayed || again.ExtractionId != second.ExtractionId {
		t.Errorf("the same again gave more proxies: %v after %v", again, second)
	}
}
