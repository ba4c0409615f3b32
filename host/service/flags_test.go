package service

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/match"
)

func TestLimitsOfRules(t *testing.T) {
	for name, c := range map[string][2]int{
		"rules":    {limits.TargetingRules, match.MaxRules},
		"values":   {limits.TargetingValues, match.MaxValues},
		"value":    {limits.ValueLen, match.MaxValueLen},
		"patterns": {limits.PatternSteps, match.MaxPatterns},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: the limit is %d here and %d in clients", name, c[0], c[1])
		}
	}
}

// broken says whether a client cannot follow the flag.
func broken(t rapid.TB, rule *donav1.FlagRule) (why string, is bool) {
	t.Helper()
	p, err := decide.Compile(&donav1.ConfigSnapshot{Service: rule.Service, Flags: []*donav1.FlagRule{rule}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.EvaluateFlag(rule.Flag, &decide.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return res.Why, res.Broken
}

func oneRule(op donav1.TargetingRule_Operator, values ...string) *donav1.FlagRule {
	return &donav1.FlagRule{Service: "web", Flag: "f", Targeting: []*donav1.TargetingRule{{Attribute: "a", Operator: op, Values: values, Variant: "v2"}}}
}

// The host refuses what the golden table of operators calls refused, at the same
// field, and nothing else of it.
func TestOperators(t *testing.T) {
	text, err := os.ReadFile("../../sdk/dona/match/testdata/operators.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []struct {
		Operator, Refused, Field string
		Values                   []string
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	taken, refused := 0, 0
	for _, g := range table {
		n, known := donav1.TargetingRule_Operator_value["OPERATOR_"+g.Operator]
		if !known {
			i, err := strconv.Atoi(g.Operator)
			if err != nil {
				t.Fatal(err)
			}
			n = int32(i)
		}
		rule := oneRule(donav1.TargetingRule_Operator(n), g.Values...)
		err := CheckFlag(&donav1.SetFlagRequest{Rule: rule})
		switch {
		case g.Refused == "" && err != nil:
			t.Errorf("%s %.60q: %v", g.Operator, g.Values, err)
		case g.Refused == "":
			taken++
		case err == nil || !strings.HasPrefix(err.Error(), "rule.targeting[0]."+g.Field) || !strings.Contains(err.Error(), g.Refused):
			t.Errorf("%s %.60q: got %v, want %s of %s", g.Operator, g.Values, err, g.Refused, g.Field)
		default:
			refused++
		}
	}
	if taken < 50 || refused < 50 {
		t.Errorf("%d rules were taken and %d refused", taken, refused)
	}
}

// A host takes a flag if and only if clients can follow it.
func TestHostAndClientsAgree(t *testing.T) {
	values := rapid.OneOf(
		rapid.SampledFrom([]string{"", "CH", "18", "-2.5e3", "1e999", "1.2.3", "v1.2.3-rc.1+b", "1.2", "10.0.0.0/8", "::ffff:10.0.0.0/104", "10.0.0.0/40", "^a", "(", "a{1000}", "(?:a{100}){10}"}),
		rapid.StringMatching(`[0-9.v+-]{1,8}`), rapid.StringMatching(`[0-9a-f:.]{2,12}/?[0-9]{0,3}`), rapid.StringMatching(`[()*+?|.^$\\dwb{},0-9]{1,8}`), rapid.String())
	taken, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rule := &donav1.FlagRule{Service: "web", Flag: "f"}
		for range rapid.IntRange(1, 3).Draw(t, "rules") {
			rule.Targeting = append(rule.Targeting, &donav1.TargetingRule{Attribute: "a", Variant: "v2",
				Operator: donav1.TargetingRule_Operator(rapid.IntRange(-1, 16).Draw(t, "operator")), Values: rapid.SliceOfN(values, 0, 2).Draw(t, "values")})
		}
		err := CheckFlag(&donav1.SetFlagRequest{Rule: rule})
		why, is := broken(t, rule)
		if (err != nil) != is {
			t.Fatalf("the host says %v, a client %q", err, why)
		}
		if is {
			refused++
		} else {
			taken++
		}
	})
	if taken == 0 || refused == 0 {
		t.Errorf("%d flags were taken and %d refused: both have to come up", taken, refused)
	}
}
