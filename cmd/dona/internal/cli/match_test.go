package cli

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func TestParseMatch(t *testing.T) {
	rule := func(attribute string, op donav1.TargetingRule_Operator, variant string, values ...string) *donav1.TargetingRule {
		return &donav1.TargetingRule{Attribute: attribute, Operator: op, Variant: variant, Values: values}
	}
	for text, want := range map[string]*donav1.TargetingRule{
		"country in CH,DE -> v2":         rule("country", donav1.TargetingRule_OPERATOR_IN, "v2", "CH", "DE"),
		"  country  in CH , DE->v2 ":     rule("country", donav1.TargetingRule_OPERATOR_IN, "v2", "CH", "DE"),
		"beta exists -> v2":              rule("beta", donav1.TargetingRule_OPERATOR_EXISTS, "v2"),
		"age num-ge 18 -> v2":            rule("age", donav1.TargetingRule_OPERATOR_NUM_GE, "v2", "18"),
		`name in "a,b","x -> y","" -> v`: rule("name", donav1.TargetingRule_OPERATOR_IN, "v", "a,b", "x -> y", ""),
		"ip CIDR 10.0.0.0/8 -> inside":   rule("ip", donav1.TargetingRule_OPERATOR_CIDR, "inside", "10.0.0.0/8"),
		"plan in gold plan -> v2":        rule("plan", donav1.TargetingRule_OPERATOR_IN, "v2", "gold plan"),
	} {
		got, err := parseMatch(text)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "country", "country in", "country in CH", "country in CH ->", "country in ,CH -> v2",
		"country in CH,, -> v2", `country in "CH -> v2`, `country in "CH" "DE" -> v2`, "country unspecified CH -> v2", "-> v2"} {
		if got, err := parseMatch(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// What was read and is written again reads as the same rule.
func FuzzParseMatch(f *testing.F) {
	f.Add("country in CH,DE -> v2")
	f.Add(`name in "a,b","x -> y","" -> v`)
	f.Add("beta exists -> v2")
	f.Add("a in \"\\u202e\" -> v")
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := parseMatch(text)
		if err != nil {
			return
		}
		if render.Clean(rule.GetAttribute()) != rule.GetAttribute() || render.Clean(rule.GetVariant()) != rule.GetVariant() {
			return // the host refuses such names
		}
		again, err := parseMatch(render.Match(rule))
		if err != nil || !proto.Equal(rule, again) {
			t.Errorf("%q is read as %v, written as %q and read as %v, %v", text, rule, render.Match(rule), again, err)
		}
	})
}
