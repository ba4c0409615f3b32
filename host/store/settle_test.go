package store_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// slow is a backend that has nothing in it, and is durable when the test says so.
type slow struct {
	revision uint64
	asked    chan context.Context // a Durable has begun
	durable  chan error           // ends one
}

type nothing struct{ revision uint64 }

func (n nothing) Revision() uint64                                    { return n.revision }
func (nothing) Get(string) store.Record                               { return store.Record{} }
func (nothing) Scan(string, uint64, uint64, int) []store.Entry        { return nil }
func (nothing) LogHead(string) uint64                                 { return 0 }
func (nothing) ReadLog(string, uint64, int) ([]store.LogEntry, error) { return nil, nil }
func (nothing) Settle(context.Context) (bool, error)                  { return true, nil }
func (s *slow) Snapshot() (store.Snapshot, error)                     { return nothing{s.revision}, nil }
func (s *slow) Now() time.Time                                        { return time.Now() }
func (s *slow) Info() store.Info                                      { return store.Info{} }
func (s *slow) Close() error                                          { return nil }
func (s *slow) Commit(_ context.Context, u *store.Union) (store.Outcome, error) {
	out := store.Outcome{Base: s.revision}
	s.revision += uint64(len(u.Txs))
	if u.Hard {
		out.Durable = func(ctx context.Context) error {
			s.asked <- ctx
			select {
			case err := <-s.durable:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return out, nil
}

// The caller who waits for the disk in the name of his batch may leave; another
// takes over, and all are answered alike.
func TestAnotherCallSettlesWhenOneLeaves(t *testing.T) {
	lost := errors.New("lost")
	for _, want := range []error{nil, lost} {
		b := &slow{asked: make(chan context.Context), durable: make(chan error)}
		e := store.New(b, store.Options{})
		gate, inside := make(chan struct{}), make(chan struct{})
		soft := make(chan error, 1)
		go func() {
			soft <- e.Update(t.Context(), store.Soft, func(tx store.Tx) error {
				close(inside)
				<-gate
				return tx.Put("first", nil)
			})
		}()
		<-inside // what comes now is one batch
		const callers = 4
		type name struct{}
		var cancels [callers]context.CancelFunc
		var results [callers]chan error
		for i := range callers {
			var ctx context.Context
			ctx, cancels[i] = context.WithCancel(context.WithValue(t.Context(), name{}, i))
			defer cancels[i]()
			results[i] = make(chan error, 1)
			go func() {
				results[i] <- e.Update(ctx, store.Hard, func(tx store.Tx) error { return tx.Put("k", nil) })
			}()
		}
		for e.Waiting() < callers {
			runtime.Gosched()
		}
		close(gate)
		if err := <-soft; err != nil {
			t.Fatal(err)
		}
		settler := (<-b.asked).Value(name{}).(int)
		// One that sleeps leaves, then the one that waits for the disk.
		sleeper := (settler + 1) % callers
		for _, i := range []int{sleeper, settler} {
			cancels[i]()
			if err := <-results[i]; !errors.Is(err, context.Canceled) {
				t.Errorf("a call that left got %v", err)
			}
		}
		next := (<-b.asked).Value(name{}).(int)
		if next == settler || next == sleeper {
			t.Errorf("call %d, which has left, is asked to settle", next)
		}
		b.durable <- want
		for i := range callers {
			if i == settler || i == sleeper {
				continue
			}
			if err := <-results[i]; err != want { //nolint:errorlint // as it is
				t.Errorf("call %d got %v, want %v", i, err, want)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
