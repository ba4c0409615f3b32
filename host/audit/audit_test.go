package audit_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func chainHead(seq uint64, hash [32]byte) *statev1.ChainHead {
	return &statev1.ChainHead{Seq: seq, Hash: hash[:]}
}

func open(t *testing.T) (*embedded.Store, *audit.Log) {
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	return st, audit.New("example.org")
}

func update(t *testing.T, st store.Store, fn func(tx store.Tx) error) {
	t.Helper()
	if err := st.Update(context.Background(), store.Hard, fn); err != nil {
		t.Fatal(err)
	}
}

func check(st store.Store, log *audit.Log, chain string) (n uint64, err error) {
	viewErr := st.View(context.Background(), func(tx store.ReadTx) error { n, err = log.Check(tx, chain); return nil })
	return n, errors.Join(err, viewErr)
}

func entry(i int) audit.Entry {
	return audit.Entry{Kind: "flag.set", Actor: "local:dev", Detail: map[string]string{"flag": fmt.Sprintf("f%d", i)}}
}

// TestActionAndEntry: neither is there without the other.
func TestActionAndEntry(t *testing.T) {
	st, log := open(t)
	refused := errors.New("no")
	for i := range 10 {
		err := st.Update(context.Background(), store.Hard, func(tx store.Tx) error {
			if err := tx.Put("action", []byte{byte(i)}); err != nil {
				return err
			}
			if err := log.Append(tx, "web", entry(i)); err != nil {
				return err
			}
			if i%2 == 1 {
				return refused
			}
			return nil
		})
		if (i%2 == 1) != errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	if n, err := check(st, log, "web"); err != nil || n != 5 {
		t.Errorf("%d entries, %v; want the 5 of the actions that happened", n, err)
	}
	err := st.Update(context.Background(), store.Hard, func(tx store.Tx) error {
		if err := tx.Put("action", []byte("x")); err != nil {
			return err
		}
		return log.Append(tx, "web", audit.Entry{Kind: "flag.set", Actor: "local:dev", Detail: map[string]string{"token": "s3cret"}})
	})
	if !errors.Is(err, audit.ErrRefused) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("an entry with a key that has no place: %v", err)
	}
	_ = st.View(context.Background(), func(tx store.ReadTx) error {
		rec, err := tx.Get("action")
		if err != nil || rec.Value[0] != 8 {
			t.Errorf("the action of a refused entry is there: %v, %v", rec, err)
		}
		return err
	})
}

