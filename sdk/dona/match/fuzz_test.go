package match

import (
	"cmp"
	"math"
	"math/big"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func one(t testing.TB, op donav1.TargetingRule_Operator, value string) (*Matcher, error) {
	t.Helper()
	matchers, err := Compile([]*donav1.TargetingRule{{Attribute: "a", Operator: op, Values: []string{value}, Variant: "v"}})
	if err != nil {
		return nil, err
	}
	return matchers[0], nil
}

// seeds gives the fuzzer the texts of the golden table.
func seeds(f *testing.F, operators string) {
	for _, g := range table(f) {
		if !strings.HasPrefix(g.Operator, operators) {
			continue
		}
		for _, v := range g.Values {
			f.Add(v, v)
			for _, c := range g.Cases {
				if c.Text != nil {
					f.Add(v, *c.Text)
				}
			}
		}
	}
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// exact is the number that a text stands for by the rules: whole ones as they are,
// others as the nearest float64. nil = none.
func exact(s string) *big.Rat {
	switch {
	case !jsonNumber.MatchString(s):
		return nil
	case !strings.ContainsAny(s, ".eE"):
		r, _ := new(big.Rat).SetString(s)
		return r
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil
	}
	return new(big.Rat).SetFloat64(x)
}

var comparisons = map[donav1.TargetingRule_Operator]func(c int) bool{
	donav1.TargetingRule_OPERATOR_NUM_LT: func(c int) bool { return c < 0 },
	donav1.TargetingRule_OPERATOR_NUM_LE: func(c int) bool { return c <= 0 },
	donav1.TargetingRule_OPERATOR_NUM_GT: func(c int) bool { return c > 0 },
	donav1.TargetingRule_OPERATOR_NUM_GE: func(c int) bool { return c >= 0 },
}

// FuzzNumber compares numbers with rationals, as texts, whole numbers and floats.
func FuzzNumber(f *testing.F) {
	seeds(f, "NUM_")
	f.Fuzz(func(t *testing.T, value, text string) {
		if len(value) > 600 || len(text) > 600 {
			return
		}
		want := exact(value)
		for op, holds := range comparisons {
			m, err := one(t, op, value)
			if (err == nil) != (want != nil) {
				t.Fatalf("%q: %v; want it to be a number: %v", value, err, want != nil)
			}
			if err != nil {
				return
			}
			expect := func(of any, a *big.Rat, got Verdict) {
				t.Helper()
				verdict := WrongType
				if a != nil {
					verdict = Missed
					if holds(a.Cmp(want)) {
						verdict = Matched
					}
				}
				if got != verdict {
					t.Fatalf("%v %.40q of %v: %v, want %v", op, value, of, verdicts[got], verdicts[verdict])
				}
			}
			expect(text, exact(text), m.Text(text))
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				for _, n := range []int64{n, n + 1, n - 1} {
					expect(n, new(big.Rat).SetInt64(n), m.Int(n))
				}
			}
			if x, err := strconv.ParseFloat(text, 64); err == nil {
				for _, x := range []float64{x, math.Nextafter(x, math.Inf(1)), math.Nextafter(x, math.Inf(-1)), math.Floor(x)} {
					expect(x, new(big.Rat).SetFloat64(x), m.Float(x)) // nil when it is not finite
				}
			}
		}
	})
}

// From semver.org, with the v that is allowed here.
var semver = regexp.MustCompile(`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)

// precedence is section 11 of semver.org 2.0.0, word for word and with no thought for
// speed.
func precedence(a, b []string) int {
	n := func(s string) *big.Int {
		i, _ := new(big.Int).SetString(s, 10)
		return i
	}
	for i := 1; i <= 3; i++ {
		if c := n(a[i]).Cmp(n(b[i])); c != 0 {
			return c
		}
	}
	switch {
	case a[4] == "" && b[4] == "":
		return 0
	case a[4] == "":
		return 1
	case b[4] == "":
		return -1
	}
	whole := func(s string) bool { return strings.Trim(s, "0123456789") == "" }
	return slices.CompareFunc(strings.Split(a[4], "."), strings.Split(b[4], "."), func(x, y string) int {
		switch {
		case whole(x) && whole(y):
			return n(x).Cmp(n(y))
		case whole(x):
			return -1
		case whole(y):
			return 1
		}
		return cmp.Compare(x, y)
	})
}

func FuzzSemver(f *testing.F) {
	seeds(f, "SEMVER_")
	f.Fuzz(func(t *testing.T, value, text string) {
		if len(value) > MaxValueLen {
			return
		}
		v, a := semver.FindStringSubmatch(value), semver.FindStringSubmatch(text)
		less, err := one(t, donav1.TargetingRule_OPERATOR_SEMVER_LT, value)
		if (err == nil) != (v != nil) {
			t.Fatalf("%q: %v; want it to be a version: %v", value, err, v != nil)
		}
		if err != nil {
			return
		}
		wantLess, wantNot := WrongType, WrongType
		if a != nil {
			wantLess, wantNot = Missed, Matched
			if precedence(a, v) < 0 {
				wantLess, wantNot = Matched, Missed
			}
		}
		not, err := one(t, donav1.TargetingRule_OPERATOR_SEMVER_GE, value)
		if err != nil {
			t.Fatal(err)
		}
		if got := less.Text(text); got != wantLess {
			t.Fatalf("%q < %q: %v, want %v", text, value, verdicts[got], verdicts[wantLess])
		}
		if got := not.Text(text); got != wantNot {
			t.Fatalf("%q >= %q: %v, want %v", text, value, verdicts[got], verdicts[wantNot])
		}
	})
}

// FuzzCIDR compares bit by bit what package netip reads.
func FuzzCIDR(f *testing.F) {
	seeds(f, "CIDR")
	f.Fuzz(func(t *testing.T, value, text string) {
		if len(value) > MaxValueLen {
			return
		}
		p, err := netip.ParsePrefix(value)
		if a, e := netip.ParseAddr(value); e == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		m, refused := one(t, donav1.TargetingRule_OPERATOR_CIDR, value)
		if (err == nil) != (refused == nil) {
			t.Fatalf("%q: %v; netip says %v", value, refused, err)
		}
		if refused != nil {
			return
		}
		want := WrongType
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			want = Missed
			// Both as 128 bits; only a prefix that is within the mapped addresses has any.
			at, of, bits := a.As16(), p.Addr().As16(), p.Bits()
			if p.Addr().Is4() {
				bits += 96
			}
			mapped := a.Unmap().Is4()
			same := mapped == (p.Addr().Unmap().Is4() && bits >= 96)
			for i := range bits {
				same = same && at[i/8]>>(7-i%8)&1 == of[i/8]>>(7-i%8)&1
			}
			if same {
				want = Matched
			}
		}
		if got := m.Text(text); got != want {
			t.Fatalf("%q in %q: %v, want %v", text, value, verdicts[got], verdicts[want])
		}
	})
}

// FuzzPattern looks for patterns that package regexp reads otherwise, and that come
// to more instructions than they were counted for.
func FuzzPattern(f *testing.F) {
	seeds(f, "MATCHES")
	f.Fuzz(func(t *testing.T, value, text string) {
		if len(value) > MaxValueLen || value == "" {
			return
		}
		p, err := regexp.Compile(value)
		left := MaxPatterns
		ours, wrong := parsePattern(value, &left)
		if wrong != "" {
			if err == nil && !strings.Contains(wrong, "counted out") {
				t.Fatalf("%q is refused: %s", value, wrong)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if n := instructions(t, value); n > 2*(MaxPatterns-left)+10 {
			t.Fatalf("%q has %d instructions and was counted as %d", value, n, MaxPatterns-left)
		}
		if ours.MatchString(text) != p.MatchString(text) {
			t.Fatalf("%q of %q", value, text)
		}
	})
}

// instructions is how long the program of a pattern is.
func instructions(t *testing.T, pattern string) int {
	t.Helper()
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	p, err := syntax.Compile(tree.Simplify())
	if err != nil {
		t.Fatal(err)
	}
	return len(p.Inst)
}
