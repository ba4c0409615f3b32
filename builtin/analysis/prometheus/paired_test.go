package prometheus_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// scalar and vector are answers with one number.
func scalar(v string) string {
	return `{"status":"success","data":{"resultType":"scalar","result":[1700000000,"` + v + `"]}}`
}

func vector(v string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1700000000,"` + v + `"]}]}}`
}

// half is what the server answers to one half of a pair.
type half struct {
	body   string
	status int
	moved  bool // redirects to another host
}

// Each half of a pair is held to the rules of a single query, and says which half
// it was; only the absence of the numerator means something: 0.
func TestPairedAnswers(t *testing.T) {
	two := `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"1"},"value":[1,"1"]},{"metric":{"a":"2"},"value":[1,"1"]}]}}`
	histogram := `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1700000000,{"count":"3","sum":"6"}]}]}}`
	partial := strings.Replace(vector("5"), `"data"`, `"warnings":["store eu is away"],"data"`, 1)
	partlyNothing := strings.Replace(nothing, `"data"`, `"warnings":["store eu is away"],"data"`, 1)
	good := half{body: vector("50")}
	for _, c := range []struct {
		name                   string
		numerator, denominator half
		config                 map[string]any
		want                   string // a prefix
	}{
		{name: "a rate", numerator: half{body: vector("5")}, denominator: good, want: "0.1"},
		{name: "scalars", numerator: half{body: scalar("5")}, denominator: half{body: scalar("50")}, want: "0.1"},
		{name: "at the minimum", numerator: half{body: vector("5")}, denominator: good, config: map[string]any{"min_denominator": 50}, want: "0.1"},
		{name: "above 1", numerator: half{body: vector("100")}, denominator: good, want: "2"},
		{name: "no errors", numerator: half{body: nothing}, denominator: good, want: "0"},
		{name: "no errors, zero given", numerator: half{body: vector("0")}, denominator: good, want: "0"},

		// Without traffic there is no rate, whatever the numerator says.
		{name: "no traffic at all", numerator: half{body: nothing}, denominator: half{body: nothing}, want: "MISSING denominator: no series"},
		{name: "errors without traffic", numerator: half{body: vector("5")}, denominator: half{body: nothing}, want: "MISSING denominator: no series"},
		{name: "zero traffic", numerator: half{body: nothing}, denominator: half{body: vector("0")}, want: "MISSING denominator is 0: it must be above 0"},
		{name: "zero traffic as or vector(0) has it", numerator: half{body: vector("0")}, denominator: half{body: vector("0")}, want: "MISSING denominator is 0"},
		{name: "less than the minimum", numerator: half{body: nothing}, denominator: half{body: vector("49.9")}, config: map[string]any{"min_denominator": 50}, want: "MISSING denominator is 49.9: it must be above 0 and at least 50"},
		{name: "negative traffic", numerator: half{body: vector("-5")}, denominator: half{body: vector("-50")}, want: "MISSING denominator is -50"},

		{name: "denominator NaN", numerator: good, denominator: half{body: vector("NaN")}, want: "MISSING denominator: nan: the value is NaN"},
		{name: "denominator +Inf", numerator: good, denominator: half{body: vector("+Inf")}, want: "MISSING denominator: nan: the value is +Inf"},
		{name: "denominator -Inf", numerator: good, denominator: half{body: vector("-Inf")}, want: "MISSING denominator: nan: the value is -Inf"},
		{name: "denominator ambiguous", numerator: good, denominator: half{body: two}, want: "MISSING denominator: ambiguous 2"},
		{name: "denominator a histogram", numerator: good, denominator: half{body: histogram}, want: "MISSING denominator: type: the answer is a histogram"},
		{name: "denominator a string", numerator: good, denominator: half{body: strings.Replace(scalar("50"), "scalar", "string", 1)}, want: "MISSING denominator: type"},
		{name: "denominator a matrix", numerator: good, denominator: half{body: strings.Replace(nothing, "vector", "matrix", 1)}, want: "MISSING denominator: type"},
		{name: "denominator partial", numerator: good, denominator: half{body: partial}, want: "MISSING denominator: partial: 1 warnings"},
		{name: "denominator fails", numerator: good, denominator: half{body: vector("50"), status: 500}, want: "MISSING denominator: unreachable: the server answered 500"},
		{name: "denominator elsewhere", numerator: good, denominator: half{moved: true}, want: "MISSING denominator: unreachable: it redirects to another host"},
		{name: "denominator a page", numerator: good, denominator: half{body: "<html>"}, want: "MISSING denominator: bad body"},
		{name: "denominator too long", numerator: good, denominator: half{body: vector("50") + strings.Repeat(" ", 1<<20)}, want: "MISSING denominator: bad body: more than"},

		{name: "numerator NaN", numerator: half{body: vector("NaN")}, denominator: good, want: "MISSING nan: the value is NaN"},
		{name: "numerator +Inf", numerator: half{body: vector("+Inf")}, denominator: good, want: "BREACH +Inf"},
		{name: "numerator -Inf", numerator: half{body: vector("-Inf")}, denominator: good, want: "MISSING nan: the value is -Inf"},
		{name: "numerator ambiguous", numerator: half{body: two}, denominator: good, want: "MISSING numerator: ambiguous 2"},
		{name: "numerator a histogram", numerator: half{body: histogram}, denominator: good, want: "MISSING numerator: type: the answer is a histogram"},
		{name: "numerator a string", numerator: half{body: strings.Replace(scalar("5"), "scalar", "string", 1)}, denominator: good, want: "MISSING numerator: type"},
		{name: "numerator an empty matrix", numerator: half{body: strings.Replace(nothing, "vector", "matrix", 1)}, denominator: good, want: "MISSING numerator: type"},
		{name: "numerator null", numerator: half{body: strings.Replace(nothing, "[]", "null", 1)}, denominator: good, want: "MISSING numerator: bad body"},
		{name: "numerator partial", numerator: half{body: partial}, denominator: good, want: "MISSING numerator: partial: 1 warnings"},
		{name: "numerator absent, but not everybody was asked", numerator: half{body: partlyNothing}, denominator: good, want: "MISSING numerator: partial"},
		{name: "numerator fails", numerator: half{body: nothing, status: 503}, denominator: good, want: "MISSING numerator: unreachable: the server answered 503"},
		{name: "numerator elsewhere", numerator: half{moved: true}, denominator: good, want: "MISSING numerator: unreachable: it redirects to another host"},
		{name: "numerator a page", numerator: half{body: "<html>"}, denominator: good, want: "MISSING numerator: bad body"},
		{name: "numerator too long", numerator: half{body: nothing + strings.Repeat(" ", 1<<20)}, denominator: good, want: "MISSING numerator: bad body: more than"},

		{name: "partial halves are allowed", numerator: half{body: partial}, denominator: half{body: strings.Replace(partial, `"5"`, `"50"`, 1)}, config: map[string]any{"allow_partial": true}, want: "0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				t.Error("another host was asked")
				fmt.Fprint(w, vector("1"))
			}))
			defer other.Close()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h := c.numerator
				switch r.FormValue("query") {
				case "bad":
				case "all":
					h = c.denominator
				default:
					t.Errorf("asked for %s", r.URL)
				}
				if h.moved {
					http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
					return
				}
				if h.status != 0 {
					w.WriteHeader(h.status)
				}
				fmt.Fprint(w, h.body)
			}))
			defer s.Close()
			fields := map[string]any{"numerator": "bad", "denominator": "all"}
			for k, v := range c.config {
				fields[k] = v
			}
			r := ask(t, &donav1.AnalysisQuery{PrometheusUrl: s.URL, Query: "not asked", Config: config(t, fields)})
			got := show(r)
			if got != c.want && !(strings.HasPrefix(c.want, "MISSING") && strings.HasPrefix(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
			if r.HasValue && !(strings.Contains(string(r.Evidence), c.numerator.body) && strings.Contains(string(r.Evidence), c.denominator.body)) {
				t.Errorf("the evidence is not both answers: %q", r.Evidence)
			}
		})
	}
}

// The timeout is that of the pair, not of each half.
func TestPairedTimeout(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("query") == "fast" {
			fmt.Fprint(w, vector("50"))
			return
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	for which, want := range map[[2]string]string{
		{"fast", "slow"}: "MISSING denominator: unreachable: no answer in time",
		{"slow", "fast"}: "MISSING numerator: unreachable: no answer in time",
	} {
		q := &donav1.AnalysisQuery{PrometheusUrl: s.URL, TimeoutMs: 300, Config: config(t, map[string]any{"numerator": which[0], "denominator": which[1]})}
		if got := show(ask(t, q)); got != want {
			t.Errorf("%v: %s, want %s", which, got, want)
		}
	}
}
