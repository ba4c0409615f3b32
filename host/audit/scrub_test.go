package audit_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// tampered is a store whose logs somebody has been at: what is read of them has
// gone through alter.
type tampered struct {
	store.Store
	mu    sync.Mutex
	alter func(log string, lines []store.LogEntry) ([]store.LogEntry, error)
}

func (s *tampered) set(alter func(log string, lines []store.LogEntry) ([]store.LogEntry, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alter = alter
}

func (s *tampered) View(ctx context.Context, fn func(store.ReadTx) error) error {
	s.mu.Lock()
	alter := s.alter
	s.mu.Unlock()
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(tamperedTx{tx, alter}) })
}

type tamperedTx struct {
	store.ReadTx
	alter func(log string, lines []store.LogEntry) ([]store.LogEntry, error)
}

func (tx tamperedTx) ReadLog(log string, from uint64, limit int) ([]store.LogEntry, error) {
	lines, err := tx.ReadTx.ReadLog(log, from, limit)
	if err != nil || tx.alter == nil {
		return lines, err
	}
	return tx.alter(log, append([]store.LogEntry{}, lines...))
}

// at applies do to entry seq of the chain web, if it is among those read.
func at(seq uint64, do func(lines []store.LogEntry, i int) []store.LogEntry) func(string, []store.LogEntry) ([]store.LogEntry, error) {
	return func(log string, lines []store.LogEntry) ([]store.LogEntry, error) {
		for i, l := range lines {
			if log == "audit/web" && l.Seq == seq {
				return do(lines, i), nil
			}
		}
		return lines, nil
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(limit) {
			t.Fatalf("%s: never", what)
		}
		<-time.After(time.Millisecond)
	}
}

// TestScrub: a changed, missing or swapped entry is named; the chain then takes no
// control action, data and the other chains go on; and all does when it holds again.
func TestScrub(t *testing.T) {
	flip := func(lines []store.LogEntry, i int) []store.LogEntry {
		lines[i].Payload = bytes.Replace(lines[i].Payload, []byte("local:dev"), []byte("local:dew"), 1)
		return lines
	}
	for _, tc := range []struct {
		name  string
		alter func(string, []store.LogEntry) ([]store.LogEntry, error)
		want  string
		ends  bool // no entry can follow
	}{
		{"flipped", at(700, flip), "chain web: entry 701 does not continue", false},
		{"missing", at(1200, func(lines []store.LogEntry, i int) []store.LogEntry { return append(lines[:i:i], lines[i+1:]...) }), "chain web: entry 1200 says it is number 1201", false},
		{"swapped", at(3, func(lines []store.LogEntry, i int) []store.LogEntry {
			lines[i].Payload, lines[i+1].Payload = lines[i+1].Payload, lines[i].Payload
			return lines
		}), "chain web: entry 3 says it is number 4", false},
		{"unreadable", func(log string, lines []store.LogEntry) ([]store.LogEntry, error) {
			if log == "audit/web" && len(lines) > 0 && lines[0].Seq == 1 {
				return nil, errors.New("store: log audit/web: entry 7 is missing")
			}
			return lines, nil
		}, "entry 7 is missing", false},
		{"the last flipped", at(1500, flip), "chain web: ", true},
		{"the last missing", at(1500, func(lines []store.LogEntry, i int) []store.LogEntry { return lines[:i] }), "chain web: ", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st, log := open(t)
			for _, chain := range []string{"web", "pay"} {
				update(t, st, func(tx store.Tx) error {
					for i := range 1500 {
						if err := log.Append(tx, chain, entry(i)); err != nil {
							return err
						}
					}
					return nil
				})
			}
			bad := &tampered{Store: st}
			metrics := prometheus.NewRegistry()
			scrub, err := audit.NewScrub(audit.ScrubOptions{
				Store: bad, Log: log, Every: 10 * time.Millisecond, Ends: 5 * time.Millisecond, Registerer: metrics,
				Chains: func(store.ReadTx) ([]string, error) { return []string{"pay", "web"}, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- scrub.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			write := func(chain, kind string) error {
				return audit.Guard(st).Update(context.Background(), store.Hard, func(tx store.Tx) error {
					return log.Append(tx, chain, audit.Entry{Kind: kind, Actor: "local:dev"})
				})
			}
			bad.set(tc.alter)
			eventually(t, "the damage to be named", func() bool {
				d := log.Damaged()
				return len(d) == 1 && strings.Contains(d[0], tc.want)
			})
			var refused *refusal.Error
			if err := write("web", "flag.set"); !errors.As(err, &refused) || refused.Kind != refusal.Unavailable || refused.Reason != "audit" || !strings.Contains(err.Error(), "chain web") && !strings.Contains(err.Error(), "audit/web") {
				t.Errorf("a control action on the damaged chain: %v", err)
			}
			before, _ := check(st, log, "web")
			if err := write("web", "endpoint.register"); err != nil {
				t.Errorf("data of the damaged chain: %v", err)
			}
			after, err := check(st, log, "web")
			if follows := after == before+1; err != nil || follows == tc.ends {
				t.Errorf("the entry of data follows: %v, %v", follows, err)
			}
			if err := write("pay", "flag.set"); err != nil {
				t.Errorf("a control action on another chain: %v", err)
			}
			if n := value(t, metrics, "dona_audit_damaged_chains"); n != 1 {
				t.Errorf("dona_audit_damaged_chains is %v", n)
			}
			bad.set(nil)
			eventually(t, "the chain to hold again", func() bool { return len(log.Damaged()) == 0 })
			if err := write("web", "flag.set"); err != nil {
				t.Errorf("a control action on the chain as it was: %v", err)
			}
			if n := value(t, metrics, "dona_audit_scrubbed_entries_total"); n < 3000 {
				t.Errorf("dona_audit_scrubbed_entries_total is %v, and two chains of 1500 hold", n)
			}
		})
	}
}

func value(t *testing.T, metrics *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestScrubOfAStoreThatIsAway says nothing of the chains.
func TestScrubOfAStoreThatIsAway(t *testing.T) {
	st, log := open(t)
	update(t, st, func(tx store.Tx) error { return log.Append(tx, "web", entry(1)) })
	looks := make(chan struct{}, 1000)
	bad := &tampered{Store: st, alter: func(string, []store.LogEntry) ([]store.LogEntry, error) {
		select {
		case looks <- struct{}{}:
		default:
		}
		return nil, store.ErrUnavailable
	}}
	scrub, err := audit.NewScrub(audit.ScrubOptions{Store: bad, Log: log, Every: time.Millisecond, Ends: time.Millisecond,
		Chains: func(store.ReadTx) ([]string, error) { return []string{"web"}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- scrub.Run(ctx) }()
	for range 10 {
		<-looks
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := log.Damaged(); len(d) != 0 {
		t.Errorf("%q", d)
	}
}
