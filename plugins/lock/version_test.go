package lock

import (
	"strings"
	"testing"
)

func TestVersionsAreOrdered(t *testing.T) {
	// Each is older than the next.
	order := strings.Fields(`0.0.0 0.0.9 0.0.10 0.1.0 1.0.0-1 1.0.0-2 1.0.0-10 1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta
		1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 1.0.0+a 1.0.0+b 1.0.1-0 2.0.0 10.0.0 99999999999999999999.0.0`)
	for i, a := range order {
		for j, b := range order {
			v, ok := ParseVersion(a)
			w, ok2 := ParseVersion(b)
			if !ok || !ok2 {
				t.Fatalf("%s or %s is not read", a, b)
			}
			if v.Less(w) != (i < j) {
				t.Errorf("%s < %s is %v", a, b, v.Less(w))
			}
		}
	}
}

func TestWhatIsNoVersion(t *testing.T) {
	for _, text := range []string{"", "1", "1.0", "v1.0.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0-a..b", "1.0.0+", "latest", "1.0.0 ", "../1.0.0", strings.Repeat("1", 64) + ".0.0"} {
		if _, ok := ParseVersion(text); ok {
			t.Errorf("%q is read as a version", text)
		}
	}
}
