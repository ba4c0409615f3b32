package match

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// parsePattern compiles an RE2 pattern when its program is not longer than left, and
// takes its length off.
func parsePattern(s string, left *int) (p *regexp.Regexp, wrong string) {
	tree, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		var e *syntax.Error
		if errors.As(err, &e) {
			return nil, fmt.Sprintf("not an RE2 pattern: %s: %s", e.Code, quote(e.Expr))
		}
		return nil, "not an RE2 pattern"
	}
	n := steps(tree)
	if n > *left {
		return nil, fmt.Sprintf("it has %d steps with its repetitions counted out: the patterns of a flag may have %d together, and %d are left", n, MaxPatterns, *left)
	}
	p, err = regexp.Compile(s)
	if err != nil { // the same parser said yes
		return nil, "not an RE2 pattern"
	}
	*left -= n
	return p, ""
}

// steps is about how many instructions a pattern compiles to. It is found without
// compiling, since a pattern of ten bytes can stand for a thousand instructions.
func steps(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += steps(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpConcat:
		return n
	case syntax.OpAlternate:
		return n + len(re.Sub) - 1
	case syntax.OpCapture:
		return n + 2
	case syntax.OpRepeat:
		if re.Max < 0 {
			return (n+1)*max(re.Min, 1) + 1
		}
		return n*re.Max + re.Max - re.Min
	}
	return n + 1
}
