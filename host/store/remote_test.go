package store_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a store that several hosts reach over a network, as far as the
// engine can tell: a fake, kept the simplest way.
type server struct {
	mu       sync.Mutex
	revision uint64
	records  map[string]store.Record
	indexes  map[string]map[string]uint64
	logs     map[string][][]byte
	trimmed  map[string]uint64
	engines  []*store.Engine

	reads, commits, conflicts atomic.Int64

	epoch  atomic.Uint64
	noHard atomic.Bool // hard transactions are not admitted
	most   int         // writes seen in one union, under mu
	tries  []int       // Union.Conflicts of each commit, under mu
}

var errNoHard = errors.New("no hard transactions now")

func newServer() *server {
	return &server{records: map[string]store.Record{}, indexes: map[string]map[string]uint64{}, logs: map[string][][]byte{}, trimmed: map[string]uint64{}}
}

// host is one host's connection to the server.
type host struct {
	*server
	closed atomic.Bool
}

func (s *server) join(t testing.TB) *store.Engine {
	e := store.New(&host{server: s}, store.Options{MaxCached: 8, MaxBatchWrites: 10}) // small: things drop out
	s.mu.Lock()
	s.engines = append(s.engines, e)
	s.mu.Unlock()
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func (h *host) Now() time.Time   { return time.Now() }
func (h *host) Info() store.Info { return store.Info{Backend: "fake", State: "ready"} }
func (h *host) Close() error     { h.closed.Store(true); return nil }

func (h *host) Epoch() uint64 { return h.epoch.Load() }

func (h *host) Admit(d store.Durability) error {
	if h.closed.Load() {
		return store.ErrClosed
	}
	if d == store.Hard && h.noHard.Load() {
		return errNoHard
	}
	return nil
}

func (h *host) Read(_ context.Context, q *store.Query) (*store.Answer, error) {
	if h.closed.Load() {
		return nil, store.ErrClosed
	}
	h.reads.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &store.Answer{
		Revision: h.revision, Records: map[string]store.Record{}, Heads: map[string]uint64{},
		Scans: map[store.ScanQuery][]store.Entry{}, Logs: map[store.LogQuery][]store.LogEntry{},
	}
	for _, key := range q.Records {
		a.Records[key] = h.records[key]
	}
	for _, log := range q.Heads {
		a.Heads[log] = uint64(len(h.logs[log]))
	}
	for _, sq := range q.Scans {
		var found []store.Entry
		for member, score := range h.indexes[sq.Index] {
			if score >= sq.From && score <= sq.To {
				found = append(found, store.Entry{Member: member, Score: score})
			}
		}
		slices.SortFunc(found, store.CompareEntries)
		a.Scans[sq] = found[:min(len(found), sq.Limit)]
	}
	for _, lq := range q.Logs {
		var found []store.LogEntry
		for i, payload := range h.logs[lq.Log] {
			if seq := uint64(i + 1); seq >= lq.From && seq > h.trimmed[lq.Log] && len(found) < lq.Limit {
				found = append(found, store.LogEntry{Seq: seq, Payload: payload})
			}
		}
		a.Logs[lq] = found
	}
	return a, nil
}

func (h *host) Commit(_ context.Context, u *store.Union) (store.Outcome, error) {
	if h.closed.Load() {
		return store.Outcome{}, store.ErrClosed
	}
	h.commits.Add(1)
	h.mu.Lock()
	if u.Epoch != h.epoch.Load() {
		h.mu.Unlock()
		return store.Outcome{Conflict: &store.Answer{}}, nil
	}
	writes := 0
	for _, tx := range u.Txs {
		writes += len(tx.Records)
	}
	h.most = max(h.most, writes)
	h.tries = append(h.tries, u.Conflicts)
	fresh := &store.Answer{Revision: h.revision, Records: map[string]store.Record{}, Heads: map[string]uint64{}}
	conflict := u.Exact && u.Base != h.revision
	for key, version := range u.Reads {
		if r := h.records[key]; r.Version != version {
			fresh.Records[key], conflict = r, true
		}
	}
	for log, head := range u.Heads {
		if n := uint64(len(h.logs[log])); n != head {
			fresh.Heads[log], conflict = n, true
		}
	}
	if conflict {
		h.mu.Unlock()
		h.conflicts.Add(1)
		return store.Outcome{Conflict: fresh}, nil
	}
	base := h.revision
	for _, tx := range u.Txs {
		h.revision++
		h.apply(tx)
	}
	engines := h.engines
	h.mu.Unlock()
	for _, tx := range u.Txs {
		for _, w := range tx.Records {
			for _, e := range engines {
				e.Notify(w.Key)
			}
		}
	}
	return store.Outcome{Base: base}, nil
}

func (s *server) apply(tx store.TxWrites) {
	for _, w := range tx.Records {
		if w.Delete {
			delete(s.records, w.Key)
		} else {
			s.records[w.Key] = store.Record{Value: w.Value, Version: s.revision}
		}
	}
	for _, w := range tx.Indexes {
		if s.indexes[w.Index] == nil {
			s.indexes[w.Index] = map[string]uint64{}
		}
		if w.Delete {
			delete(s.indexes[w.Index], w.Member)
		} else {
			s.indexes[w.Index][w.Member] = w.Score
		}
	}
	for _, t := range tx.Trims {
		s.trimmed[t.Log] = max(s.trimmed[t.Log], t.Through)
	}
	for _, a := range tx.Appends {
		s.logs[a.Log] = append(s.logs[a.Log], a.Payload)
	}
}

// either sends each call to one of two hosts in turn.
type either struct {
	*store.Engine
	other *store.Engine
	n     *atomic.Int64
}

func (e either) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	if e.n.Add(1)%2 == 0 {
		return e.other.Update(ctx, d, fn)
	}
	return e.Engine.Update(ctx, d, fn)
}

