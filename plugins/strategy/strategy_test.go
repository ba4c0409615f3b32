package strategy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// caller is a plugin that answers whatever it is given, over the wire's own
// encoding: what cannot be encoded never arrives either.
type caller struct {
	reply    *pluginv1.CompileReply
	sent     *pluginv1.CompileRequest
	instance plugins.Instance
	rejected []string
}

func (c *caller) Call(ctx context.Context, id plugins.ID, in plugins.Instance, _ string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error) {
	c.instance = in
	return plugins.Identity{Name: id.Name, Version: "1.0.0"}, do(ctx, c)
}

func (c *caller) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	c.sent = args.(*pluginv1.CompileRequest)
	text, err := proto.Marshal(c.reply)
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, reply.(proto.Message))
}

func (c *caller) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

func (c *caller) Validate(context.Context, plugins.ID, *structpb.Struct) error { return nil }

func (c *caller) Reject(id plugins.ID, reason, detail string) *plugins.AnswerError {
	c.rejected = append(c.rejected, reason)
	return &plugins.AnswerError{Plugin: id, Reason: reason, Detail: detail}
}

func request() *pluginv1.CompileRequest {
	return &pluginv1.CompileRequest{
		Scope: "service/shop",
		Candidates: []*pluginv1.Candidate{
			{Id: "a", Group: "z1", Weight: 100},
			{Id: "b", Group: "z1", Weight: 50},
			{Id: "c", Group: "z2", Weight: 100},
		},
	}
}

const (
	roundRobin     = donav1.Algorithm_ALGORITHM_ROUND_ROBIN
	least          = donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS
	consistentHash = donav1.Algorithm_ALGORITHM_CONSISTENT_HASH
)

