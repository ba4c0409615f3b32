package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

func testWatch(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	below, other := s.Watch(ctx, "svc/a/"), s.Watch(ctx, "svc/b/")
	for range 3 {
		update(t, s, func(tx store.Tx) error { return tx.Put("svc/a/head", nil) })
	}
	await(t, below)
	if len(below) != 0 {
		t.Error("three changes before the first look are more than one notice")
	}
	update(t, s, func(tx store.Tx) error { return tx.Delete("svc/a/head") })
	await(t, below)
	if len(other) != 0 {
		t.Error("a change elsewhere is noticed")
	}
	cancel()
	drain(below)
	drain(other)
}

// drain returns when the watch has ended.
func drain(ch <-chan struct{}) {
	for range ch {
		continue
	}
}

// await receives once. The time is for broken stores only.
func await(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case _, ok := <-ch:
		if !ok {
			t.Fatal("the watch has ended")
		}
	case <-time.After(time.Minute):
		t.Fatal("no notice")
	}
}

func testClose(t *testing.T, s store.Store) {
	watch := s.Watch(t.Context(), "")
	update(t, s, func(tx store.Tx) error { return tx.Put("k", nil) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	drain(watch)
	if err := s.Update(t.Context(), store.Soft, func(store.Tx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if err := s.View(t.Context(), func(store.ReadTx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("view: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