func (e either) Close() error { return errors.Join(e.Engine.Close(), e.other.Close()) }

func TestSuiteOnARemote(t *testing.T) {
	t.Run("one host", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) store.Store {
			return newServer().join(t)
		})
	})
	t.Run("two hosts", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) store.Store {
			s := newServer()
			return either{Engine: s.join(t), other: s.join(t), n: new(atomic.Int64)}
		})
	})
}

func TestHostsDoNotLoseEachOthersWrites(t *testing.T) {
	s := newServer()
	hosts := []*store.Engine{s.join(t), s.join(t), s.join(t)}
	watch := hosts[2].Watch(t.Context(), "n")
	const callers, rounds = 4, 50
	var wg sync.WaitGroup
	for i, e := range hosts {
		for range callers {
			wg.Go(func() {
				for range rounds {
					err := e.Update(context.Background(), store.Hard, func(tx store.Tx) error {
						r, err := tx.Get("n")
						if err != nil {
							return err
						}
						if _, err := tx.Append("log", fmt.Append(nil, i)); err != nil {
							return err
						}
						return tx.Put("n", append(r.Value[:len(r.Value):len(r.Value)], 1))
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	<-watch
	want := len(hosts) * callers * rounds
	if got := len(s.records["n"].Value); got != want || len(s.logs["log"]) != want {
		t.Errorf("counted to %d, %d log lines, want %d of each", got, len(s.logs["log"]), want)
	}
	if s.revision != uint64(want) {
		t.Errorf("revision %d after %d transactions", s.revision, want)
	}
	tried := slices.Max(s.tries)
	if s.conflicts.Load() > 0 && tried == 0 {
		t.Error("no union says that it has met a conflict")
	}
	t.Logf("%d transactions: %d commits, %d conflicts, %d reads", want, s.commits.Load(), s.conflicts.Load(), s.reads.Load())
}

func TestRoundTrips(t *testing.T) {
	s := newServer()
	e := s.join(t)
	count := func(fn func(tx store.Tx) error) (reads, commits int64) {
		t.Helper()
		r, c := s.reads.Load(), s.commits.Load()
		if err := e.Update(t.Context(), store.Soft, fn); err != nil {
			t.Fatal(err)
		}
		return s.reads.Load() - r, s.commits.Load() - c
	}
	three := func(tx store.Tx) error {
		if _, err := tx.GetMany("a", "b", "c"); err != nil {
			return err
		}
		return tx.Put("a", nil)
	}
	if r, c := count(three); r != 1 || c != 1 {
		t.Errorf("three records missed in one GetMany: %d reads and %d commits, want 1 and 1", r, c)
	}
	if r, c := count(three); r != 0 || c != 1 {
		t.Errorf("the same again: %d reads and %d commits, want 0 and 1", r, c)
	}
	chain := func(tx store.Tx) error {
		for _, key := range []string{"x", "y", "z"} {
			if _, err := tx.Get(key); err != nil {
				return err
			}
		}
		return tx.Put("x", nil)
	}
	if r, c := count(chain); r != 3 || c != 1 {
		t.Errorf("a chain of three misses: %d reads and %d commits, want 3 and 1", r, c)
	}
}

// What a transaction asks for by the time is fetched once, however long that takes: it
// must not ask for something else in each run.
func TestScanUpToNow(t *testing.T) {
	s := newServer()
	slow := &ticking{host: host{server: s}}
	e := store.New(slow, store.Options{})
	defer func() { _ = e.Close() }()
	look := func(tx store.ReadTx) error {
		_, err := tx.Scan("due", 0, uint64(tx.Now().UnixNano()), 0)
		return err
	}
	before := s.reads.Load()
	if err := e.View(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	if n := s.reads.Load() - before; n != 2 {
		t.Errorf("a view that scans up to now takes %d round trips, want 2", n)
	}
	before = s.reads.Load()
	if err := e.Update(t.Context(), store.Soft, func(tx store.Tx) error {
		if err := look(tx); err != nil {
			return err
		}
		return tx.Put("k", nil)
	}); err != nil {
		t.Fatal(err)
	}
	if n := s.reads.Load() - before; n != 1 {
		t.Errorf("an update that scans up to now reads %d times, want once", n)
	}
}

// ticking is a host whose clock is another at each look, for so many looks that a
// transaction which never ends ends its test.
type ticking struct {
	host
	looks atomic.Int64
}

func (h *ticking) Now() time.Time { return time.Unix(0, min(h.looks.Add(1), 1000)) }

// What a function that fails has read is checked before its error is believed.
func TestErrorsDoNotRestOnAStaleCache(t *testing.T) {
	s := newServer()
	a, b := s.join(t), s.join(t)
	errTaken := errors.New("taken")
	take := func(tx store.Tx) error {
		r, err := tx.Get("seat")
		if err != nil {
			return err
		}
		if r.Exists() {
			return errTaken
		}
		return tx.Put("seat", nil)
	}
	if err := a.Update(t.Context(), store.Hard, take); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), store.Hard, func(tx store.Tx) error { return tx.Delete("seat") }); err != nil {
		t.Fatal(err)
	}
	if err := a.Update(t.Context(), store.Hard, take); err != nil {
		t.Errorf("the cache still has the record that another host deleted: %v", err)
	}
}

// A union keeps to its limit; a transaction that is larger by itself goes alone.
func TestUnionsKeepToTheirLimit(t *testing.T) {
	s := newServer()
	e := s.join(t)
	gate, inside := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	put := func(n int, begun func()) {
		wg.Go(func() {
			err := e.Update(context.Background(), store.Soft, func(tx store.Tx) error {
				begun()
				for i := range n {
					if err := tx.Put(fmt.Sprint(n, "-", i), nil); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	var once sync.Once
	put(1, func() { once.Do(func() { close(inside); <-gate }) })
	<-inside
	for _, n := range []int{4, 4, 4, 9, 3, 25, 2} { // all waiting at once
		put(n, func() {})
	}
	for e.Waiting() < 7 {
		runtime.Gosched()
	}
	close(gate)
	wg.Wait()
	if s.most != 25 {
		t.Errorf("the largest union had %d writes, want 25: the large transaction alone", s.most)
	}
	for _, n := range []int{1, 4, 9, 3, 25, 2} {
		if r := s.records[fmt.Sprint(n, "-", n-1)]; !r.Exists() {
			t.Errorf("the transaction with %d writes is not there", n)
		}
	}
}

// What is not admitted fails at once, and holds up nobody else.
func TestAdmission(t *testing.T) {
	s := newServer()
	e := s.join(t)
	s.noHard.Store(true)
	err := e.Update(t.Context(), store.Hard, func(store.Tx) error { t.Error("it runs"); return nil })
	if !errors.Is(err, errNoHard) {
		t.Errorf("a hard update: %v", err)
	}
	if err := e.Update(t.Context(), store.Soft, func(tx store.Tx) error { return tx.Put("k", nil) }); err != nil {
		t.Errorf("a soft update: %v", err)
	}
}

// When the data is another, nothing that was cached of the old one counts, though
// its version be the same.
func TestEpoch(t *testing.T) {
	s := newServer()
	e := s.join(t)
	for _, value := range []string{"old", "new"} {
		s.mu.Lock()
		s.revision = 7
		s.records["k"] = store.Record{Value: []byte(value), Version: 7}
		s.mu.Unlock()
		s.epoch.Add(1)
		var got string
		err := e.Update(t.Context(), store.Soft, func(tx store.Tx) error {
			r, err := tx.Get("k")
			got = string(r.Value)
			return errors.Join(err, tx.Put("seen", nil))
		})
		if err != nil || got != value {
			t.Errorf("read %q, want %q (%v)", got, value, err)
		}
	}
}
