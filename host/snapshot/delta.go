package snapshot

import (
	"sort"
	"sync"
)

// base is an older version that a delta to the published one may start from, and
// that delta, made when the first watcher asks and shared by all at this base.
type base struct {
	built *Built
	once  sync.Once
	delta *Frame // nil when the whole snapshot is no longer than it
}

// basesOf returns what deltas to the version after p may start from, oldest first:
// p and what it had, as many as the bounds allow. A version that is heavier than
// the bound by itself is still kept while it is the newest of them: most watchers
// hold it.
func (f *Feeds) basesOf(p *published) []base {
	if p == nil || p.built.Version == 0 {
		return nil // a delta cannot name version 0: it would read as none
	}
	old := *p.bases.Load()
	first, weight := len(old), p.built.Weight
	for first > 0 && len(old)-first+1 < f.o.History && weight+old[first-1].built.Weight <= f.o.HistoryBytes {
		first--
		weight += old[first].built.Weight
	}
	bases := make([]base, 0, len(old)-first+1)
	for i := first; i < len(old); i++ {
		bases = append(bases, base{built: old[i].built})
	}
	return append(bases, base{built: p.built})
}

// since returns the frame for a watcher that holds version: a delta when that
// version is kept and a delta is shorter, else the whole snapshot. A watcher that
// comes while another has the same delta made waits for it.
func (f *Feeds) since(name string, p *published, version uint64) *Frame {
	bases := *p.bases.Load()
	at := sort.Search(len(bases), func(i int) bool { return bases[i].built.Version >= version })
	if at == len(bases) || bases[at].built.Version != version {
		return p.full
	}
	b := &bases[at]
	b.once.Do(func() { b.delta = f.delta(name, b.built, p) })
	if b.delta == nil {
		return p.full
	}
	return b.delta
}

func (f *Feeds) delta(name string, from *Built, p *published) *Frame {
	msg, err := f.o.Source.Delta(from, p.built)
	if err == nil && msg == nil {
		return nil
	}
	var data []byte
	if err == nil {
		data, err = encode(msg, f.metrics.deltaEncodings)
	}
	if err != nil {
		f.metrics.failures.Inc()
		f.log.Error("no delta: the whole snapshot is sent", "name", name, "from", from.Version, "to", p.built.Version, "error", err)
		return nil
	}
	if len(data) >= len(p.full.data) {
		return nil
	}
	return &Frame{Version: p.built.Version, Base: from.Version, data: data}
}

// forget gives up what deltas could start from: whoever watches holds the newest
// version long since.
func (p *published) forget() { p.bases.Store(new([]base)) }
