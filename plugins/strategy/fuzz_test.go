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
)

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
		if p.GetStrategy() != "mine" || p.GetGeneration() != 0 || (p.GetAlgorithm() != roundRobin && p.GetAlgorithm() != least) {
			t.Fatalf("plan %v", p)
		}
		if p.GetHash() != nil || len(p.GetGroupTiers()) != 0 || p.GetMaxLoadPercent() != 0 || len(p.ProtoReflect().GetUnknown()) != 0 {
			t.Fatalf("plan %v has what no client executes", p)
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