func TestAnswers(t *testing.T) {
	plan := func(change func(*donav1.Plan)) *pluginv1.CompileReply {
		p := &donav1.Plan{Algorithm: roundRobin}
		change(p)
		return &pluginv1.CompileReply{Plan: p}
	}
	weights := func(w map[string]uint32) *pluginv1.CompileReply {
		return plan(func(p *donav1.Plan) { p.Weights = w })
	}
	groups := func(w, g map[string]uint32) *pluginv1.CompileReply {
		return plan(func(p *donav1.Plan) { p.Weights, p.GroupWeights = w, g })
	}
	refresh := func(d *durationpb.Duration) *pluginv1.CompileReply {
		return &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: roundRobin}, RefreshAfter: d}
	}
	tiers := func(g map[string]uint32) *pluginv1.CompileReply {
		return plan(func(p *donav1.Plan) { p.Algorithm, p.GroupTiers = donav1.Algorithm_ALGORITHM_TIERED, g })
	}
	const unit, attribute = donav1.HashPolicy_SOURCE_UNIT, donav1.HashPolicy_SOURCE_ATTRIBUTE
	hash := func(source donav1.HashPolicy_Source, name string, maxLoad uint32) *pluginv1.CompileReply {
		return plan(func(p *donav1.Plan) {
			p.Algorithm, p.MaxLoadPercent = consistentHash, maxLoad
			p.Hash = &donav1.HashPolicy{Source: source, Name: name}
		})
	}
	for _, tc := range []struct {
		name   string
		reply  *pluginv1.CompileReply
		reason string // empty = accepted
	}{
		{"plain", plan(func(*donav1.Plan) {}), ""},
		{"own name", plan(func(p *donav1.Plan) { p.Strategy = "mine" }), ""},
		{"some weights", weights(map[string]uint32{"a": 0, "b": 1_000_000}), ""},
		{"one candidate left", weights(map[string]uint32{"a": 0, "b": 0, "c": 1}), ""},
		{"groups", groups(nil, map[string]uint32{"z1": 1}), ""},
		{"choices", plan(func(p *donav1.Plan) { p.Algorithm, p.Choices = least, 32 }), ""},
		{"random", plan(func(p *donav1.Plan) { p.Algorithm = donav1.Algorithm_ALGORITHM_RANDOM }), ""},
		{"tiers of one group", tiers(map[string]uint32{"z2": 4_000_000_000}), ""},
		{"no tiers", tiers(nil), ""},
		{"hash by unit", hash(unit, "", 0), ""},
		{"hash by attribute", hash(attribute, strings.Repeat("x", 128), 101), ""},
		{"a high bound", hash(unit, "", 10_000), ""},
		{"peak ewma", plan(func(p *donav1.Plan) { p.Algorithm, p.Choices = donav1.Algorithm_ALGORITHM_PEAK_EWMA, 3 }), ""},
		{"refresh", refresh(durationpb.New(time.Minute)), ""},
		{"refresh zero", refresh(durationpb.New(0)), ""},

		{"no plan", &pluginv1.CompileReply{}, "empty"},
		{"other strategy", plan(func(p *donav1.Plan) { p.Strategy = "yours" }), "strategy"},
		{"no algorithm", plan(func(p *donav1.Plan) { p.Algorithm = 0 }), "algorithm"},
		{"unknown algorithm", plan(func(p *donav1.Plan) { p.Algorithm = 99 }), "algorithm"},
		{"negative algorithm", plan(func(p *donav1.Plan) { p.Algorithm = -1 }), "algorithm"},
		{"hash by nothing", hash(0, "", 0), "hash"},
		{"hash by something unknown", hash(7, "", 0), "hash"},
		{"hash by something negative", hash(-1, "", 0), "hash"},
		{"no hash policy", plan(func(p *donav1.Plan) { p.Algorithm = consistentHash }), "hash"},
		{"hash by an attribute without a name", hash(attribute, "", 0), "hash"},
		{"hash by a long name", hash(attribute, strings.Repeat("x", 129), 0), "hash"},
		{"a name for the unit", hash(unit, "x", 0), "hash"},
		{"a service has no headers", hash(donav1.HashPolicy_SOURCE_HEADER, "x-cart", 0), "hash"},
		{"a service has no client addresses", hash(donav1.HashPolicy_SOURCE_CLIENT_IP, "", 0), "hash"},
		{"no room for the average", hash(unit, "", 100), "max_load_percent"},
		{"a bound that is none", hash(unit, "", 10_001), "max_load_percent"},
		{"a tier of an unknown group", tiers(map[string]uint32{"z9": 1}), "unknown_group"},
		{"unknown id", weights(map[string]uint32{"d": 1}), "unknown_id"},
		{"another service's ids", weights(map[string]uint32{"a": 1, "cart-1": 5}), "unknown_id"},
		{"empty id", weights(map[string]uint32{"": 1}), "unknown_id"},
		{"too heavy", weights(map[string]uint32{"a": 1_000_001}), "too_large"},
		{"a negative weight, as it arrives", weights(map[string]uint32{"a": 0xffffffff}), "too_large"},
		{"all zero", weights(map[string]uint32{"a": 0, "b": 0, "c": 0}), "all_zero"},
		{"unknown group", groups(nil, map[string]uint32{"z9": 1}), "unknown_group"},
		{"group too heavy", groups(nil, map[string]uint32{"z1": 1_000_001}), "too_large"},
		{"all groups zero", groups(nil, map[string]uint32{"z1": 0, "z2": 0}), "all_zero"},
		{"share for a group with nobody left", groups(map[string]uint32{"c": 0}, map[string]uint32{"z2": 1}), "all_zero"},
		{"tiers", plan(func(p *donav1.Plan) { p.GroupTiers = map[string]uint32{"z1": 1} }), "field_of_other_algorithm"},
		{"hash", plan(func(p *donav1.Plan) { p.Hash = &donav1.HashPolicy{} }), "field_of_other_algorithm"},
		{"max load", plan(func(p *donav1.Plan) { p.MaxLoadPercent = 125 }), "field_of_other_algorithm"},
		{"choices of round robin", plan(func(p *donav1.Plan) { p.Choices = 2 }), "field_of_other_algorithm"},
		{"too many choices", plan(func(p *donav1.Plan) { p.Algorithm, p.Choices = least, 33 }), "choices"},
		{"refresh in the past", refresh(durationpb.New(-time.Second)), "refresh_after"},
		{"refresh out of range", refresh(&durationpb.Duration{Seconds: 1 << 62}), "refresh_after"},
		{"refresh mixed signs", refresh(&durationpb.Duration{Seconds: 1, Nanos: -1}), "refresh_after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &caller{reply: tc.reply}
			r, err := strategy.New(c).Compile(t.Context(), "mine", request())
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if r.Plan.GetStrategy() != "mine" || len(c.rejected) != 0 {
					t.Errorf("plan %v, rejected %v", r.Plan, c.rejected)
				}
				return
			}
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason != tc.reason || bad.Plugin.Name != "mine" {
				t.Fatalf("error %v, want reason %s", err, tc.reason)
			}
			if len(c.rejected) != 1 || c.rejected[0] != tc.reason {
				t.Errorf("counted %v", c.rejected)
			}
		})
	}
}

