package embedded_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// The job of all benchmarks here: compare-and-set of a record of 256 bytes, one
// record a caller. A callers' number of goroutines share the b.N operations.
const benchValue = 256

var benchCallers = []int{1, 64, 256}

func benchRun(b *testing.B, callers int, op func(key string, want uint64) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range callers {
		wg.Go(func() {
			key := fmt.Sprintf("bench/%04d", i)
			for n := uint64(0); left.Add(-1) >= 0; n++ {
				if err := op(key, n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

// next makes the value that counts n, after checking that the old one does.
func benchNext(old []byte, n uint64) ([]byte, error) {
	if n > 0 && binary.BigEndian.Uint64(old) != n {
		return nil, fmt.Errorf("found %d, want %d", binary.BigEndian.Uint64(old), n)
	}
	value := make([]byte, benchValue)
	binary.BigEndian.PutUint64(value, n+1)
	return value, nil
}

func benchStore(b *testing.B, callers int, d store.Durability) {
	s, err := embedded.Open(filepath.Join(b.TempDir(), "data"), embedded.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	before := s.Syncs()
	benchRun(b, callers, func(key string, n uint64) error {
		return s.Update(ctx, d, func(tx store.Tx) error {
			r, err := tx.Get(key)
			if err != nil {
				return err
			}
			value, err := benchNext(r.Value, n)
			if err != nil {
				return err
			}
			return tx.Put(key, value)
		})
	})
	b.ReportMetric(float64(s.Syncs()-before)/float64(b.N), "commits/op")
}

func BenchmarkUpdateHard(b *testing.B) {
	for _, callers := range benchCallers {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchStore(b, callers, store.Hard) })
	}
}

func BenchmarkUpdateSoft(b *testing.B) {
	for _, callers := range benchCallers {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchStore(b, callers, store.Soft) })
	}
}

// benchBolt is the same job on bare bbolt.
func benchBolt(b *testing.B, callers, batchSize int, run func(*bbolt.DB, func(*bbolt.Tx) error) error) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "bolt.db"), 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if batchSize > 0 {
		db.MaxBatchSize = batchSize
	}
	name := []byte("records")
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(name)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	benchRun(b, callers, func(key string, n uint64) error {
		return run(db, func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(name)
			value, err := benchNext(bucket.Get([]byte(key)), n)
			if err != nil {
				return err
			}
			return bucket.Put([]byte(key), value)
		})
	})
}

func BenchmarkPeerBoltUpdate(b *testing.B) {
	b.Run("1", func(b *testing.B) { benchBolt(b, 1, 0, (*bbolt.DB).Update) })
}

func BenchmarkPeerBoltBatch(b *testing.B) {
	for _, callers := range benchCallers[1:] {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchBolt(b, callers, 0, (*bbolt.DB).Batch) })
	}
}

func BenchmarkPeerBoltBatchTuned(b *testing.B) {
	for _, callers := range benchCallers[1:] {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchBolt(b, callers, callers, (*bbolt.DB).Batch) })
	}
}

func BenchmarkView(b *testing.B) {
	s := embedded.OpenMemory(embedded.Options{})
	defer s.Close()
	ctx := context.Background()
	for i := range 1000 {
		if err := s.Update(ctx, store.Soft, func(tx store.Tx) error {
			return tx.Put(fmt.Sprintf("bench/%04d", i), make([]byte, benchValue))
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.View(ctx, func(tx store.ReadTx) error {
			_, err := tx.Get("bench/0500")
			return err
		})
	}
}
