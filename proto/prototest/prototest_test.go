package prototest_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/proto/prototest"
)

func TestEnums(t *testing.T) {
	for _, tc := range []struct {
		m    proto.Message
		want []string
	}{
		{&controlplanev1.Proxy{}, []string{"protocol", "health"}},
		{&controlplanev1.ExtractResponse{}, []string{"proxies.proxy.protocol", "proxies.proxy.health"}},
		{&controlplanev1.RegisterCheckerRequest{}, []string{"levels"}},
		{&controlplanev1.SnapshotUpdate{}, []string{
			"full.routings.plan.algorithm", "full.routings.plan.hash.source", "full.routings.on_unavailable", "full.routings.resolve", "full.routings.stickiness.mode",
			"full.proxies.protocol", "full.proxies.health",
			"delta.routings.plan.algorithm", "delta.routings.plan.hash.source", "delta.routings.on_unavailable", "delta.routings.resolve", "delta.routings.stickiness.mode",
			"delta.upsert_proxies.protocol", "delta.upsert_proxies.health",
		}},
		{&structpb.Struct{}, nil},
		{&controlplanev1.PoolRevision{}, nil},
	} {
		var got []string
		for _, p := range prototest.Enums(tc.m.ProtoReflect().Descriptor()) {
			got = append(got, p.String())
			m := tc.m.ProtoReflect().New().Interface()
			p.Set(m, 77)
			size := proto.Size(m)
			p.Set(m, 77) // where everything is there already
			if size == 0 || proto.Size(m) != size {
				t.Errorf("%s: set once it has %d bytes, twice %d", p, size, proto.Size(m))
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%T has %q, want %q", tc.m, got, tc.want)
		}
	}
	m := &controlplanev1.RegisterCheckerRequest{Levels: []controlplanev1.CheckLevel{1, 2}}
	prototest.Enums(m.ProtoReflect().Descriptor())[0].Set(m, 77)
	if !slices.Equal(m.Levels, []controlplanev1.CheckLevel{77, 2}) {
		t.Errorf("set: %v", m.Levels)
	}
}
