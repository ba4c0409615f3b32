package store

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Load reads the record at key into msg and returns its version; 0, and msg
// untouched, when there is none.
func Load(tx ReadTx, key string, msg proto.Message) (version uint64, err error) {
	rec, err := tx.Get(key)
	if err != nil || !rec.Exists() {
		return 0, err
	}
	if err := proto.Unmarshal(rec.Value, msg); err != nil {
		return 0, fmt.Errorf("store: record %s does not parse as %s: %w", key, msg.ProtoReflect().Descriptor().FullName(), err)
	}
	return rec.Version, nil
}

// Save writes msg at key.
func Save(tx Tx, key string, msg proto.Message) error {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return fmt.Errorf("store: record %s: %w", key, err)
	}
	return tx.Put(key, value)
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
