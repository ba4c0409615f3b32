package match

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// golden is one rule of testdata/operators.json and what it says of attributes. Package
// decide, the host and the Node.js client are held to the same table.
type golden struct {
	Operator string
	Values   []string
	Refused  string // part of the error
	Field    string
	Cases    []struct {
		Text  *string
		Int   *string
		Float *string
		Bool  *bool
		Want  string // yes, no, type
	}
}

func (g *golden) rule(t testing.TB) *donav1.TargetingRule {
	t.Helper()
	n, known := donav1.TargetingRule_Operator_value["OPERATOR_"+g.Operator]
	if !known {
		i, err := strconv.ParseInt(g.Operator, 10, 32)
		if err != nil {
			t.Fatalf("operator %q: %v", g.Operator, err)
		}
		n = int32(i)
	}
	return &donav1.TargetingRule{Attribute: "a", Operator: donav1.TargetingRule_Operator(n), Values: g.Values, Variant: "v2"}
}

func table(t testing.TB) (all []golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/operators.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

var verdicts = map[Verdict]string{Missed: "no", Matched: "yes", WrongType: "type"}

func TestGolden(t *testing.T) {
	judged, seen := 0, map[string]bool{}
	for _, g := range table(t) {
		matchers, err := Compile([]*donav1.TargetingRule{g.rule(t)})
		if g.Refused != "" {
			var e *Error
			if !errors.As(err, &e) || e.Field != "targeting[0]."+g.Field || !strings.Contains(e.Text, g.Refused) {
				t.Errorf("%s %.60q: got %v; want %s of %s", g.Operator, g.Values, err, g.Refused, g.Field)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %.60q: %v", g.Operator, g.Values, err)
			continue
		}
		seen[g.Operator] = true
		m := matchers[0]
		if m == nil {
			continue // package decide carries it out
		}
		for _, c := range g.Cases {
			var got Verdict
			var of string
			switch {
			case c.Text != nil:
				got, of = m.Text(*c.Text), strconv.Quote(*c.Text)
			case c.Int != nil:
				n, err := strconv.ParseInt(*c.Int, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				got, of = m.Int(n), *c.Int
			case c.Float != nil:
				x, err := strconv.ParseFloat(*c.Float, 64)
				if err != nil {
					t.Fatal(err)
				}
				got, of = m.Float(x), "float "+*c.Float
			default:
				continue // absent, or a bool: decided before
			}
			judged++
			if verdicts[got] != c.Want {
				t.Errorf("%s %.60q of %.60s: %s, want %s", g.Operator, g.Values, of, verdicts[got], c.Want)
			}
		}
	}
	for n, name := range donav1.TargetingRule_Operator_name {
		if !seen[strings.TrimPrefix(name, "OPERATOR_")] {
			t.Errorf("the table has nothing on %s (%d)", name, n)
		}
	}
	if judged < 200 {
		t.Errorf("only %d verdicts were compared", judged)
	}
}

func TestLimits(t *testing.T) {
	rules := func(n int) []*donav1.TargetingRule {
		out := make([]*donav1.TargetingRule, n)
		for i := range out {
			out[i] = &donav1.TargetingRule{Attribute: "a", Values: []string{"x"}, Variant: "v"}
		}
		return out
	}
	one := func(op donav1.TargetingRule_Operator, values ...string) []*donav1.TargetingRule {
		return []*donav1.TargetingRule{{Attribute: "a", Operator: op, Values: values, Variant: "v"}}
	}
	matches := donav1.TargetingRule_OPERATOR_MATCHES
	patterns := func(counts ...string) []*donav1.TargetingRule { // over several rules
		var out []*donav1.TargetingRule
		for _, c := range counts {
			out = append(out, one(matches, "a{"+c+"}")...)
		}
		return out
	}
	full := []string{"1000", "1000", "1000", "1000", "1000", "1000", "1000", "1000", "1000", "999"}
	for name, c := range map[string]struct {
		rules []*donav1.TargetingRule
		field string // empty = allowed
	}{
		"rules":             {rules(MaxRules), ""},
		"one rule more":     {rules(MaxRules + 1), "targeting"},
		"values":            {one(0, make([]string, MaxValues)...), ""},
		"one value more":    {one(0, make([]string, MaxValues+1)...), "targeting[0].values"},
		"a value":           {one(0, strings.Repeat("x", MaxValueLen)), ""},
		"a pattern":         {one(matches, strings.Repeat("x", MaxValueLen)), ""},
		"a byte more":       {one(matches, strings.Repeat("x", MaxValueLen+1)), "targeting[0].values[0]"},
		"patterns":          {patterns(append(full, "1")...), ""},
		"a step more":       {patterns(append(full, "2")...), "targeting[10].values[0]"},
		"many times a dot":  {one(matches, strings.Repeat(".{1000}", 100)), "targeting[0].values[0]"},
		"without attribute": {[]*donav1.TargetingRule{{Values: []string{"x"}, Variant: "v"}}, "targeting[0].attribute"},
		"without variant":   {[]*donav1.TargetingRule{{Attribute: "a", Values: []string{"x"}}}, "targeting[0].variant"},
		"no rule":           {[]*donav1.TargetingRule{nil}, "targeting[0].attribute"},
	} {
		t.Run(name, func(t *testing.T) {
			err, field := Check(c.rules), ""
			if e := (*Error)(nil); errors.As(err, &e) {
				field = e.Field
			}
			if field != c.field {
				t.Errorf("got %.200v, want an error of %q", err, c.field)
			}
		})
	}
}

// The texts of errors never hold much of what was sent.
func TestErrorsAreShort(t *testing.T) {
	for n := range donav1.TargetingRule_Operator_name {
		for _, v := range []string{"(" + strings.Repeat("x", 1000), strings.Repeat("é", 2000)} {
			err := Check([]*donav1.TargetingRule{{Attribute: "a", Operator: donav1.TargetingRule_Operator(n), Values: []string{v}, Variant: "v"}})
			if err != nil && len(err.Error()) > 700 {
				t.Errorf("%d bytes: %.300s", len(err.Error()), err)
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	rule := func(op donav1.TargetingRule_Operator, values ...string) *Matcher {
		matchers, err := Compile([]*donav1.TargetingRule{{Attribute: "a", Operator: op, Values: values, Variant: "v"}})
		if err != nil {
			t.Fatal(err)
		}
		return matchers[0]
	}
	starts := rule(donav1.TargetingRule_OPERATOR_STARTS_WITH, "x", "y")
	ends := rule(donav1.TargetingRule_OPERATOR_ENDS_WITH, "x", "y")
	contains := rule(donav1.TargetingRule_OPERATOR_CONTAINS, "x", "y")
	number := rule(donav1.TargetingRule_OPERATOR_NUM_GT, strings.Repeat("9", 400), "1e300", "7")
	version := rule(donav1.TargetingRule_OPERATOR_SEMVER_GE, "9.0.0", "1.2.3-rc.1.x")
	address := rule(donav1.TargetingRule_OPERATOR_CIDR, "10.0.0.0/8", "2001:db8::/32")
	pattern := rule(donav1.TargetingRule_OPERATOR_MATCHES, "^go+gle(bot|spider)$", `(a|b)*c\d{3}`)
	for name, f := range map[string]func() Verdict{
		"STARTS_WITH":       func() Verdict { return starts.Text("zebra") },
		"ENDS_WITH":         func() Verdict { return ends.Text("zebra") },
		"CONTAINS":          func() Verdict { return contains.Text("zebra") },
		"NUM, int":          func() Verdict { return number.Int(5) },
		"NUM, float":        func() Verdict { return number.Float(5.5) },
		"NUM, text":         func() Verdict { return number.Text("6") },
		"NUM, decimal":      func() Verdict { return number.Text("6.5e0") },
		"NUM, long":         func() Verdict { return number.Text(huge) },
		"NUM, no number":    func() Verdict { return number.Text("x") },
		"NUM, NaN":          func() Verdict { return number.Float(math.NaN()) },
		"SEMVER":            func() Verdict { return version.Text("1.2.3-rc.1.a+build") },
		"SEMVER, none":      func() Verdict { return version.Text("1.2") },
		"CIDR, v4":          func() Verdict { return address.Text("11.0.0.1") },
		"CIDR, v6":          func() Verdict { return address.Text("2001:db9::1") },
		"CIDR, mapped":      func() Verdict { return address.Text("::ffff:11.0.0.1") },
		"MATCHES":           func() Verdict { return pattern.Text("googlebot 1") },
		"wrong type, CIDR":  func() Verdict { return address.Int(1) },
		"wrong type, texts": func() Verdict { return starts.Float(1) },
	} {
		if name == "MATCHES" && raceEnabled {
			continue // a sync.Pool forgets at random then
		}
		var got Verdict
		if n := testing.AllocsPerRun(200, func() { got = f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if got == Matched {
			t.Errorf("%s: matched; every value was to be looked at", name)
		}
	}
}

var huge = "-" + strings.Repeat("8", 500)
