package plugin

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
)

type pointed struct{ seen int }

type tuning struct {
	N int `json:"n,omitempty"`
}

func (p *pointed) Configure(_ context.Context, t *tuning) error { p.seen++; return nil }

type wrong struct{}

func (wrong) Configure(tuning) error { return nil }

type number struct{}

func (number) Configure(context.Context, int) error { return nil }

func TestConfigureTakesAStruct(t *testing.T) {
	for _, impl := range []any{wrong{}, number{}} {
		if _, err := newConfigurer(impl); err == nil {
			t.Errorf("%T was accepted", impl)
		}
	}
}

// Telling an instance twice costs nothing, and those used least recently are
// forgotten.
func TestInstancesAreKeptAndForgotten(t *testing.T) {
	impl := &pointed{}
	c, err := newConfigurer(impl)
	if err != nil {
		t.Fatal(err)
	}
	c.most = 3
	tell := func(id string, n float64) {
		t.Helper()
		s, err := structpb.NewStruct(map[string]any{"n": n})
		if err != nil {
			t.Fatal(err)
		}
		if bad, err := c.configure(t.Context(), id, s, false); err != nil || len(bad) != 0 {
			t.Fatal(bad, err)
		}
	}
	tell("a", 1)
	tell("a", 1)
	if impl.seen != 1 {
		t.Errorf("Configure ran %d times for one configuration", impl.seen)
	}
	tell("a", 2)
	if got, ok := c.lookup("a"); !ok || got.(*tuning).N != 2 {
		t.Errorf("%v, %v", got, ok)
	}
	for i := range 3 {
		tell(fmt.Sprint(i), 0)
		c.lookup("a")
	}
	if _, ok := c.lookup("a"); !ok {
		t.Error("the instance in use was forgotten")
	}
	if _, ok := c.lookup("0"); ok {
		t.Error("more instances are kept than allowed")
	}
}
