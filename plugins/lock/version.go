package lock

import (
	"cmp"
	"regexp"
	"strings"
)

// A Version is a semantic version (2.0.0 of the standard). The zero value is none.
type Version struct {
	text    string
	numbers [3]string // without leading zeros
	pre     []string  // identifiers of the pre-release, none for a release
}

var versionGrammar = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?(?:\+[0-9A-Za-z.-]+)?$`)

// ParseVersion reports false for what is no semantic version, or has more than 64
// bytes.
func ParseVersion(text string) (Version, bool) {
	m := versionGrammar.FindStringSubmatch(text)
	if m == nil || len(text) > 64 {
		return Version{}, false
	}
	v := Version{text: text, numbers: [3]string{m[1], m[2], m[3]}}
	if m[4] != "" {
		v.pre = strings.Split(m[4], ".")
	}
	return v, true
}

func (v Version) String() string { return v.text }

// Less orders by precedence; versions that differ in build metadata only are
// ordered by their text, so that the order does not depend on where they come from.
func (v Version) Less(w Version) bool {
	for i := range v.numbers {
		if c := compareNumbers(v.numbers[i], w.numbers[i]); c != 0 {
			return c < 0
		}
	}
	if len(v.pre) == 0 || len(w.pre) == 0 {
		if len(v.pre) != len(w.pre) {
			return len(v.pre) > 0 // a release is newer than its pre-releases
		}
		return v.text < w.text
	}
	for i := range min(len(v.pre), len(w.pre)) {
		if c := compareIdentifiers(v.pre[i], w.pre[i]); c != 0 {
			return c < 0
		}
	}
	if len(v.pre) != len(w.pre) {
		return len(v.pre) < len(w.pre)
	}
	return v.text < w.text
}

// compareNumbers compares numbers of any length, which have no leading zeros.
func compareNumbers(a, b string) int {
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func compareIdentifiers(a, b string) int {
	switch na, nb := isNumber(a), isNumber(b); {
	case na && nb:
		return compareNumbers(a, b)
	case na:
		return -1
	case nb:
		return 1
	}
	return strings.Compare(a, b)
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }
