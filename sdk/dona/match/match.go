// Package match is what the operators of targeting rules mean. The host asks it
// whether a flag's rules can be followed before it stores them, and package decide
// compiles them with the same code: what a host accepts, a client follows.
//
// IN, NOT_IN and EXISTS are checked here and carried out by package decide, which
// looks them up in tables. All others are a Matcher: its values are read once, and
// a match allocates nothing for an attribute of the right type.
//
//	operator              attribute        value
//	STARTS_WITH ENDS_WITH text             text, compared byte for byte
//	CONTAINS
//	NUM_LT NUM_LE         number, or text  number as in JSON
//	NUM_GT NUM_GE         that spells one
//	SEMVER_LT SEMVER_GE   text, a version  version
//	CIDR                  text, an address prefix or address
//	MATCHES               text             RE2 pattern
//
// A rule matches when any of its values does.
package match

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// What the rules of one flag may have.
const (
	MaxRules    = 100
	MaxValues   = 1_000   // of a rule
	MaxValueLen = 1 << 10 // bytes of a value, a pattern among them
	MaxPatterns = 10_000  // steps of all patterns of the flag together, repetitions counted out
)

// Error says what is wrong with a flag's rules.
type Error struct {
	Field string // targeting[2].values[0]
	Text  string // what is wrong, and what is allowed
}

// Error is the field and the text.
func (e *Error) Error() string { return e.Field + " " + e.Text }

// Verdict is what a rule says of an attribute.
type Verdict uint8

// The verdicts.
const (
	Missed    Verdict = iota
	Matched           // by one of the values
	WrongType         // the operator does not take such an attribute
)

// Matcher is a prepared rule. It is immutable and safe for concurrent use.
type Matcher struct {
	operator donav1.TargetingRule_Operator
	texts    []string
	numbers  []number
	versions []version
	prefixes []netip.Prefix
	patterns []*regexp.Regexp
}

// Check says what is wrong with the targeting rules of a flag, as an *Error.
func Check(rules []*donav1.TargetingRule) error {
	_, err := Compile(rules)
	return err
}

// Compile prepares the targeting rules of a flag: a Matcher for each, nil for IN
// (an unspecified operator is one), NOT_IN and EXISTS. The error is an *Error: the
// flag cannot be followed.
func Compile(rules []*donav1.TargetingRule) ([]*Matcher, error) {
	if len(rules) > MaxRules {
		return nil, &Error{"targeting", fmt.Sprintf("has %d rules: allowed are at most %d", len(rules), MaxRules)}
	}
	out := make([]*Matcher, len(rules))
	left := MaxPatterns
	for i, r := range rules {
		m, err := compile(r, &left)
		if err != nil {
			err.Field = fmt.Sprintf("targeting[%d].%s", i, err.Field)
			return nil, err
		}
		out[i] = m
	}
	return out, nil
}

// compile prepares one rule. left is how long its patterns may be.
func compile(r *donav1.TargetingRule, left *int) (*Matcher, *Error) {
	op, values := r.GetOperator(), r.GetValues()
	if r.GetAttribute() == "" {
		return nil, &Error{"attribute", "is empty: it names the request attribute to look at"}
	}
	if _, known := donav1.TargetingRule_Operator_name[int32(op)]; !known {
		return nil, &Error{"operator", fmt.Sprintf("is %d, which is not known: known are %s", op, operators())}
	}
	if r.GetVariant() == "" {
		return nil, &Error{"variant", "is empty: it names the variant that the rule gives"}
	}
	if op == donav1.TargetingRule_OPERATOR_EXISTS {
		if len(values) > 0 {
			return nil, &Error{"values", fmt.Sprintf("has %d values: EXISTS takes none", len(values))}
		}
		return nil, nil
	}
	switch n := len(values); {
	case n == 0:
		return nil, &Error{"values", "is empty: at least one value is compared with the attribute"}
	case n > MaxValues:
		return nil, &Error{"values", fmt.Sprintf("has %d values: allowed are at most %d", n, MaxValues)}
	}
	var m *Matcher
	if !membership(op) {
		m = &Matcher{operator: op}
	}
	for i, v := range values {
		wrong := ""
		if len(v) > MaxValueLen {
			wrong = fmt.Sprintf("has %d bytes: allowed are at most %d", len(v), MaxValueLen)
		} else if m != nil {
			wrong = m.add(v, left)
		}
		if wrong != "" {
			return nil, &Error{fmt.Sprintf("values[%d]", i), wrong}
		}
	}
	return m, nil
}

func membership(op donav1.TargetingRule_Operator) bool {
	return op <= donav1.TargetingRule_OPERATOR_NOT_IN
}

// operators lists the operators.
func operators() string {
	var names []string
	for n := int32(1); donav1.TargetingRule_Operator_name[n] != ""; n++ {
		names = append(names, name(donav1.TargetingRule_Operator(n)))
	}
	return strings.Join(names, ", ")
}

func name(op donav1.TargetingRule_Operator) string {
	return strings.TrimPrefix(op.String(), "OPERATOR_")
}

// quote shows the beginning of a value.
func quote(v string) string { return fmt.Sprintf("%+.48q", v) }

