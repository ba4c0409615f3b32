//go:build linux

package plugins_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
)

// growth is how much a host may grow, at its peak, by what a plugin sends.
const growth = 16 << 10 // KiB

// Whatever a plugin sends, it is the plugin that pays for it. Each row runs in
// the same host process, whose peak is taken anew for each.
func TestHostStaysSmall(t *testing.T) {
	c := cast{
		"raw": "raw", "sdk": "sdk", "strategy/raw": "raw",
		"abilities": "many-abilities", "described": "describe-large", "schema": "deep-schema",
		"violations": "many-violations", "health": "health-flood",
	}
	host := startHostProcess(t, ownProgram(t), hostSetup{Cast: c})
	host.must("await sdk")
	host.must("await raw")
	host.must("await strategy/raw")
	step := steps(t)
	defer step()
	host.must("keep sdk")
	// Everything is used once before anything is measured.
	for _, line := range []string{"do raw stderr 1", "do raw large 1", "do strategy/raw none", "do sdk stderr 1"} {
		host.tell(line)
	}
	for _, tc := range []struct {
		name, line string
		refused    string // in the error; empty: it is none
	}{
		{"100 MiB on stderr, a line of 1 MiB, binary", "do raw stderr 100", ""},
		{"the same through the SDK", "do sdk stderr 100", ""},
		{"100 MiB on stdout", "do raw stdout 100", ""},
		{"an answer of 15 MiB", "do raw large 15", "too_large"},
		{"an answer of 64 MiB", "do raw large 64", "too_large"},
		{"an answer of 512 MiB", "do raw large 512", "too_large"},
		{"a million groups in one another", "do raw nested 1000000", "too_large"},
		{"groups in one another as deep as fits", "do raw nested 90000", "encoding"},
		{"an error of 12 MiB", "do raw error 12000", "raw"},
		{"a plan of a million weights", "do strategy/raw too_large", "too_large"},
		{"a million violations", "do violations", "violations"},
		{"a million capabilities", "await abilities", "abilities"},
		{"a description of 64 MiB", "await described", "described"},
		{"a schema of 9,000 levels", "await schema", "schema"},
		{"20,000 offers of services", "do raw broker-flood 20000", ""},
		{"changes of health without end", "await health", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := strings.Fields(tc.line)[1]
			if strings.HasPrefix(tc.line, "do ") {
				host.tell("await " + name)
			}
			before := host.must("settle")
			r := host.tell(tc.line)
			after := host.must("stats")
			t.Logf("%+d KiB at the peak, %+d goroutines, %v of processor time: %.200s %s",
				after.Peak-before.RSS, after.Goroutines-before.Goroutines, after.CPU-before.CPU, r.Error, r.Detail)
			if strings.Contains(r.Error, plugins.ErrDeadline.Error()) && strings.Contains(tc.line, " std") {
				r.Error = "" // it is the flood that counts, not how long a busy machine takes for it
			}
			if (tc.refused == "") != (r.Error == "") || !strings.Contains(r.Error, tc.refused) {
				t.Errorf("error %.300q, want %q in it", r.Error, tc.refused)
			}
			if most := growth; !raceDetector && after.Peak-before.RSS > most {
				t.Errorf("the host grew by %d KiB: allowed are %d", after.Peak-before.RSS, most)
			}
			if after.Goroutines > before.Goroutines+100 {
				t.Errorf("%d goroutines, %d before", after.Goroutines, before.Goroutines)
			}
		})
	}
	r, allowed := host.tell("counts"), tolerable(step())
	t.Logf("well-behaved: %d calls, p50 %v, p99 %v, max %v", r.OK, r.P50, r.P99, r.Max)
	if r.Failed > 0 || r.P99 > allowed {
		t.Errorf("%d calls failed (%s), p99 %v: allowed are %v", r.Failed, r.Error, r.P99, allowed)
	}
}

// A plugin whose health changes all the time keeps nobody busy.
func TestChangesOfHealthAreRated(t *testing.T) {
	host := startHostProcess(t, ownProgram(t), hostSetup{Cast: cast{"health": "health-flood", "sdk": "sdk"}})
	host.must("await sdk")
	host.must("await health")
	const span = 2 * time.Second
	before := host.must("stats")
	host.must("span " + span.String())
	after := host.must("stats")
	used := after.CPU - before.CPU
	t.Logf("%v of processor time in %v", used, span)
	if used > span/4 {
		t.Errorf("the host used %v of processor time in %v: allowed is a quarter", used, span)
	}
}
