package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dodona-project/dodona/host/store"
)

// History records what concurrent clients did to records, each a register with
// compare-and-set, and judges whether it could have happened one after the
// other. It may be used concurrently. Times are nanoseconds of any clock that
// all clients share.
type History struct {
	mu  sync.Mutex
	ops []porcupine.Operation
}

// Op is one operation on the record Key. A write is a compare-and-set: it
// succeeds exactly if the record's value is Old. Values are numbers, 0 = the
// record does not exist; no two writes of a history write the same one.
type Op struct {
	Client int
	Key    string
	Write  bool
	Old    int64
	New    int64

	// What came of it. Unknown: a write whose outcome nobody told.
	OK      bool  // of a write: the value was Old
	Value   int64 // of a read
	Unknown bool
}

// Add records an operation that ran from call to end. Of one with an unknown
// outcome the end does not count: it may still happen.
func (h *History) Add(op Op, call, end int64) {
	if op.Unknown {
		if !op.Write {
			return // nobody has seen anything
		}
		end = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: op.Client, Input: op, Output: op, Call: call, Return: end})
}

// Check fails the test when the history is not linearizable.
func (h *History) Check(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch porcupine.CheckOperationsTimeout(register, h.ops, time.Minute) {
	case porcupine.Illegal:
		t.Errorf("the history of %d operations is not linearizable", len(h.ops))
	case porcupine.Unknown:
		t.Logf("the history of %d operations could not be judged within a minute", len(h.ops))
	}
}

var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range history {
			key := op.Input.(Op).Key
			byKey[key] = append(byKey[key], op)
		}
		for _, ops := range byKey {
			parts = append(parts, ops)
		}
		return parts
	},
	Init: func() any { return int64(0) },
	Step: func(state, _, output any) (bool, any) {
		value, op := state.(int64), output.(Op)
		switch {
		case !op.Write:
			return op.Value == value, value
		case op.Unknown && op.Old == value:
			return true, op.New
		case op.Unknown:
			return true, value
		case op.OK:
			return op.Old == value, op.New
		}
		return op.Old != value, value
	},
	DescribeOperation: func(_, output any) string { return fmt.Sprintf("%+v", output) },
}

var errOther = errors.New("another value")

// CompareAndSet does op, which must be a write, in one transaction and fills in
// what came of it. It returns an error when the outcome is not known.
func (op *Op) CompareAndSet(ctx context.Context, s store.Store, d store.Durability) error {
	err := s.Update(ctx, d, func(tx store.Tx) error {
		r, err := tx.Get(op.Key)
		if err != nil {
			return err
		}
		if number(r) != op.Old {
			return errOther
		}
		return tx.Put(op.Key, strconv.AppendInt(nil, op.New, 10))
	})
	switch {
	case err == nil:
		op.OK = true
	case errors.Is(err, errOther):
	default:
		op.Unknown = true
		return err
	}
	return nil
}

// Read does op, which must be a read.
func (op *Op) Read(ctx context.Context, s store.Store) error {
	err := s.View(ctx, func(tx store.ReadTx) error {
		r, err := tx.Get(op.Key)
		op.Value = number(r)
		return err
	})
	op.Unknown = err != nil
	return err
}

func number(r store.Record) int64 {
	n, _ := strconv.ParseInt(string(r.Value), 10, 64)
	return n
}

// runHistory has clients read and swap a few records and judges the history.
// Some leave in the middle of a write.
func runHistory(t *testing.T, open Factory) {
	s := open(t)
	var h History
	start := time.Now()
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 7))
			for n := range 60 {
				op := Op{Client: client, Key: fmt.Sprint("k", rng.IntN(3))}
				ctx, cancel := context.WithCancel(context.Background())
				call := time.Since(start).Nanoseconds()
				err := op.Read(ctx, s)
				h.Add(op, call, time.Since(start).Nanoseconds())
				if err != nil {
					t.Error(err)
				}
				op.Write, op.Old, op.New = true, op.Value, int64(1+client+8*n)
				d := store.Durability(1 + rng.IntN(2))
				if rng.IntN(10) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, cancel)
				}
				call = time.Since(start).Nanoseconds()
				err = op.CompareAndSet(ctx, s, d)
				h.Add(op, call, time.Since(start).Nanoseconds())
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	h.Check(t)
}
