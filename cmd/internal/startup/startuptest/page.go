// Package startuptest compares programs with the pages about them.
package startuptest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	variable = regexp.MustCompile(`PROXY_POOL_\w+`)
	option   = regexp.MustCompile(`(?m)^  -([a-z-]+)`)
	metric   = regexp.MustCompile(`fqName: "(\w+)", help: "([^"]+)"`)
)

// Page wants a page to name every flag and variable of a program's help, every metric with
// its help, and more.
func Page(t *testing.T, file, help string, metrics prometheus.Collector, more ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := append(variable.FindAllString(help, -1), more...)
	for _, m := range option.FindAllStringSubmatch(help, -1) {
		if m[1] != "version" {
			want = append(want, "`-"+m[1]+"`")
		}
	}
	descs := make(chan *prometheus.Desc, 100)
	metrics.Describe(descs)
	close(descs)
	for d := range descs {
		m := metric.FindStringSubmatch(d.String())
		want = append(want, "`"+m[1]+"`", m[2])
	}
	if len(want) < 20 {
		t.Errorf("only %d names were found", len(want))
	}
	for _, w := range want {
		if !strings.Contains(string(text), w) {
			t.Errorf("%s has no %s", file, w)
		}
	}
}
