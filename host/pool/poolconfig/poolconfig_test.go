package poolconfig

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDocuments runs testdata/*: "parse" prints problems, or the document as it
// is rendered; "warn" prints warnings.
func TestDocuments(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c, err := Parse("pool.yaml", d.Input)
			if err != nil {
				if c != nil {
					t.Error("a document with problems gave a configuration")
				}
				return err.Error() + "\n"
			}
			again, err := Parse("again", c.Render())
			if err != nil {
				t.Fatalf("%s: the rendered document has problems: %v\n%s", d.Pos, err, c.Render())
			}
			if !reflect.DeepEqual(again, c) {
				t.Errorf("%s: rendered and read again: %+v, want %+v", d.Pos, again, c)
			}
			switch d.Cmd {
			case "parse":
				return c.Render()
			case "warn":
				return strings.Join(append(c.Warnings(), ""), "\n")
			}
			t.Fatalf("%s: no command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

// TestBounds: each bound at n and at n+1.
func TestBounds(t *testing.T) {
	const source = "    source: {type: static, proxies: []}\n"
	upstream := func(keys string) string {
		return "cluster: {id: c}\nupstreams:\n  - name: u\n    protocol: http\n" + source + keys
	}
	routing := func(keys string) string {
		return upstream("") + "routings:\n  - name: r\n    upstreams: [{name: u}]\n" + keys
	}
	many := func(n int, item func(i int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = item(i)
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	for _, b := range []struct {
		name     string
		n        int
		document func(n int) string
	}{
		{"upstreams", MaxUpstreams, func(n int) string {
			return "cluster: {id: c}\nupstreams: " + many(n, func(i int) string {
				return fmt.Sprintf("{name: u%d, protocol: http, source: {type: static, proxies: []}}", i)
			})
		}},
		{"routings", MaxRoutings, func(n int) string {
			return upstream("") + "routings: " + many(n, func(i int) string { return fmt.Sprintf("{name: r%d, upstreams: [{name: u}]}", i) })
		}},
		{"refs", MaxRefs, func(n int) string {
			return "cluster: {id: c}\nupstreams: " + many(n, func(i int) string {
				return fmt.Sprintf("{name: u%d, protocol: http, source: {type: static, proxies: []}}", i)
			}) + "\nroutings: [{name: r, upstreams: " + many(n, func(i int) string { return fmt.Sprintf("{name: u%d}", i) }) + "}]"
		}},
		{"proxies", MaxStaticProxies, func(n int) string {
			return "cluster: {id: c}\nupstreams: [{name: u, protocol: http, source: {type: static, proxies: " +
				many(n, func(i int) string { return fmt.Sprintf("'h%d:80'", i) }) + "}}]"
		}},
		{"capacity", MaxCapacity, func(n int) string { return upstream(fmt.Sprintf("    capacityPerProxy: %d\n", n)) }},
		{"reserve", MaxReserve, func(n int) string { return upstream(fmt.Sprintf("    extractReserve: %d\n", n)) }},
		{"in flight", MaxInFlight, func(n int) string { return upstream(fmt.Sprintf("    check: {maxInFlight: %d}\n", n)) }},
		{"labels", 32, func(n int) string {
			return upstream("    labels: {" + strings.Trim(many(n, func(i int) string { return fmt.Sprintf("k%d: v", i) }), "[]") + "}\n")
		}},
		{"hosts", MaxMatches, func(n int) string {
			return routing("    match: {hosts: " + many(n, func(i int) string { return fmt.Sprintf("h%d.example", i) }) + "}\n")
		}},
		{"targets", MaxTargets, func(n int) string {
			return routing("    check: {targets: " + many(n, func(i int) string { return fmt.Sprintf("{url: 'http://h%d'}", i) }) + "}\n")
		}},
		{"statuses", MaxStatuses, func(n int) string {
			return routing("    check: {targets: [{url: 'http://h', expectStatus: " + many(n, func(i int) string { return fmt.Sprint(200 + i) }) + "}]}\n")
		}},
		{"port", 65535, func(n int) string { return routing(fmt.Sprintf("    match: {ports: [%d]}\n", n)) }},
		{"weight", MaxWeight, func(n int) string {
			return upstream("") + fmt.Sprintf("routings: [{name: r, upstreams: [{name: u, weight: %d}]}]", n)
		}},
		{"priority", MaxPriority, func(n int) string {
			return upstream("") + fmt.Sprintf("routings: [{name: r, upstreams: [{name: u, priority: %d}]}]", n)
		}},
		{"ttl, seconds", 24 * 60 * 60, func(n int) string { return upstream(fmt.Sprintf("    ttl: %ds\n", n)) }},
		{"bytes", strict.MaxBytes, func(n int) string {
			head := upstream("")
			return head + "#" + strings.Repeat("x", n-len(head)-1)
		}},
	} {
		if _, err := Parse("f", b.document(b.n)); err != nil {
			t.Errorf("%s: %d is refused: %v", b.name, b.n, err)
		}
		if _, err := Parse("f", b.document(b.n+1)); err == nil {
			t.Errorf("%s: %d is taken", b.name, b.n+1)
		} else if !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s: %d: the error does not say what is allowed: %v", b.name, b.n+1, err)
		}
	}
}

// TestNoSecretInProblems: what may be a secret is not quoted.
func TestNoSecretInProblems(t *testing.T) {
	for _, document := range []string{
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, secretRef: hunter2hunter2, source: {type: static, proxies: []}}]",
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, source: {type: static, proxies: ['u:hunter2@h:80']}}]",
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, source: {type: static, proxies: ['h:80:u:hunter2', 'hunter2']}}]",
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, source: {type: http, url: 'http://u:hunter2@h/'}}]",
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, source: {type: http, url: 'http://u:hunter2@h:port/'}}]",
		"cluster: {id: c}\nupstreams: [{name: u, protocol: http, check: {egress: {url: 'ftp://hunter2'}}, source: {type: static, proxies: []}}]",
	} {
		_, err := Parse("f", document)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s\ngave %v", document, err)
		}
	}
}

// TestCloneKeepsTheOriginal: what Clone says may be changed changes the copy only.
func TestCloneKeepsTheOriginal(t *testing.T) {
	text := readExample(t)
	c, err := Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	before := c.Render()
	next := c.Clone()
	next.Upstreams[0].Enabled = !next.Upstreams[0].Enabled
	next.Routings[0].Enabled = !next.Routings[0].Enabled
	next.Routings[0].Upstreams[0].Weight++
	next.Allocation.SafetyMargin++
	if c.Render() != before {
		t.Error("a change of the copy changed the original")
	}
	if next.Render() == before {
		t.Error("the copy did not change")
	}
	if u, ok := next.Upstream(c.Upstreams[0].Name); !ok || u.Enabled == c.Upstreams[0].Enabled {
		t.Error("Upstream did not find the changed upstream")
	}
	if _, ok := c.Routing("no-such"); ok {
		t.Error("a routing that is not there was found")
	}
}

// TestManyProblemsAtOnce: a document with many problems gets all of them, and the
// error prints twenty.
func TestManyProblemsAtOnce(t *testing.T) {
	var keys strings.Builder
	for i := range 30 {
		fmt.Fprintf(&keys, "wrong%d: 1\n", i)
	}
	_, err := Parse("f", "cluster: {id: c}\n"+keys.String())
	var all *strict.Error
	if !errors.As(err, &all) || len(all.Problems) != 30 {
		t.Fatalf("got %v", err)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 21 || lines[20] != "and 10 more" {
		t.Errorf("printed %d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// TestLineByLine: a document of which any line is lost, doubled or has another
// value is refused with places, or read; never anything else.
func TestLineByLine(t *testing.T) {
	lines := strings.Split(readExample(t), "\n")
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
		changed := append([]string{}, lines[:i]...)
		switch rapid.IntRange(0, 3).Draw(t, "what") {
		case 0:
		case 1:
			changed = append(changed, lines[i], lines[i])
		case 2:
			key, _, _ := strings.Cut(lines[i], ":")
			changed = append(changed, key+": "+rapid.SampledFrom([]string{"", "0", "-1", "true", "[]", "{}", "&a x", "*a", "!!str x", "1e9", "abc"}).Draw(t, "value"))
		case 3:
			changed = append(changed, "  "+lines[i])
		}
		changed = append(changed, lines[i+1:]...)
		judge(t, strings.Join(changed, "\n"))
	})
}

func FuzzParse(f *testing.F) {
	f.Add(readExample(f))
	f.Add("cluster: {id: c}")
	f.Add("a: &a [*a]")
	f.Add("{}\n---\n{}")
	f.Add("cluster: !!binary aGk=\n? [x]\n: y\n<<: {}")
	f.Fuzz(func(t *testing.T, text string) { judge(t, text) })
}

type failer interface{ Fatalf(string, ...any) }

// judge reads a document and checks what holds of every one.
func judge(t failer, text string) {
	c, err := Parse("f", text)
	if err != nil {
		var all *strict.Error
		if !errors.As(err, &all) || len(all.Problems) == 0 {
			t.Fatalf("%q: the error is %#v", text, err)
		}
		for _, p := range all.Problems {
			var line, col int
			if n, _ := fmt.Sscanf(p.Where, "f:%d:%d", &line, &col); n != 2 || line < 1 || col < 1 || p.Text == "" || len(p.String()) > 2_000 {
				t.Fatalf("%q: the problem is %+v", text, p)
			}
		}
		return
	}
	again, err := Parse("again", c.Render())
	if err != nil {
		t.Fatalf("%q: rendered: %v\n%s", text, err, c.Render())
	}
	if !reflect.DeepEqual(again, c) {
		t.Fatalf("%q: rendered and read again: %+v, want %+v", text, again, c)
	}
	c.Warnings()
	for _, r := range c.Routings {
		if _, err := target.Compile(r.TargetPolicy.Message(), target.Own{}); err != nil {
			t.Fatalf("%q: the gateway refuses the policy of %s: %v", text, r.Name, err)
		}
	}
}

func readExample(t testing.TB) string {
	text, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