// A proxy knows what an application does not.
func TestRoutingsHashByMore(t *testing.T) {
	for source, name := range map[donav1.HashPolicy_Source]string{
		donav1.HashPolicy_SOURCE_HEADER: "x-cart", donav1.HashPolicy_SOURCE_CLIENT_IP: "", donav1.HashPolicy_SOURCE_CLIENT_ID: "", donav1.HashPolicy_SOURCE_TARGET_HOST: "",
	} {
		p := &donav1.Plan{Algorithm: consistentHash, Hash: &donav1.HashPolicy{Source: source, Name: name}}
		req := request()
		req.Scope = "routing/cart"
		if r, err := strategy.New(&caller{reply: &pluginv1.CompileReply{Plan: p}}).Compile(t.Context(), "mine", req); err != nil || r.Plan.GetHash().GetSource() != source {
			t.Errorf("%s: %v, %v", source, r.Plan, err)
		}
	}
}

// What a plugin adds to a plan, or sets of what is the host's, goes nowhere.
func TestPlanIsTheHostsOwn(t *testing.T) {
	hash := &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_UNIT}
	p := &donav1.Plan{Algorithm: consistentHash, Generation: 7, Hash: proto.CloneOf(hash), MaxLoadPercent: 110}
	p.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 1, 'x'}) // field 1023
	p.Hash.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 1, 'x'})
	r, err := strategy.New(&caller{reply: &pluginv1.CompileReply{Plan: p}}).Compile(t.Context(), "mine", request())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(r.Plan, &donav1.Plan{Strategy: "mine", Algorithm: consistentHash, Hash: hash, MaxLoadPercent: 110}) {
		t.Errorf("plan %v", r.Plan)
	}
}

func TestRefreshIsBounded(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		0: 0, time.Nanosecond: strategy.MinRefresh, time.Minute: time.Minute, 48 * time.Hour: strategy.MaxRefresh,
	} {
		c := &caller{reply: &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: roundRobin}, RefreshAfter: durationpb.New(given)}}
		if r, err := strategy.New(c).Compile(t.Context(), "mine", request()); err != nil || r.RefreshAfter != want {
			t.Errorf("refresh_after %v: %v, %v, want %v", given, r.RefreshAfter, err, want)
		}
	}
}

func TestInstanceIsTheScopeAndTheConfiguration(t *testing.T) {
	instance := func(scope string, config map[string]any) string {
		s, err := structpb.NewStruct(config)
		if err != nil {
			t.Fatal(err)
		}
		c := &caller{reply: &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: roundRobin}}}
		req := request()
		req.Scope, req.InstanceId = scope, "forged"
		if _, err := strategy.New(c).CompileWith(t.Context(), "mine", s, req); err != nil {
			t.Fatal(err)
		}
		if c.sent.GetInstanceId() != c.instance.ID || req.InstanceId != "forged" {
			t.Errorf("sent %q for %q, and the caller's request has %q", c.sent.GetInstanceId(), c.instance.ID, req.InstanceId)
		}
		return c.instance.ID
	}
	one := instance("service/shop", map[string]any{"a": 1, "b": "x"})
	if again := instance("service/shop", map[string]any{"b": "x", "a": 1}); again != one {
		t.Error("the same configuration, another instance")
	}
	if other := instance("service/shop", map[string]any{"a": 2, "b": "x"}); other == one {
		t.Error("another configuration, the same instance")
	}
	if other := instance("service/cart", map[string]any{"a": 1, "b": "x"}); other == one {
		t.Error("another scope, the same instance")
	}
}
