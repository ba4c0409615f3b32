package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

const (
	storeTurn  = 700 * time.Millisecond
	valueBytes = 256
)

// next makes the value that follows old.
func next(old []byte) []byte {
	value := make([]byte, valueBytes)
	if len(old) >= 8 {
		binary.BigEndian.PutUint64(value, binary.BigEndian.Uint64(old)+1)
	}
	return value
}

func storeJob() ([]row, error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ours, err := embedded.Open(filepath.Join(dir, "ours"), embedded.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = ours.Close() }()
	plain, err := openBolt(filepath.Join(dir, "plain.db"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = plain.Close() }()
	tuned, err := openBolt(filepath.Join(dir, "tuned.db"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = tuned.Close() }()

	update := func(d store.Durability) func(int) error {
		return func(caller int) error {
			key := fmt.Sprintf("bench/%04d", caller)
			return ours.Update(context.Background(), d, func(tx store.Tx) error {
				rec, err := tx.Get(key)
				if err != nil {
					return err
				}
				return tx.Put(key, next(rec.Value))
			})
		}
	}
	side := func(callers int, op func(int) error) func() (float64, error) {
		return func() (float64, error) { return rate(callers, storeTurn, op) }
	}
	var rows []row
	m, err := turns(repeats, side(1, update(store.Hard)), side(1, boltOp(plain.Update)))
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{"1 caller", m[0], m[1], "/s", "bbolt `Update`", 0.85, true, nil})
	for _, c := range []struct {
		callers int
		goal    float64
	}{{64, 3}, {256, 1.8}} {
		tuned.MaxBatchSize = c.callers
		m, err := turns(repeats, side(c.callers, update(store.Hard)), side(c.callers, boltOp(plain.Batch)), side(c.callers, boltOp(tuned.Batch)))
		if err != nil {
			return nil, err
		}
		work := fmt.Sprintf("%d callers", c.callers)
		rows = append(rows,
			row{work, m[0], m[1], "/s", "bbolt `Batch`", c.goal, true, nil},
			row{work, m[0], m[2], "/s", "bbolt `Batch`, MaxBatchSize = callers", 0.8, true, nil})
	}
	m, err = turns(3, side(64, update(store.Soft)))
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{work: "64 callers, soft", ours: m[0], unit: "/s"})
	m, err = turns(repeats, side(1, countersOp(ours, store.Hard)), side(1, func(caller int) error {
		return plain.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucket)
			for i := range counters {
				key := fmt.Appendf(nil, "counters/%04d/%04d", caller, i)
				value := make([]byte, 8)
				if old := b.Get(key); len(old) == 8 {
					binary.BigEndian.PutUint64(value, binary.BigEndian.Uint64(old)+1)
				}
				if err := b.Put(key, value); err != nil {
					return err
				}
			}
			return nil
		})
	}))
	if err != nil {
		return nil, err
	}
	return append(rows, row{countersWork, m[0], m[1], "/s", "bbolt `Update`, a key each", 0, true, nil}), nil
}

// counters is how many counters one record of a runtime report holds.
const (
	counters     = 512
	countersWork = "1 caller, adds to 512 counters that are one record"
)

// countersOp adds one to each counter of a record.
func countersOp(st store.Store, d store.Durability) func(int) error {
	return func(caller int) error {
		key := fmt.Sprintf("counters/%04d", caller)
		return st.Update(context.Background(), d, func(tx store.Tx) error {
			rec, err := tx.Get(key)
			if err != nil {
				return err
			}
			value := make([]byte, 8*counters)
			copy(value, rec.Value)
			for i := range counters {
				at := value[8*i:]
				binary.BigEndian.PutUint64(at, binary.BigEndian.Uint64(at)+1)
			}
			return tx.Put(key, value)
		})
	}
}

var bucket = []byte("records")

func openBolt(name string) (*bbolt.DB, error) {
	db, err := bbolt.Open(name, 0o600, nil)
	if err != nil {
		return nil, err
	}
	return db, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
}

func boltOp(run func(func(*bbolt.Tx) error) error) func(int) error {
	return func(caller int) error {
		key := fmt.Appendf(nil, "bench/%04d", caller)
		return run(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucket)
			return b.Put(key, next(b.Get(key)))
		})
	}
}
