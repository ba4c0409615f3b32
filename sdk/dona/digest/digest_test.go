package digest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

type vector struct {
	Format   int             `json:"format"`
	Snapshot json.RawMessage `json:"snapshot"`
	Items    []struct {
		Kind     digest.Kind `json:"kind"`
		IDHex    string      `json:"id_hex"`
		BytesHex string      `json:"bytes_hex"`
		Digest   string      `json:"digest"`
		ItemHash string      `json:"item_hash"`
	} `json:"items"`
	Sum      string `json:"sum"`
	Checksum string `json:"checksum"`
}

func load(t *testing.T) (vector, *donav1.ConfigSnapshot) {
	t.Helper()
	raw, err := os.ReadFile("testdata/snapshot.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vector
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	s := &donav1.ConfigSnapshot{}
	if err := protojson.Unmarshal(v.Snapshot, s); err != nil {
		t.Fatal(err)
	}
	return v, s
}

func fromHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVectorItems(t *testing.T) {
	v, s := load(t)
	if v.Format != digest.Format {
		t.Fatalf("vector has format %d, the package computes %d", v.Format, digest.Format)
	}
	residency, _ := digest.ResidencyItem(s.Residency)
	plan, _ := digest.PlanItem(s.Plan)
	got := []struct {
		bytes []byte
		item  [32]byte
	}{
		{digest.AppendEndpoint(nil, s.Endpoints[0]), digest.EndpointItem(s.Endpoints[0])},
		{digest.AppendEndpoint(nil, s.Endpoints[1]), digest.EndpointItem(s.Endpoints[1])},
		{digest.AppendWeight(nil, s.Weights[0]), digest.WeightItem(0, s.Weights[0])},
		{digest.AppendWeight(nil, s.Weights[1]), digest.WeightItem(1, s.Weights[1])},
		{digest.AppendFlag(nil, s.Flags[0]), digest.FlagItem(s.Flags[0])},
		{digest.AppendResidency(nil, s.Residency), residency},
		{digest.AppendPlan(nil, s.Plan), plan},
		{nil, digest.QuarantinedItem(s.QuarantinedVariants[0])},
	}
	if len(got) != len(v.Items) {
		t.Fatalf("vector has %d items, want %d", len(v.Items), len(got))
	}
	var sum digest.Sum
	for i, want := range v.Items {
		if g := hex.EncodeToString(got[i].bytes); g != want.BytesHex {
			t.Errorf("item %d: bytes\n got %s\nwant %s", i, g, want.BytesHex)
		}
		inner := sha256.Sum256(got[i].bytes)
		if g := hex.EncodeToString(inner[:]); g != want.Digest {
			t.Errorf("item %d: digest %s, want %s", i, g, want.Digest)
		}
		if g := hex.EncodeToString(got[i].item[:]); g != want.ItemHash {
			t.Errorf("item %d: hash %s, want %s", i, g, want.ItemHash)
		}
		raw := digest.Item(want.Kind, string(fromHex(t, want.IDHex)), fromHex(t, want.BytesHex))
		if raw != got[i].item {
			t.Errorf("item %d: Item disagrees with the helper", i)
		}
		sum.Add(got[i].item)
	}
	b := sum.Bytes()
	if g := hex.EncodeToString(b[:]); g != v.Sum {
		t.Errorf("sum %s, want %s", g, v.Sum)
	}
	c := digest.OfSnapshot(s)
	if g := hex.EncodeToString(c[:]); g != v.Checksum {
		t.Errorf("checksum %s, want %s", g, v.Checksum)
	}
}

// Every change to what is hashed changes the checksum; what is not hashed
// changes nothing.
func TestWhatCounts(t *testing.T) {
	for _, c := range []struct {
		name    string
		mutate  func(*donav1.ConfigSnapshot)
		changes bool
	}{
		{"version", func(s *donav1.ConfigSnapshot) { s.Version = 99 }, false},
		{"service", func(s *donav1.ConfigSnapshot) { s.Service = "other" }, false},
		{"form", func(s *donav1.ConfigSnapshot) { s.Form = donav1.ConfigSnapshot_FORM_FULL }, false},
		{"plan generation", func(s *donav1.ConfigSnapshot) { s.Plan.Generation = 8 }, false},
		{"order of endpoints", func(s *donav1.ConfigSnapshot) {
			s.Endpoints[0], s.Endpoints[1] = s.Endpoints[1], s.Endpoints[0]
		}, false},
		{"order of weights", func(s *donav1.ConfigSnapshot) { s.Weights[0], s.Weights[1] = s.Weights[1], s.Weights[0] }, true},
		{"order of regions", func(s *donav1.ConfigSnapshot) {
			r := s.Residency.AllowedRegions
			r[0], r[1] = r[1], r[0]
		}, true},
		{"an endpoint's zone", func(s *donav1.ConfigSnapshot) { s.Endpoints[1].Zone = "z" }, true},
		{"one endpoint less", func(s *donav1.ConfigSnapshot) { s.Endpoints = s.Endpoints[:1] }, true},
		{"an endpoint twice", func(s *donav1.ConfigSnapshot) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, true},
		{"flag disabled", func(s *donav1.ConfigSnapshot) { s.Flags[0].Disabled = true }, true},
		{"hash version", func(s *donav1.ConfigSnapshot) { s.Flags[0].HashVersion = 1 }, true},
		{"an empty value", func(s *donav1.ConfigSnapshot) {
			s.Flags[0].Targeting[0].Values = append(s.Flags[0].Targeting[0].Values, "")
		}, true},
		{"rule id", func(s *donav1.ConfigSnapshot) { s.Residency.RuleId = "" }, true},
		{"no residency", func(s *donav1.ConfigSnapshot) { s.Residency = nil }, true},
		{"no plan", func(s *donav1.ConfigSnapshot) { s.Plan = nil }, true},
		{"an empty plan", func(s *donav1.ConfigSnapshot) { s.Plan = &donav1.Plan{} }, true},
		{"a plan weight", func(s *donav1.ConfigSnapshot) { s.Plan.Weights["c"] = 0 }, true},
		{"group tiers", func(s *donav1.ConfigSnapshot) { s.Plan.GroupTiers = map[string]uint32{"z": 0} }, true},
		{"an empty hash policy", func(s *donav1.ConfigSnapshot) { s.Plan.Hash = &donav1.HashPolicy{} }, true},
		{"no quarantine", func(s *donav1.ConfigSnapshot) { s.QuarantinedVariants = nil }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, s := load(t)
			before := digest.OfSnapshot(s)
			c.mutate(s)
			if changed := digest.OfSnapshot(s) != before; changed != c.changes {
				t.Errorf("checksum changed: %v, want %v", changed, c.changes)
			}
		})
	}
}