// TestConcurrent: many writers of one chain, no gap and no fork.
func TestConcurrent(t *testing.T) {
	st, log := open(t)
	const writers, each = 8, 25
	done := make(chan error, writers)
	for w := range writers {
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				err = st.Update(context.Background(), store.Hard, func(tx store.Tx) error { return log.Append(tx, "web", entry(w*each+i)) })
			}
			done <- err
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n, err := check(st, log, "web"); err != nil || n != writers*each {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	fill := func(t *testing.T) (*embedded.Store, *audit.Log) {
		st, log := open(t)
		for i := range 5 {
			update(t, st, func(tx store.Tx) error { return log.Append(tx, "web", entry(i)) })
		}
		return st, log
	}
	for _, tc := range []struct {
		name   string
		damage func(tx store.Tx) error
		want   string
	}{
		{"a cut tail", func(tx store.Tx) error {
			return store.Save(tx, "audit/web/head", &statev1.ChainHead{Seq: 6, Hash: make([]byte, 32)})
		}, "ends at entry 5"},
		{"another head", func(tx store.Tx) error {
			return store.Save(tx, "audit/web/head", &statev1.ChainHead{Seq: 5, Hash: make([]byte, 32)})
		}, "ends at entry 5"},
		{"a foreign line", func(tx store.Tx) error {
			_, err := tx.Append("audit/web", fmt.Appendf(nil, `{"v":"dona-audit-v1","seq":6,"time_ms":1,"service":"web","kind":"flag.set","actor":"local:dev","detail":{},"evidence":[],"prev":"%064d"}`, 0))
			return err
		}, "entry 6 does not continue"},
	} {
		st, log := fill(t)
		update(t, st, tc.damage)
		if _, err := check(st, log, "web"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
		if _, err := check(st, audit.New("other.org"), "web"); err == nil {
			t.Errorf("%s: another trust domain's chain passes", tc.name)
		}
	}
	// A log that runs ahead of its head refuses the next action.
	st, log := fill(t)
	update(t, st, func(tx store.Tx) error { _, err := tx.Append("audit/web", []byte("{}")); return err })
	err := st.Update(context.Background(), store.Hard, func(tx store.Tx) error { return log.Append(tx, "web", entry(9)) })
	if err == nil || !strings.Contains(err.Error(), "chain web") {
		t.Errorf("an append to a damaged chain: %v", err)
	}
}

func TestEvidence(t *testing.T) {
	st, log := open(t)
	data := []byte(`{"status":"success"}`)
	e := audit.Entry{Kind: "rollout.step", Actor: "host:h1", Evidence: []audit.Evidence{{Kind: "query:p99", Data: data}}}
	update(t, st, func(tx store.Tx) error { return log.Append(tx, "web", e) })
	_ = st.View(context.Background(), func(tx store.ReadTx) error {
		lines, err := tx.ReadLog("audit/web", 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`"evidence":[{"kind":"query:p99","sha256":"%x","bytes":%d}]`, sha256.Sum256(data), len(data))
		if !strings.Contains(string(lines[0].Payload), want) {
			t.Errorf("the line is %s, want %s in it", lines[0].Payload, want)
		}
		var blob statev1.EvidenceBlob
		version, err := store.Load(tx, fmt.Sprintf("audit/web/blob/%x", sha256.Sum256(data)), &blob)
		if err != nil || version == 0 || string(blob.Data) != string(data) {
			t.Errorf("the evidence is kept as %v, %v", &blob, err)
		}
		return nil
	})
}

// TestClockStep: a store whose clock fell, by a restore, says so in the host's
// chain.
func TestClockStep(t *testing.T) {
	st, log := open(t)
	update(t, st, func(tx store.Tx) error { return log.Append(tx, "web", entry(1)) })
	update(t, st, func(tx store.Tx) error {
		var head statev1.ChainHead
		if _, err := store.Load(tx, "audit/web/head", &head); err != nil {
			return err
		}
		head.TimeMs += 3_600_000
		return store.Save(tx, "audit/web/head", &head)
	})
	update(t, st, func(tx store.Tx) error { return log.Append(tx, "web", entry(2)) })
	if n, err := check(st, log, audit.HostChain); err != nil || n != 1 {
		t.Errorf("the host's chain has %d entries, %v; want one clock.step", n, err)
	}
	if n, err := check(st, log, "web"); err != nil || n != 2 {
		t.Errorf("the chain has %d entries, %v", n, err)
	}
}

// failing is a store whose updates answer what the test says, or nothing.
type failing struct {
	store.Store
	err error // nil: never answers
}

func (f failing) Update(ctx context.Context, _ store.Durability, _ func(store.Tx) error) error {
	if f.err == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.err
}

func TestGuard(t *testing.T) {
	own := errors.New("of the function")
	for _, tc := range []struct {
		name   string
		err    error
		d      store.Durability
		refuse bool
	}{
		{"full", fmt.Errorf("commit: %w", store.ErrFull), store.Hard, true},
		{"read-only", store.ErrReadOnly, store.Hard, true},
		{"closed", store.ErrClosed, store.Hard, true},
		{"unknown", store.ErrUnknown, store.Hard, true},
		{"away", store.ErrUnavailable, store.Hard, true},
		{"foreign", store.ErrForeign, store.Hard, true},
		{"stuck", nil, store.Hard, true},
		{"the function's own error", own, store.Hard, false},
		{"soft", store.ErrFull, store.Soft, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := audit.Guard(failing{err: tc.err}).Update(context.Background(), tc.d, nil)
				var refused *refusal.Error
				if got := errors.As(err, &refused); got != tc.refuse || got && (refused.Kind != refusal.Unavailable || refused.Reason != "audit") {
					t.Errorf("%v, %+v", err, refused)
				}
				if took := time.Since(began); took > audit.Wait {
					t.Errorf("answered after %v", took)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := audit.Guard(failing{}).Update(ctx, store.Hard, nil); !errors.Is(err, context.DeadlineExceeded) || refusal.Is(err, refusal.Unavailable) {
			t.Errorf("the caller's own deadline: %v", err)
		}
	})
}
