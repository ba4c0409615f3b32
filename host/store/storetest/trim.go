package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/dodona-project/dodona/host/store"
)

func testTrim(t *testing.T, s store.Store) {
	text := func(from uint64) (text string) {
		t.Helper()
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			got, err := tx.ReadLog("log", from, 0)
			text = ""
			for _, e := range got {
				text += fmt.Sprintf("%d=%s ", e.Seq, e.Payload)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	add := func(n int, log string) func(tx store.Tx) error {
		return func(tx store.Tx) error {
			for i := range n {
				if _, err := tx.Append(log, fmt.Append(nil, i)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	trim := func(through uint64) func(tx store.Tx) error {
		return func(tx store.Tx) error { return tx.Trim("log", through) }
	}
	update(t, s, add(6, "log"))
	update(t, s, add(2, "log2")) // whose name continues the other's
	for _, through := range []uint64{6, 7} {
		if err := s.Update(t.Context(), store.Hard, trim(through)); err == nil {
			t.Errorf("trimmed up to entry %d of 6", through)
		}
	}
	for _, step := range []struct {
		do   func(tx store.Tx) error
		want string
	}{
		{trim(0), "1=0 2=1 3=2 4=3 5=4 6=5 "},
		{trim(2), "3=2 4=3 5=4 6=5 "},
		{trim(1), "3=2 4=3 5=4 6=5 "}, // what is gone stays gone
		{add(1, "log"), "3=2 4=3 5=4 6=5 7=0 "},
		{func(tx store.Tx) error { return errors.Join(trim(3)(tx), trim(6)(tx)) }, "7=0 "},
		{func(tx store.Tx) error {
			if err := add(1, "log")(tx); err != nil {
				return err
			}
			return tx.Put("beside", nil)
		}, "7=0 8=0 "},
		{func(tx store.Tx) error { // all that one transaction can do
			_, err := tx.Get("beside")
			return errors.Join(err, trim(7)(tx), add(2, "log")(tx), tx.Put("beside", []byte("x")), tx.Put("other", nil), tx.Delete("gone"),
				tx.IndexPut("index", "m", 1), tx.IndexDelete("index", "n"), tx.Trim("log2", 1), add(1, "log3")(tx))
		}, "8=0 9=0 10=1 "},
	} {
		update(t, s, step.do)
		if got := text(1); got != step.want {
			t.Errorf("the log is %q, want %q", got, step.want)
		}
	}
	if got := text(9); got != "9=0 10=1 " {
		t.Errorf("from 9 the log is %q", got)
	}
	if err := s.View(t.Context(), func(tx store.ReadTx) error {
		got, err := tx.ReadLog("log2", 1, 0)
		if err == nil && (len(got) != 1 || got[0].Seq != 2) {
			t.Errorf("another log has %v left, want entry 2", got)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// Beside the appends of others, with which it may be one commit.
	var calls sync.WaitGroup
	want := "9=0 10=1 "
	for i := range 40 {
		do := trim(8)
		if i%4 > 0 {
			do = add(1, "log")
			want += fmt.Sprintf("%d=0 ", 10+i-i/4)
		}
		calls.Go(func() {
			if err := s.Update(t.Context(), store.Hard, do); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if got := text(1); got != want {
		t.Errorf("after 40 at once the log is %q, want %q", got, want)
	}
}
