package embedded_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestCallersShareCommits(t *testing.T) {
	dir := t.TempDir() + "/data"
	s, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 10 {
				err := s.Update(ctx, store.Hard, func(tx store.Tx) error {
					if _, err := tx.Append("log", fmt.Appendf(nil, "%d/%d", i, j)); err != nil {
						return err
					}
					return tx.Put(fmt.Sprintf("k/%d", i), []byte{byte(j)})
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = embedded.Open(dir, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.View(ctx, func(tx store.ReadTx) error {
		entries, err := tx.ReadLog("log", 1, 0)
		if len(entries) != 640 {
			t.Errorf("%d entries", len(entries))
		}
		r, _ := tx.Get("k/5")
		if len(r.Value) != 1 || r.Value[0] != 9 {
			t.Errorf("record %v", r)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
