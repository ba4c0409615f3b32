package strategy_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// candidatesOf is what a client makes of the endpoints that the host asked about.
func candidatesOf(req *pluginv1.CompileRequest) (out []plan.Candidate) {
	for _, c := range req.GetCandidates() {
		out = append(out, plan.Candidate{ID: c.GetId(), Group: c.GetGroup(), Weight: c.GetWeight(), Load: &plan.Load{}})
	}
	return out
}

// FuzzAnswer feeds the facade every message that decodes. An accepted plan is
// one a client can execute, whatever the plugin sent.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []*pluginv1.CompileReply{
		{},
		{Plan: &donav1.Plan{Algorithm: roundRobin}},
		{Plan: &donav1.Plan{Algorithm: least, Choices: 3, Weights: map[string]uint32{"a": 0, "b": 7}}, RefreshAfter: durationpb.New(time.Second)},
		{Plan: &donav1.Plan{Algorithm: roundRobin, GroupWeights: map[string]uint32{"z1": 1, "z2": 0}}},
		{Plan: &donav1.Plan{Algorithm: -5, Weights: map[string]uint32{"zz": 1 << 31}}},
		{Plan: &donav1.Plan{Algorithm: roundRobin, Hash: &donav1.HashPolicy{Name: "x"}, GroupTiers: map[string]uint32{"z1": 9}}},
		{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_TIERED, GroupTiers: map[string]uint32{"z1": 9}, GroupWeights: map[string]uint32{"z2": 2}}},
		{Plan: &donav1.Plan{Algorithm: consistentHash, Hash: &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_ATTRIBUTE, Name: "x"}, MaxLoadPercent: 150}},
		{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA, Choices: 32, Weights: map[string]uint32{"a": 0}}},
	} {
		text, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply := &pluginv1.CompileReply{}
		if proto.Unmarshal(text, reply) != nil {
			return
		}
		req := request()
		r, err := strategy.New(&caller{reply: reply}).Compile(t.Context(), "mine", req)
		if err != nil {
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason == "" {
				t.Fatalf("error %v is not about the answer", err)
			}
			return
		}
		p := r.Plan
		if p.GetStrategy() != "mine" || p.GetGeneration() != 0 || len(p.ProtoReflect().GetUnknown()) != 0 || len(p.GetHash().ProtoReflect().GetUnknown()) != 0 {
			t.Fatalf("plan %v", p)
		}
		client, err := plan.New(p, candidatesOf(req), 0)
		if err != nil {
			t.Fatalf("a client refuses plan %v: %v", p, err)
		}
		if i, ok := client.Pick(1, nil); !ok || i >= len(req.GetCandidates()) {
			t.Fatalf("plan %v gives a client nobody", p)
		}
		known, sum := map[string]bool{}, uint64(0)
		for _, c := range req.GetCandidates() {
			known[c.GetId()] = true
			w, ok := p.GetWeights()[c.GetId()]
			if !ok {
				w = c.GetWeight()
			}
			if len(p.GetGroupWeights()) > 0 && p.GetGroupWeights()[c.GetGroup()] == 0 {
				w = 0
			}
			sum += uint64(w)
		}
		if sum == 0 {
			t.Fatalf("plan %v leaves nobody", p)
		}
		for id, w := range p.GetWeights() {
			if !known[id] || w > strategy.MaxWeight {
				t.Fatalf("plan %v: weight %d of %q", p, w, id)
			}
		}
		if r.RefreshAfter < 0 || r.RefreshAfter > strategy.MaxRefresh || (r.RefreshAfter > 0 && r.RefreshAfter < strategy.MinRefresh) {
			t.Fatalf("refresh after %v", r.RefreshAfter)
		}
	})
}
