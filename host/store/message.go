package store

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// ErrDamaged is what the error of a [Load] wraps whose record does not parse. It
// says nothing about other records: who looks at many goes on to the next.
var ErrDamaged = errors.New("store: record damaged")

// damaged is an ErrDamaged whose text says where already.
type damaged struct{ error }

func (damaged) Is(target error) bool { return target == ErrDamaged }

// Load reads the record at key into msg and returns its version; 0, and msg
// untouched, when there is none. One that does not parse is an [ErrDamaged].
func Load(tx ReadTx, key string, msg proto.Message) (version uint64, err error) {
	rec, err := tx.Get(key)
	if err != nil || !rec.Exists() {
		return 0, err
	}
	if err := Parse(key, rec, msg); err != nil {
		return 0, err
	}
	return rec.Version, nil
}

// Parse reads a record that was read at key into msg. One that does not parse is an
// [ErrDamaged].
func Parse(key string, rec Record, msg proto.Message) error {
	if err := proto.Unmarshal(rec.Value, msg); err != nil {
		return damaged{fmt.Errorf("store: record %s does not parse as %s: %w", key, msg.ProtoReflect().Descriptor().FullName(), err)}
	}
	return nil
}

// Save writes msg at key.
func Save(tx Tx, key string, msg proto.Message) error {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return fmt.Errorf("store: record %s: %w", key, err)
	}
	return tx.Put(key, value)
}

// ScanMany is [ReadTx.Scan] of several indexes, in one round trip.
func ScanMany(tx ReadTx, queries ...ScanQuery) ([][]Entry, error) {
	found := make([][]Entry, len(queries))
	var first error
	for i, q := range queries {
		entries, err := tx.Scan(q.Index, q.From, q.To, q.Limit)
		if err != nil && first == nil {
			first = err // go on: the rest is fetched in the same round trip
		}
		found[i] = entries
	}
	return found, first
}

// Fetch reads the records of index entries in one round trip, so that a Load of each
// finds it there: key, of which there may be several, makes a member's. Loads by
// themselves take a round trip each on a shared store, each of which reads all that
// came before once more.
func Fetch(tx ReadTx, entries []Entry, key ...func(member string) string) error {
	keys := make([]string, 0, len(entries)*len(key))
	for _, e := range entries {
		for _, of := range key {
			keys = append(keys, of(e.Member))
		}
	}
	_, err := tx.GetMany(keys...)
	return err
}
