package decide_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// golden is a rule of the table of package match and what it says of attributes.
type golden struct {
	Operator string
	Values   []string
	Refused  string
	Field    string
	Cases    []struct {
		Text, Int, Float *string
		Bool             *bool
		Want             string // yes, no, type
	}
}

func (g *golden) flag(t *testing.T) *donav1.FlagRule {
	t.Helper()
	n, known := donav1.TargetingRule_Operator_value["OPERATOR_"+g.Operator]
	if !known {
		i, err := strconv.Atoi(g.Operator)
		if err != nil {
			t.Fatal(err)
		}
		n = int32(i)
	}
	return targeting("f", "a", donav1.TargetingRule_Operator(n), "v2", g.Values...)
}

// Whole decisions come to what the golden table says, with the screen and without,
// and so does a flag that is evaluated alone.
func TestOperators(t *testing.T) {
	text, err := os.ReadFile("../match/testdata/operators.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("the table has only %d rules", len(all))
	}
	for _, g := range all {
		s := snapshot(t)
		s.Flags = []*donav1.FlagRule{g.flag(t)}
		p, err := decide.Compile(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if g.Refused != "" {
			res, err := p.EvaluateFlag("f", &decide.Request{})
			if err != nil || !res.Broken || res.Reason != donav1.Reason_REASON_ERROR || !strings.HasPrefix(res.Why, "targeting[0]."+g.Field+" ") || !strings.Contains(res.Why, g.Refused) {
				t.Errorf("%s %.60q: %+v, %v; want it broken: %s", g.Operator, g.Values, res, err, g.Refused)
			}
			continue
		}
		plain := decide.WithoutScreen(p)
		for _, c := range g.Cases {
			var a decide.Attribute
			switch {
			case c.Text != nil:
				a = decide.String("a", *c.Text)
			case c.Int != nil:
				n, err := strconv.ParseInt(*c.Int, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				a = decide.Int("a", n)
			case c.Float != nil:
				x, err := strconv.ParseFloat(*c.Float, 64)
				if err != nil {
					t.Fatal(err)
				}
				a = decide.Float("a", x)
			case c.Bool != nil:
				a = decide.Bool("a", *c.Bool)
			}
			req := decide.Request{Attributes: []decide.Attribute{decide.String("other", "x"), a}}
			said := func(hit bool, typeErrors uint16) string {
				switch {
				case hit && typeErrors == 0:
					return "yes"
				case hit:
					return "yes, and a type error"
				case typeErrors == 1:
					return "type"
				case typeErrors > 1:
					return "several type errors"
				}
				return "no"
			}
			for what, p := range map[string]*decide.Program{"screened": p, "plain": plain} {
				if res := p.Decide(&req); said(res.Flag == 0, res.TypeErrors) != c.Want {
					t.Errorf("%s %.60q of %+v, %s: %s, want %s", g.Operator, g.Values, a, what, said(res.Flag == 0, res.TypeErrors), c.Want)
				}
			}
			if res, err := p.EvaluateFlag("f", &req); err != nil || said(res.Variant == "v2", res.TypeErrors) != c.Want {
				t.Errorf("%s %.60q of %+v, alone: %+v, %v; want %s", g.Operator, g.Values, a, res, err, c.Want)
			}
			trace, err := decide.Explain(s, req)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, stage := range trace.Stages {
				lines = append(lines, stage.Detail...)
			}
			if explained := strings.Contains(strings.Join(lines, "\n"), "targeting[0]: a is not a"); explained != (c.Want == "type") {
				t.Errorf("%s %.60q of %+v: explained as %q", g.Operator, g.Values, a, lines)
			}
		}
	}
}
