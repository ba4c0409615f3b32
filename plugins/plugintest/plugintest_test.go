package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/plugins/badplugins"
)

var program *badplugins.Program

func TestMain(m *testing.M) {
	var err error
	if program, err = badplugins.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	program.Remove()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// deliberate says which deliberately broken plugin each check finds.
var deliberate = []struct {
	check, behaviour, kind string
	want                   string // in what was seen
}{
	{"start", "crash", "analysis", "exit code 3"},
	{"start", "banner", "analysis", "Welcome to BadPlugin"},
	{"start", "wrong-version", "analysis", "version"},
	{"start", "new-protocol", "analysis", "upgrade the host"},
	{"describe", "fickle", "analysis", "asked at"},
	{"configure", "configure-once", "analysis", "this instance exists"},
	{"unknown-field", "raw", "analysis", "was accepted"},
	{"deadline", "deaf", "analysis", "went on in the plugin"},
	{"concurrency", "crowded", "analysis", "concurrent map writes"},
	{"inputs", "trusting", "analysis", "panic"},
	{"inputs", "raw", "analysis", "15 MB"}, // the default limit is 4 MiB
	{"panic", "fragile", "analysis", "ended with exit code 2; it said: "},
	{"drain", "raw", "analysis", "a call after Drain"},
	{"sigterm", "stubborn", "analysis", "it lives"},
	{"sigterm", "parent", "analysis", "processes of its own running"},
	{"lifeline", "stubborn", "analysis", "it lives"},
	{"logs", "bombs", "analysis", "@level"},
	{"logs", "chatty", "analysis", "measuring"},
	{"leaks", "leaky", "analysis", "MiB"},
	{"plan", "dice", "strategy", "asked again"},
	{"no-late-success", "optimist", "probe", "SUCCESS after"},
	{"no-data-no-pass", "passes", "analysis", "looks good"},
}

func bad(behaviour, kind string) Target { return Command(program.Path(), behaviour, kind+"/"+"x") }

func checkNamed(t *testing.T, name string) check {
	t.Helper()
	for _, c := range checks {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no check %s", name)
	return check{}
}

// Each check fails for a plugin that breaks its promise, says what was seen and
// what to do.
func TestEachCheckFails(t *testing.T) {
	found := map[string]bool{}
	results := make([]Result, len(deliberate))
	var all sync.WaitGroup
	turn := make(chan struct{}, 4)
	for i, b := range deliberate {
		found[b.check] = true
		c := checkNamed(t, b.check)
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			target, err := bad(b.behaviour, b.kind).check()
			if err != nil {
				t.Error(err)
			}
			results[i] = perform(t.Context(), target, c)
		})
	}
	all.Wait()
	for i, b := range deliberate {
		r := results[i]
		if r.Status != Failed || !strings.Contains(r.Problem, b.want) || r.Do == "" {
			t.Errorf("%s of %s: %s: %s; do: %s: want a failure with %q", b.check, b.behaviour, r.Status, r.Problem, r.Do, b.want)
		}
		t.Logf("%s of %s after %v: %s", b.check, b.behaviour, r.Took.Round(time.Millisecond), r.Problem)
	}
	for _, c := range checks {
		if !found[c.name] {
			t.Errorf("no broken plugin shows that %s can fail", c.name)
		}
	}
}

// The page that authors read has every check.
func TestThePageHasEveryCheck(t *testing.T) {
	page, err := os.ReadFile("../../PLUGINS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Checks() {
		if !regexp.MustCompile("(?m)^\\|.*`" + p.Check + "`.*\\|.*\\|$").Match(page) {
			t.Errorf("PLUGINS.md has no row for the check %s: %s", p.Check, p.Text)
		}
	}
}

// A plugin that does not start has one failure, and the rest is skipped.
func TestWhatDoesNotStart(t *testing.T) {
	for _, target := range []Target{bad("words", "analysis"), Command("/nonexistent/plugin"), Command("doc.go")} {
		report, err := Test(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		if report.Failed() != 1 || report.Results[0].Status != Failed || len(report.Results) < 10 {
			t.Errorf("%s: %v", target.path, report.Lines())
		}
		for _, r := range report.Results[1:] {
			if r.Status != Skipped {
				t.Errorf("%s: %s of what does not start: %s", target.path, r.Check, r.Status)
			}
		}
	}
}

func TestConfigurationsThatAreNone(t *testing.T) {
	for _, text := range []string{"{", "[]", `"x"`, "null null"} {
		if _, err := Test(t.Context(), bad("raw", "analysis").With(Config(text))); err == nil || !strings.Contains(err.Error(), "is not a JSON object") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTargetInConfiguration(t *testing.T) {
	s, err := parseConfig(`{"a":"http://${TARGET}/x","b":[{"c":"${TARGET}"},1,null],"d":"$TARGET"}`, "h:1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.MarshalJSON()
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, text)
	}
	if want := `{"a":"http://h:1/x","b":[{"c":"h:1"},1,null],"d":"$TARGET"}`; err != nil || compact.String() != want {
		t.Errorf("%s, %v: want %s", compact.String(), err, want)
	}
}

// The three forms of a report say the same.
func TestReport(t *testing.T) {
	r := &Report{Target: "./x", Plugin: "probe/x", Version: "1.0.0", Took: 2 * time.Second, Results: []Result{
		{Check: "start", Promise: "it starts", Status: Passed, Took: time.Second},
		{Check: "logs", Promise: "it logs", Status: Failed, Problem: "a \x1b line <x>", Do: "log", Took: time.Second},
		{Check: "leaks", Promise: "no leaks", Status: Skipped, Problem: "not here"},
	}}
	want := `pass  start               1.0s  it starts
FAIL  logs                1.0s  it logs
        seen: a ` + "\x1b" + ` line <x>
        do:   log
skip  leaks                     not here
probe/x 1.0.0: 1 passed, 1 failed, 1 skipped in 2.0s`
	if got := strings.Join(r.Lines(), "\n"); got != want {
		t.Errorf("lines:\n%s\nwant\n%s", got, want)
	}
	text, err := json.Marshal(r)
	var back struct {
		Plugin  string
		Failed  int
		Results []struct{ Check, Status, Problem, Do string }
	}
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || back.Plugin != "probe/x" || back.Failed != 1 || len(back.Results) != 3 || back.Results[1].Do != "log" {
		t.Errorf("JSON: %s, %v", text, err)
	}
	text, err = r.JUnit()
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Name    string `xml:"name,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
			} `xml:"failure"`
		} `xml:"testcase"`
	}
	if err == nil {
		err = xml.Unmarshal(text, &suite)
	}
	if err != nil || suite.Tests != 3 || suite.Failures != 1 || suite.Skipped != 1 || suite.Cases[1].Failure == nil || suite.Cases[1].Failure.Message != "a   line <x>" {
		t.Errorf("JUnit: %s, %v", text, err)
	}
}

// Who gives up has no process left, and is told so.
func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Test(ctx, bad("silent", "analysis")); err == nil {
		t.Error("no error")
	}
}