func TestEmptyThingsAreNoItems(t *testing.T) {
	if _, ok := digest.ResidencyItem(&donav1.ResidencyPolicy{}); ok {
		t.Error("an empty residency policy is an item")
	}
	if _, ok := digest.ResidencyItem(nil); ok {
		t.Error("an absent residency policy is an item")
	}
	if _, ok := digest.PlanItem(nil); ok {
		t.Error("an absent plan is an item")
	}
	empty := digest.OfSnapshot(&donav1.ConfigSnapshot{})
	if got := digest.OfSnapshot(&donav1.ConfigSnapshot{Residency: &donav1.ResidencyPolicy{}}); got != empty {
		t.Error("an empty residency policy changes the checksum")
	}
	if got := (digest.Sum{}).Checksum(0); got != empty {
		t.Error("the empty snapshot is not the checksum of nothing")
	}
}

// The protobuf library's deterministic output is a second writer of the same
// bytes: it is no promise of theirs, but a good check of ours.
func TestCanonicalAgainstLibrary(t *testing.T) {
	marshal := func(t *rapid.T, m proto.Message) []byte {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := rapid.StringN(0, 6, 40)
	u32 := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32())
	weights := rapid.MapOfN(text, u32, 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		e := &donav1.Endpoint{Id: text.Draw(t, "id"), Address: text.Draw(t, "address"), Variant: text.Draw(t, "variant"),
			Region: text.Draw(t, "region"), LbWeight: u32.Draw(t, "weight"), Zone: text.Draw(t, "zone")}
		if got, want := digest.AppendEndpoint(nil, e), marshal(t, e); !bytes.Equal(got, want) {
			t.Fatalf("endpoint\n got %x\nwant %x", got, want)
		}
		f := &donav1.FlagRule{Flag: text.Draw(t, "flag"), Service: text.Draw(t, "service"),
			RolloutPercent: u32.Draw(t, "percent"), RolloutVariant: text.Draw(t, "rollout"), Disabled: rapid.Bool().Draw(t, "disabled"),
			HashVersion: u32.Draw(t, "hash"), Version: rapid.Uint64().Draw(t, "version")}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: text.Draw(t, "attribute"),
				Operator: donav1.TargetingRule_Operator(rapid.Int32().Draw(t, "operator")),
				Values:   rapid.SliceOfN(text, 0, 3).Draw(t, "values"), Variant: text.Draw(t, "target")})
		}
		if got, want := digest.AppendFlag(nil, f), marshal(t, f); !bytes.Equal(got, want) {
			t.Fatalf("flag\n got %x\nwant %x", got, want)
		}
		p := &donav1.Plan{Strategy: text.Draw(t, "strategy"), Algorithm: donav1.Algorithm(rapid.Int32().Draw(t, "algorithm")),
			Weights: weights.Draw(t, "weights"), GroupWeights: weights.Draw(t, "groups"), GroupTiers: weights.Draw(t, "tiers"),
			Choices: u32.Draw(t, "choices"), MaxLoadPercent: u32.Draw(t, "load")}
		if rapid.Bool().Draw(t, "hashed") {
			p.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_Source(rapid.Int32().Draw(t, "source")), Name: text.Draw(t, "name")}
		}
		want := marshal(t, p)
		p.Generation = rapid.Uint64().Draw(t, "generation")
		if got := digest.AppendPlan(nil, p); !bytes.Equal(got, want) {
			t.Fatalf("plan\n got %x\nwant %x", got, want)
		}
	})
}

// Adding and removing in any order comes to the same sum as adding what is left.
func TestSumIsIncremental(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringN(1, 8, 8), 1, 20, rapid.ID[string]).Draw(t, "ids")
		keep := rapid.IntRange(0, len(ids)).Draw(t, "keep")
		var all, left digest.Sum
		for i, id := range ids {
			item := digest.QuarantinedItem(id)
			all.Add(item)
			if i < keep {
				left.Add(item)
			}
		}
		for _, id := range rapid.Permutation(ids[keep:]).Draw(t, "order") {
			all.Remove(digest.QuarantinedItem(id))
		}
		if all != left {
			t.Fatalf("got %x, want %x", all.Bytes(), left.Bytes())
		}
	})
}

func BenchmarkOfSnapshot(b *testing.B) {
	s := &donav1.ConfigSnapshot{}
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: "endpoint-" + string(rune('a'+i%26)), Address: "10.0.0.1:8080",
			Variant: "v1", Region: "eu-west", LbWeight: 100, Zone: "eu-west-1a"})
	}
	for b.Loop() {
		digest.OfSnapshot(s)
	}
}
