package session_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// report plays one ReportStats on the fence.
func report(st store.Store, reporter string, sequence uint64, content string, dropped uint32) (res session.FenceResult, err error) {
	err = st.Update(context.Background(), store.Soft, func(tx store.Tx) (err error) {
		if res, err = session.Fence(tx, reporter, sequence, sha256.Sum256([]byte(content))); err != nil || res.Kind != session.Accepted {
			return err
		}
		return session.FenceDropped(tx, reporter, dropped)
	})
	return res, err
}

func TestFence(t *testing.T) {
	st := openStore(t)
	for i, step := range []struct {
		sequence uint64
		content  string
		dropped  uint32
		want     session.FenceResult
		refused  refusal.Kind
	}{
		{5, "a", 3, session.FenceResult{Kind: session.Accepted}, 0}, // the first may have any number
		{5, "a", 0, session.FenceResult{Kind: session.Replay, Dropped: 3}, 0},
		{5, "a", 0, session.FenceResult{Kind: session.Replay, Dropped: 3}, 0},
		{5, "b", 0, session.FenceResult{}, refusal.AlreadyExists},
		{6, "b", 0, session.FenceResult{Kind: session.Accepted}, 0},
		{5, "a", 0, session.FenceResult{}, refusal.Aborted},
		{10, "c", 1, session.FenceResult{Kind: session.Accepted, Gap: 3}, 0},
		{0, "d", 0, session.FenceResult{Kind: session.Unfenced}, 0},
		{10, "c", 0, session.FenceResult{Kind: session.Replay, Dropped: 1}, 0},
	} {
		got, err := report(st, "r", step.sequence, step.content, step.dropped)
		if got != step.want || (step.refused != 0) != (err != nil) || err != nil && !refusal.Is(err, step.refused) {
			t.Errorf("step %d: %+v, %v", i, got, err)
		}
	}
	if got, err := report(st, "other", 1, "a", 0); err != nil || got.Kind != session.Accepted {
		t.Errorf("another reporter: %+v, %v", got, err)
	}
	err := st.Update(t.Context(), store.Soft, func(tx store.Tx) error { return session.FenceDropped(tx, "nobody", 1) })
	if err == nil {
		t.Error("a fence that was not taken took a count")
	}
}

func TestFenceIsKeptAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		for i := range 2100 {
			if _, err := report(st, fmt.Sprintf("r%d", i), 9, "a", 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(session.FenceKept / 2)
		if _, err := report(st, "r0", 9, "a", 0); err != nil { // a replay is a use
			t.Fatal(err)
		}
		time.Sleep(session.FenceKept/2 - time.Millisecond)
		if n, err := session.SweepFences(t.Context(), st); n != 0 || err != nil {
			t.Fatalf("swept %d within the hour, %v", n, err)
		}
		time.Sleep(time.Millisecond)
		if n, err := session.SweepFences(t.Context(), st); n != 2099 || err != nil {
			t.Fatalf("swept %d after the hour, %v", n, err)
		}
		if _, err := report(st, "r0", 8, "a", 0); !refusal.Is(err, refusal.Aborted) {
			t.Errorf("the fence in use was swept: %v", err)
		}
		if got, err := report(st, "r1", 3, "a", 0); err != nil || got != (session.FenceResult{Kind: session.Accepted}) {
			t.Errorf("after the sweep: %+v, %v", got, err)
		}
	})
}

// TestRegistrySweepsFences sees Run do it.
func TestRegistrySweepsFences(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := report(r.store, "r", 9, "a", 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(session.FenceKept + 2*time.Minute)
		synctest.Wait()
		if err := r.store.View(r.Context(), func(tx store.ReadTx) error {
			if version, err := store.Load(tx, "fence/r", &statev1.Fence{}); err != nil || version != 0 {
				t.Errorf("the fence is still there: %d, %v", version, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFenceProperties compares random reports with a model: each content of a
// sequence is counted at most once, and sequences only rise.
func TestFenceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := embedded.OpenMemory(embedded.Options{})
		defer st.Close()
		type last struct {
			sequence uint64
			content  string
			dropped  uint32
		}
		model := map[string]*last{}
		for range rapid.IntRange(1, 60).Draw(t, "reports") {
			who := rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "reporter")
			seq := rapid.Uint64Range(1, 8).Draw(t, "sequence")
			content := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "content")
			dropped := rapid.Uint32Range(0, 5).Draw(t, "dropped")
			got, err := report(st, who, seq, content, dropped)
			m := model[who]
			switch {
			case m == nil || seq > m.sequence:
				gap := uint64(0)
				if m != nil {
					gap = seq - m.sequence - 1
				}
				if err != nil || got != (session.FenceResult{Kind: session.Accepted, Gap: gap}) {
					t.Fatalf("%s %d: %+v, %v", who, seq, got, err)
				}
				model[who] = &last{seq, content, dropped}
			case seq < m.sequence:
				if !refusal.Is(err, refusal.Aborted) {
					t.Fatalf("%s %d after %d: %v", who, seq, m.sequence, err)
				}
			case content == m.content:
				if err != nil || got != (session.FenceResult{Kind: session.Replay, Dropped: m.dropped}) {
					t.Fatalf("%s %d again: %+v, %v", who, seq, got, err)
				}
			default:
				if !refusal.Is(err, refusal.AlreadyExists) {
					t.Fatalf("%s %d with other content: %v", who, seq, err)
				}
			}
		}
	})
}
