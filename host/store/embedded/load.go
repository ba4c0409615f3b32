package embedded

import (
	"encoding/binary"
	"fmt"
	"maps"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store"
)

// load opens a file whose pages were verified and reads all of it, checking
// each entry and, by digest and count, that none is missing.
func load(path string) (*file, *state, error) {
	db, data, err := openBolt(path)
	if err != nil {
		return nil, nil, damaged(path, err)
	}
	l := &loader{edit: new(edit), state: newState(), last: make(map[string]uint64), first: make(map[string]uint64)}
	if err := db.View(l.all); err != nil {
		_ = db.Close()
		return nil, nil, damaged(path, err)
	}
	for log, last := range maps.All(l.last) {
		l.state.logs.put(l.edit, log, logHead{last: last, stored: last, trimmed: l.first[log] - 1})
	}
	l.state.revision = l.head.revision
	return &file{db: db, data: data, head: l.head, persisted: l.state.withoutTail()}, l.state, nil
}

type loader struct {
	edit    *edit
	state   *state
	head    head
	first   map[string]uint64 // entry of each log
	last    map[string]uint64
	digest  uint64
	entries uint64
}

func (l *loader) all(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil || string(meta.Get(keyProgram)) != programName {
		return fmt.Errorf("is a bbolt file, but not one of this program")
	}
	format := meta.Get(keyFormat)
	if len(format) != 4 {
		return fmt.Errorf("has no format number")
	}
	if n := binary.BigEndian.Uint32(format); n != Format {
		return fmt.Errorf("has format %d, this program knows format %d: use the program that wrote it, or a newer one", n, Format)
	}
	rest, _, err := unseal(kindHead, keyHead, meta.Get(keyHead))
	if err == nil {
		l.head, err = parseHead(rest)
	}
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	for _, b := range []struct {
		name []byte
		kind byte
		take func(key, rest []byte) error
	}{
		{bucketRecords, kindRecord, l.record},
		{bucketIndexes, kindIndex, l.index},
		{bucketLogs, kindLog, l.log},
	} {
		bucket := tx.Bucket(b.name)
		if bucket == nil {
			return fmt.Errorf("bucket %s is missing", b.name)
		}
		err := bucket.ForEach(func(key, value []byte) error {
			rest, sum, err := unseal(b.kind, key, value)
			if err != nil {
				return err
			}
			l.digest += share(b.kind, sum)
			l.entries++
			return b.take(key, rest)
		})
		if err != nil {
			return fmt.Errorf("bucket %s: %w", b.name, err)
		}
	}
	if l.entries != l.head.entries || l.digest != l.head.digest {
		return fmt.Errorf("holds %d entries that are not the %d of its head", l.entries, l.head.entries)
	}
	return nil
}

func (l *loader) record(key, rest []byte) error {
	if len(rest) < 8 {
		return fmt.Errorf("record %.64q is cut off", key)
	}
	value := append([]byte{}, rest[8:]...)
	l.state.records.put(l.edit, string(key), store.Record{Value: value, Version: binary.BigEndian.Uint64(rest)})
	return nil
}

func (l *loader) index(key, _ []byte) error {
	k, ok := parseIndexKey(key)
	if !ok {
		return fmt.Errorf("entry %.64q does not parse", key)
	}
	l.state.members.put(l.edit, memberKey{k.index, k.member}, k.score)
	l.state.scores.put(l.edit, k, struct{}{})
	return nil
}

func (l *loader) log(key, _ []byte) error {
	k, ok := parseLogKey(key)
	if ok && k.seq > 0 && l.first[k.log] == 0 { // those before it were trimmed
		l.first[k.log], l.last[k.log] = k.seq, k.seq-1
	}
	if !ok || k.seq != l.last[k.log]+1 {
		return fmt.Errorf("entry %.64q does not follow entry %d", key, l.last[k.log])
	}
	l.last[k.log] = k.seq
	return nil
}
