package store

import (
	"context"
	"iter"
	"sync"
	"time"
)

// watches tells those who watch a prefix that a record below it has changed.
// Each has a channel of one place: who is behind finds one notice, not many.
type watches struct {
	relist time.Duration

	mu       sync.Mutex
	closed   bool
	byPrefix map[string]map[*watch]struct{}
	lengths  map[int]int // how many prefixes of each length are watched
}

type watch struct {
	prefix string
	ch     chan struct{}
	timer  *time.Timer
	stop   func() bool
}

func newWatches(relist time.Duration) *watches {
	return &watches{relist: relist, byPrefix: make(map[string]map[*watch]struct{}), lengths: make(map[int]int)}
}

func (w *watches) add(ctx context.Context, prefix string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := &watch{prefix: prefix, ch: make(chan struct{}, 1)}
	if w.closed || ctx.Err() != nil {
		close(one.ch)
		return one.ch
	}
	set := w.byPrefix[prefix]
	if set == nil {
		set = make(map[*watch]struct{})
		w.byPrefix[prefix] = set
		w.lengths[len(prefix)]++
	}
	set[one] = struct{}{}
	one.timer = time.AfterFunc(w.relist, func() { w.tick(one) })
	one.stop = context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remove(one)
	})
	return one.ch
}

func (w *watches) tick(one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.byPrefix[one.prefix][one]; !ok {
		return
	}
	one.fire()
	one.timer.Reset(w.relist)
}

func (one *watch) fire() {
	select {
	case one.ch <- struct{}{}:
	default:
	}
}

// remove ends a watch once. The caller holds mu.
func (w *watches) remove(one *watch) {
	set := w.byPrefix[one.prefix]
	if _, ok := set[one]; !ok {
		return
	}
	delete(set, one)
	if len(set) == 0 {
		delete(w.byPrefix, one.prefix)
		if w.lengths[len(one.prefix)]--; w.lengths[len(one.prefix)] == 0 {
			delete(w.lengths, len(one.prefix))
		}
	}
	one.timer.Stop()
	one.stop()
	close(one.ch)
}

// notify fires the watches of these records.
func (w *watches) notify(keys iter.Seq[string]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byPrefix) == 0 {
		return
	}
	for key := range keys {
		for n := range w.lengths {
			if n > len(key) {
				continue
			}
			for one := range w.byPrefix[key[:n]] {
				one.fire()
			}
		}
	}
}

// written lists the records that txs have written.
func written(txs []TxWrites) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, tx := range txs {
			for _, w := range tx.Records {
				if !yield(w.Key) {
					return
				}
			}
		}
	}
}

// all fires every watch: something has changed and it is not known what.
func (w *watches) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, set := range w.byPrefix {
		for one := range set {
			one.fire()
		}
	}
}

func (w *watches) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, set := range w.byPrefix {
		for one := range set {
			w.remove(one)
		}
	}
}
