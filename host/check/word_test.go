package check_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/check"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// TestBelieved: whose word on a run of failures counts. Under the brake, or of a checker
// that is doubted, it takes a second checker however long it goes on; where there is one
// checker, three intervals.
func TestBelieved(t *testing.T) {
	const now = int64(10_000_000)
	ago := func(d time.Duration) int64 { return now - d.Milliseconds() }
	short, long := 3*rules.Interval-time.Millisecond, 3*rules.Interval
	for _, tc := range []struct {
		what     string
		checkers int
		braked   int64
		doubted  map[string]int64
		failing  int64
		by       []string
		want     bool
	}{
		{"without a brake", 2, 0, nil, ago(0), []string{"a"}, true},
		{"another one is doubted", 2, 0, map[string]int64{"b": ago(long)}, ago(0), []string{"a"}, true},
		{"braked, one of two says so for long", 2, ago(10 * long), nil, ago(10 * long), []string{"a"}, false},
		{"braked, both say so", 2, ago(0), nil, ago(0), []string{"a", "b"}, true},
		{"braked, the only one for too short", 1, ago(short), nil, ago(10 * long), []string{"a"}, false},
		{"braked, the only one, of what fails for too short", 1, ago(10 * long), nil, ago(short), []string{"a"}, false},
		{"braked, the only one for three intervals", 1, ago(long), nil, ago(long), []string{"a"}, true},
		{"doubted, one of two for long", 2, 0, map[string]int64{"a": ago(10 * long)}, ago(10 * long), []string{"a"}, false},
		{"doubted, and the other says so", 2, 0, map[string]int64{"a": ago(0)}, ago(0), []string{"a", "b"}, true},
		{"doubted, the only one for too short", 1, 0, map[string]int64{"a": ago(short)}, ago(10 * long), []string{"a"}, false},
		{"doubted, the only one, of what fails for too short", 1, 0, map[string]int64{"a": ago(10 * long)}, ago(short), []string{"a"}, false},
		{"doubted, the only one for three intervals", 1, 0, map[string]int64{"a": ago(long)}, ago(long), []string{"a"}, true},
		{"nobody is there any more, for three intervals", 0, ago(long), nil, ago(long), []string{"a"}, true},
	} {
		w := check.Word{Now: now, BrakedMs: tc.braked, Checkers: tc.checkers, Doubted: tc.doubted}
		if got := w.Believed(rules, &statev1.CheckHealth{Failures: rules.Fall, FailingMs: tc.failing, By: tc.by}); got != tc.want {
			t.Errorf("%s: believed %v, want %v", tc.what, got, tc.want)
		}
	}
}
