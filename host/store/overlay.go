package store

import "slices"

// overlay is what the transactions of a batch have written so far and no
// backend knows yet. One overlay holds the writes of the running transaction,
// another those of the finished ones below it.
type overlay struct {
	records recordSet
	indexes map[string]map[string]overlayMember
	logs    map[string][]LogEntry // appended, in order, without gaps
	size    int                   // bytes written
	count   int                   // writes
}

type overlayRecord struct {
	Record
	deleted bool
}

type overlayMember struct {
	score   uint64
	deleted bool
}

// recordSet is a map that is a list as long as it is small, which most
// transactions are.
type recordSet struct {
	list  []namedRecord // empty when byKey is there
	byKey map[string]overlayRecord
}

type namedRecord struct {
	key string
	overlayRecord
}

// maxList is up to where looking through a list is as fast as a map.
const maxList = 8

func (s *recordSet) get(key string) (r overlayRecord, ok bool) {
	if s.byKey != nil {
		r, ok = s.byKey[key]
		return r, ok
	}
	for i := range s.list {
		if s.list[i].key == key {
			return s.list[i].overlayRecord, true
		}
	}
	return r, false
}

func (s *recordSet) put(key string, r overlayRecord) {
	if s.byKey == nil {
		for i := range s.list {
			if s.list[i].key == key {
				s.list[i].overlayRecord = r
				return
			}
		}
		if len(s.list) < maxList {
			s.list = append(s.list, namedRecord{key, r})
			return
		}
		s.byKey = make(map[string]overlayRecord, 8*maxList)
		for _, n := range s.list {
			s.byKey[n.key] = n.overlayRecord
		}
		s.list = nil
	}
	s.byKey[key] = r
}

func (s *recordSet) all(yield func(string, overlayRecord) bool) {
	for _, n := range s.list {
		if !yield(n.key, n.overlayRecord) {
			return
		}
	}
	for key, r := range s.byKey {
		if !yield(key, r) {
			return
		}
	}
}

func (o *overlay) putMember(index, member string, m overlayMember) {
	if o.indexes == nil {
		o.indexes = make(map[string]map[string]overlayMember)
	}
	members := o.indexes[index]
	if members == nil {
		members = make(map[string]overlayMember)
		o.indexes[index] = members
	}
	members[member] = m
}

func (o *overlay) append(log string, e LogEntry) {
	if o.logs == nil {
		o.logs = make(map[string][]LogEntry)
	}
	o.logs[log] = append(o.logs[log], e)
}

// take adds what a finished transaction has written.
func (o *overlay) take(t *overlay) {
	if o.count == 0 {
		*o = *t
		return
	}
	for key, r := range t.records.all {
		o.records.put(key, r)
	}
	for index, members := range t.indexes {
		for member, m := range members {
			o.putMember(index, member, m)
		}
	}
	for log, entries := range t.logs {
		for _, e := range entries {
			o.append(log, e)
		}
	}
	o.size += t.size
	o.count += t.count
}

// members returns how many members of index the overlays have changed: so many
// of a scan's answer may have to be left out.
func members(index string, layers ...*overlay) int {
	n := 0
	for _, o := range layers {
		n += len(o.indexes[index])
	}
	return n
}

// mergeScan lays the overlays, lowest first, over what the backend found.
func mergeScan(found []Entry, q ScanQuery, layers ...*overlay) []Entry {
	changed := make(map[string]overlayMember)
	for _, o := range layers {
		for member, m := range o.indexes[q.Index] {
			changed[member] = m
		}
	}
	if len(changed) == 0 {
		return found[:min(len(found), q.Limit):min(len(found), q.Limit)]
	}
	merged := make([]Entry, 0, len(found)+len(changed))
	for _, e := range found {
		if _, ok := changed[e.Member]; !ok {
			merged = append(merged, e)
		}
	}
	for member, m := range changed {
		if !m.deleted && m.score >= q.From && m.score <= q.To {
			merged = append(merged, Entry{Member: member, Score: m.score})
		}
	}
	slices.SortFunc(merged, CompareEntries)
	return merged[:min(len(merged), q.Limit)]
}

// CompareEntries orders entries as Scan does: by score, then by member bytes.
func CompareEntries(a, b Entry) int {
	switch {
	case a.Score != b.Score && a.Score < b.Score:
		return -1
	case a.Score != b.Score:
		return 1
	case a.Member < b.Member:
		return -1
	case a.Member > b.Member:
		return 1
	}
	return 0
}
