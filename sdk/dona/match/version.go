package match

import (
	"cmp"
	"strings"
)

// version is a semantic version (semver.org, 2.0.0). Its numbers have any size. Build
// metadata is checked and left out: it has no precedence.
type version struct {
	core [3]string // major, minor, patch
	pre  string    // pre-release; empty = a release
}

// parseVersion reads a version. One v before it is allowed: tags have it.
func parseVersion(s string) (v version, ok bool) {
	s = strings.TrimPrefix(s, "v")
	if at := strings.IndexByte(s, '+'); at >= 0 {
		if !identifiers(s[at+1:], true) {
			return v, false
		}
		s = s[:at]
	}
	if at := strings.IndexByte(s, '-'); at >= 0 {
		if v.pre = s[at+1:]; !identifiers(v.pre, false) {
			return v, false
		}
		s = s[:at]
	}
	for i := range v.core {
		part, rest, more := strings.Cut(s, ".")
		if !numeric(part) || part[0] == '0' && part != "0" || more != (i < 2) {
			return v, false
		}
		v.core[i], s = part, rest
	}
	return v, true
}

// identifiers checks a list with dots between. Numbers in a pre-release have no
// leading zeros; in build metadata they may.
func identifiers(s string, build bool) bool {
	for more := true; more; {
		var id string
		id, s, more = strings.Cut(s, ".")
		if id == "" || !build && len(id) > 1 && id[0] == '0' && numeric(id) {
			return false
		}
		for i := 0; i < len(id); i++ {
			c := id[i]
			if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' {
				return false
			}
		}
	}
	return true
}

func numeric(s string) bool { return s != "" && digits(s) == len(s) }

// compare is precedence (section 11): below 0 when v comes first.
func (v *version) compare(o *version) int {
	for i := range v.core {
		if c := compareDigits(v.core[i], o.core[i]); c != 0 {
			return c
		}
	}
	if v.pre == "" || o.pre == "" {
		return cmp.Compare(len(o.pre), len(v.pre)) // a release comes after its pre-releases
	}
	a, b := v.pre, o.pre
	for {
		var x, y string
		var moreA, moreB bool
		x, a, moreA = strings.Cut(a, ".")
		y, b, moreB = strings.Cut(b, ".")
		if c := compareIdentifiers(x, y); c != 0 {
			return c
		}
		switch {
		case !moreA && !moreB:
			return 0
		case !moreA:
			return -1 // the longer list comes after
		case !moreB:
			return 1
		}
	}
}

func compareIdentifiers(x, y string) int {
	switch a, b := numeric(x), numeric(y); {
	case a && b:
		return compareDigits(x, y)
	case a:
		return -1 // numbers come before names
	case b:
		return 1
	}
	return strings.Compare(x, y)
}
