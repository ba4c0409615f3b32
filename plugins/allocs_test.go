//go:build linux

package plugins_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// What a call through the facade, with every check, allocates in the host beside
// the same call of gRPC over the same connection: the id of the instance, the
// message with it, the options and functions of the call, and a plan of our own.
func TestChecksOfACallAllocateLittle(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates too")
	}
	const most = 8
	o := newOptions(t)
	o.Logger = nil
	h := startHost(t, o)
	await(t, h, plugins.KindStrategy, "turns")
	f, req := strategy.New(h), benchRequest()
	checked := func() {
		if _, err := f.Compile(t.Context(), "turns", req); err != nil {
			t.Fatal(err)
		}
	}
	checked() // the instance is configured
	var conn grpc.ClientConnInterface
	id := plugins.ID{Kind: plugins.KindStrategy, Name: "turns"}
	if _, err := h.Call(t.Context(), id, plugins.Instance{ID: "i"}, "Compile", func(_ context.Context, c grpc.ClientConnInterface) error {
		conn = c
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	client := pluginv1.NewStrategyClient(conn)
	alone := func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := client.Compile(ctx, req); err != nil {
			t.Fatal(err)
		}
	}
	// The least of some: health and the collector allocate now and then.
	least := func(call func()) float64 {
		n := testing.AllocsPerRun(200, call)
		for range 4 {
			n = min(n, testing.AllocsPerRun(200, call))
		}
		return n
	}
	with, without := least(checked), least(alone)
	t.Logf("%v allocations a call, %v by gRPC alone", with, without)
	if with-without > most {
		t.Errorf("the checks of a call add %v allocations: allowed are %d", with-without, most)
	}
}