// add reads one value and says what is wrong with it.
func (m *Matcher) add(v string, left *int) (wrong string) {
	switch m.operator {
	case donav1.TargetingRule_OPERATOR_STARTS_WITH, donav1.TargetingRule_OPERATOR_ENDS_WITH, donav1.TargetingRule_OPERATOR_CONTAINS:
		if v == "" {
			return "is empty and would match every text: use EXISTS for that"
		}
		m.texts = append(m.texts, v)
	case donav1.TargetingRule_OPERATOR_NUM_LT, donav1.TargetingRule_OPERATOR_NUM_LE, donav1.TargetingRule_OPERATOR_NUM_GT, donav1.TargetingRule_OPERATOR_NUM_GE:
		n, ok := parseNumber(v)
		if !ok {
			return fmt.Sprintf("is %s: %s takes a number as in JSON (18, -2.5, 1e6) that a 64-bit float can come near", quote(v), name(m.operator))
		}
		m.numbers = append(m.numbers, n)
	case donav1.TargetingRule_OPERATOR_SEMVER_LT, donav1.TargetingRule_OPERATOR_SEMVER_GE:
		n, ok := parseVersion(v)
		if !ok {
			return fmt.Sprintf("is %s: %s takes a semantic version (1.2.3, v1.2.3-rc.1), all three numbers without leading zeros", quote(v), name(m.operator))
		}
		m.versions = append(m.versions, n)
	case donav1.TargetingRule_OPERATOR_CIDR:
		n, ok := parsePrefix(v)
		if !ok {
			return fmt.Sprintf("is %s: CIDR takes a prefix (10.0.0.0/8, 2001:db8::/32) or an address, without a zone", quote(v))
		}
		m.prefixes = append(m.prefixes, n)
	case donav1.TargetingRule_OPERATOR_MATCHES:
		if v == "" {
			return "is empty and would match every text: use EXISTS for that"
		}
		p, wrong := parsePattern(v, left)
		if wrong != "" {
			return fmt.Sprintf("is %s: %s", quote(v), wrong)
		}
		m.patterns = append(m.patterns, p)
	}
	return ""
}

// Takes names the attributes that the operator takes, for people.
func (m *Matcher) Takes() string {
	switch {
	case m.numbers != nil:
		return "a number"
	case m.versions != nil:
		return "a semantic version"
	case m.prefixes != nil:
		return "an IP address"
	}
	return "a text"
}

// Text judges a text attribute.
func (m *Matcher) Text(s string) Verdict {
	switch m.operator {
	case donav1.TargetingRule_OPERATOR_STARTS_WITH:
		for _, v := range m.texts {
			if strings.HasPrefix(s, v) {
				return Matched
			}
		}
	case donav1.TargetingRule_OPERATOR_ENDS_WITH:
		for _, v := range m.texts {
			if strings.HasSuffix(s, v) {
				return Matched
			}
		}
	case donav1.TargetingRule_OPERATOR_CONTAINS:
		for _, v := range m.texts {
			if strings.Contains(s, v) {
				return Matched
			}
		}
	case donav1.TargetingRule_OPERATOR_SEMVER_LT, donav1.TargetingRule_OPERATOR_SEMVER_GE:
		v, ok := parseVersion(s)
		if !ok {
			return WrongType
		}
		less := m.operator == donav1.TargetingRule_OPERATOR_SEMVER_LT
		for i := range m.versions {
			if (v.compare(&m.versions[i]) < 0) == less {
				return Matched
			}
		}
	case donav1.TargetingRule_OPERATOR_CIDR:
		a, ok := parseAddress(s)
		if !ok {
			return WrongType
		}
		for _, p := range m.prefixes {
			if p.Contains(a) {
				return Matched
			}
		}
	case donav1.TargetingRule_OPERATOR_MATCHES:
		for _, p := range m.patterns {
			if p.MatchString(s) {
				return Matched
			}
		}
	default:
		w, kind := scanNumber(s)
		switch kind {
		case wholeNumber:
			for i := range m.numbers {
				if m.holds(m.numbers[i].compareWhole(w)) {
					return Matched
				}
			}
			return Missed
		case decimal:
			if x, ok := parseFloat(s); ok {
				return m.Float(x)
			}
		}
		return WrongType
	}
	return Missed
}

// Int judges a whole number.
func (m *Matcher) Int(n int64) Verdict {
	if m.numbers == nil {
		return WrongType
	}
	for i := range m.numbers {
		if m.holds(m.numbers[i].compareInt(n)) {
			return Matched
		}
	}
	return Missed
}

// Float judges a floating-point number. NaN and the infinities are none.
func (m *Matcher) Float(x float64) Verdict {
	if m.numbers == nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return WrongType
	}
	for i := range m.numbers {
		if m.holds(m.numbers[i].compareFloat(x)) {
			return Matched
		}
	}
	return Missed
}

// holds says whether the attribute stands to the value as the operator asks. c is
// below 0 when it is smaller.
func (m *Matcher) holds(c int) bool {
	switch m.operator {
	case donav1.TargetingRule_OPERATOR_NUM_LT:
		return c < 0
	case donav1.TargetingRule_OPERATOR_NUM_LE:
		return c <= 0
	case donav1.TargetingRule_OPERATOR_NUM_GT:
		return c > 0
	}
	return c >= 0
}
