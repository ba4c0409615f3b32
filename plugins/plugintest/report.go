package plugintest

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	"github.com/dodona-project/dodona/plugins"
)

// A Status is how a check ended.
type Status string

// The statuses.
const (
	Passed  Status = "pass"
	Failed  Status = "fail"
	Skipped Status = "skip"
)

// A Result is what one check found.
type Result struct {
	Check   string
	Promise string
	Status  Status
	Problem string        // what was seen, or why it was skipped; empty when passed
	Do      string        // what to do about a failure
	Took    time.Duration // 0 when skipped
}

// A Report is what the checks of one target found.
type Report struct {
	Target  string
	Plugin  string // KIND/NAME, empty when it did not start
	Version string
	Results []Result
	Took    time.Duration

	began time.Time
}

// describe notes which plugin it is, and returns its kind.
func (r *Report) describe(ctx context.Context, t Target) plugins.Kind {
	if r.Results[0].Status != Passed {
		return ""
	}
	s, err := open(ctx, t)
	if err != nil {
		return ""
	}
	defer s.close()
	r.Plugin, r.Version = s.id.String(), s.said.GetVersion()
	return s.id.Kind
}

// Failed returns how many checks failed.
func (r *Report) Failed() (n int) {
	for _, x := range r.Results {
		if x.Status == Failed {
			n++
		}
	}
	return n
}

// Lines is the report for people: a line for each check, what to do below those
// that failed, and a line that sums up.
func (r *Report) Lines() (lines []string) {
	counts := map[Status]int{}
	for _, x := range r.Results {
		counts[x.Status]++
		switch x.Status {
		case Passed:
			lines = append(lines, fmt.Sprintf("pass  %-16s %6.1fs  %s", x.Check, x.Took.Seconds(), x.Promise))
		case Skipped:
			lines = append(lines, fmt.Sprintf("skip  %-16s %7s  %s", x.Check, "", x.Problem))
		default:
			lines = append(lines,
				fmt.Sprintf("FAIL  %-16s %6.1fs  %s", x.Check, x.Took.Seconds(), x.Promise),
				"        seen: "+x.Problem, "        do:   "+x.Do)
		}
	}
	who := r.Plugin
	if who == "" {
		who = r.Target
	} else {
		who += " " + r.Version
	}
	return append(lines, fmt.Sprintf("%s: %d passed, %d failed, %d skipped in %.1fs",
		who, counts[Passed], counts[Failed], counts[Skipped], r.Took.Seconds()))
}

// MarshalJSON writes the report for programs. Times are seconds.
func (r *Report) MarshalJSON() ([]byte, error) {
	type result struct {
		Check   string  `json:"check"`
		Promise string  `json:"promise"`
		Status  Status  `json:"status"`
		Problem string  `json:"problem,omitempty"`
		Do      string  `json:"do,omitempty"`
		Seconds float64 `json:"seconds"`
	}
	results := make([]result, len(r.Results))
	for i, x := range r.Results {
		results[i] = result{x.Check, x.Promise, x.Status, x.Problem, x.Do, x.Took.Seconds()}
	}
	return json.Marshal(struct {
		Target  string   `json:"target"`
		Plugin  string   `json:"plugin,omitempty"`
		Version string   `json:"version,omitempty"`
		Failed  int      `json:"failed"`
		Seconds float64  `json:"seconds"`
		Results []result `json:"results"`
	}{r.Target, r.Plugin, r.Version, r.Failed(), r.Took.Seconds(), results})
}

// JUnit is the report as a test suite in the XML that build servers read.
func (r *Report) JUnit() ([]byte, error) {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Time    string   `xml:"time,attr"`
		Failure *message `xml:"failure,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
	}
	suite := struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"time,attr"`
		Stamp    string     `xml:"timestamp,attr"`
		Cases    []testcase `xml:"testcase"`
	}{Name: r.Plugin, Tests: len(r.Results), Failures: r.Failed(), Time: seconds(r.Took), Stamp: r.began.UTC().Format("2006-01-02T15:04:05")}
	if suite.Name == "" {
		suite.Name = r.Target
	}
	for _, x := range r.Results {
		c := testcase{Class: suite.Name, Name: x.Check, Time: seconds(x.Took)}
		switch x.Status {
		case Failed:
			c.Failure = &message{printable(x.Problem), printable("promise: " + x.Promise + "\ndo: " + x.Do)}
		case Skipped:
			suite.Skipped++
			c.Skipped = &message{Message: printable(x.Problem)}
		}
		suite.Cases = append(suite.Cases, c)
	}
	text, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return nil, err
	}
	return append([]byte(xml.Header), append(text, '\n')...), nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// printable drops what XML cannot hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0xFFFE || r == 0xFFFF {
			return ' '
		}
		return r
	}, s)
}
