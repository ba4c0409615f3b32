package embedded

import (
	"cmp"
	"strings"

	"github.com/dodona-project/dodona/host/store"
)

// state is all that the store holds at one revision. It never changes: a commit
// makes the next one, which shares with it what stays.
type state struct {
	revision uint64
	records  tree[string, store.Record]
	members  tree[memberKey, uint64]  // index and member -> score
	scores   tree[scoreKey, struct{}] // the same by score
	logs     tree[string, logHead]    // where each log ends
	tail     tree[logKey, []byte]     // log entries that are not on disk yet
}

type memberKey struct{ index, member string }

type scoreKey struct {
	index  string
	score  uint64
	member string
}

type logKey struct {
	log string
	seq uint64
}

// logHead says where a log ends, up to where its entries are on disk, and up to
// where they were trimmed.
type logHead struct{ last, stored, trimmed uint64 }

func newState() *state {
	return &state{
		records: tree[string, store.Record]{compare: strings.Compare},
		members: tree[memberKey, uint64]{compare: func(a, b memberKey) int {
			return cmp.Or(strings.Compare(a.index, b.index), strings.Compare(a.member, b.member))
		}},
		scores: tree[scoreKey, struct{}]{compare: func(a, b scoreKey) int {
			return cmp.Or(strings.Compare(a.index, b.index), cmp.Compare(a.score, b.score), strings.Compare(a.member, b.member))
		}},
		logs: tree[string, logHead]{compare: strings.Compare},
		tail: tree[logKey, []byte]{compare: func(a, b logKey) int {
			return cmp.Or(strings.Compare(a.log, b.log), cmp.Compare(a.seq, b.seq))
		}},
	}
}

// apply returns the state after txs, each at its own revision, and notes in d
// what has changed.
func (s *state) apply(txs []store.TxWrites, d *dirty) *state {
	next := *s
	e := new(edit)
	for _, tx := range txs {
		next.revision++
		for _, w := range tx.Records {
			if w.Delete {
				next.records.delete(e, w.Key)
			} else {
				next.records.put(e, w.Key, store.Record{Value: w.Value, Version: next.revision})
			}
			d.records[w.Key] = struct{}{}
		}
		for _, w := range tx.Indexes {
			next.index(e, w)
			d.members[memberKey{w.Index, w.Member}] = struct{}{}
		}
		for _, a := range tx.Appends {
			head, _ := next.logs.get(a.Log)
			head.last = a.Seq
			next.logs.put(e, a.Log, head)
			next.tail.put(e, logKey{a.Log, a.Seq}, a.Payload)
			d.logs[a.Log] = struct{}{}
		}
		for _, t := range tx.Trims {
			head, _ := next.logs.get(t.Log)
			if t.Through <= head.trimmed {
				continue
			}
			for seq := max(head.trimmed, head.stored) + 1; seq <= t.Through; seq++ {
				next.tail.delete(e, logKey{t.Log, seq})
			}
			head.trimmed = t.Through
			next.logs.put(e, t.Log, head)
			d.logs[t.Log] = struct{}{}
		}
	}
	return &next
}

func (s *state) index(e *edit, w store.IndexWrite) {
	key := memberKey{w.Index, w.Member}
	if old, ok := s.members.get(key); ok {
		s.scores.delete(e, scoreKey{w.Index, old, w.Member})
	}
	if w.Delete {
		s.members.delete(e, key)
		return
	}
	s.members.put(e, key, w.Score)
	s.scores.put(e, scoreKey{w.Index, w.Score, w.Member}, struct{}{})
}

// stored returns the same content, knowing that the entries of these logs up to
// heads are on disk.
func (s *state) stored(heads map[string]logHead) *state {
	if len(heads) == 0 {
		return s
	}
	next := *s
	e := new(edit)
	for log, at := range heads {
		head, ok := next.logs.get(log)
		if !ok {
			continue
		}
		for seq := head.stored + 1; seq <= at.last; seq++ {
			next.tail.delete(e, logKey{log, seq})
		}
		head.stored = at.last
		next.logs.put(e, log, head)
	}
	return &next
}

// withoutTail returns the state without log entries in memory.
func (s *state) withoutTail() *state {
	next := *s
	next.tail.root = nil
	return &next
}

func (s *state) scan(index string, from, to uint64, limit int) []store.Entry {
	var found []store.Entry
	s.scores.ascend(scoreKey{index: index, score: from}, func(k scoreKey, _ struct{}) bool {
		if k.index != index || k.score > to || len(found) == limit {
			return false
		}
		found = append(found, store.Entry{Member: k.member, Score: k.score})
		return true
	})
	return found
}

// unstored returns the entries of log that are only in memory.
func (s *state) unstored(log string, from uint64, limit int) []store.LogEntry {
	var found []store.LogEntry
	s.tail.ascend(logKey{log, from}, func(k logKey, payload []byte) bool {
		if k.log != log || len(found) == limit {
			return false
		}
		found = append(found, store.LogEntry{Seq: k.seq, Payload: payload})
		return true
	})
	return found
}

// dirty names what may differ between memory and disk. It may name too much,
// never too little.
type dirty struct {
	records map[string]struct{}
	members map[memberKey]struct{}
	logs    map[string]struct{}
}

func newDirty() *dirty {
	return &dirty{records: map[string]struct{}{}, members: map[memberKey]struct{}{}, logs: map[string]struct{}{}}
}

func (d *dirty) len() int { return len(d.records) + len(d.members) + len(d.logs) }

// add puts back what a flush could not write.
func (d *dirty) add(o *dirty) {
	for k := range o.records {
		d.records[k] = struct{}{}
	}
	for k := range o.members {
		d.members[k] = struct{}{}
	}
	for k := range o.logs {
		d.logs[k] = struct{}{}
	}
}
