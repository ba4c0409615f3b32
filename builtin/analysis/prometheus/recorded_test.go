package prometheus_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"

	"github.com/dodona-project/dodona/builtin/analysis/prometheus"
)

const (
	one     = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1700000000.123,"0.25"]}]}}`
	warned  = `{"status":"success","warnings":["store eu is away"],"data":{"resultType":"scalar","result":[1700000000,"0.25"]}}`
	nothing = `{"status":"success","data":{"resultType":"vector","result":[]}}`
)

// What a healthy server cannot be made to say, said as it goes over the wire.
func TestRecordedAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		body    string
		status  int
		partial bool
		want    string // a prefix
	}{
		{name: "one series", body: one, want: "0.25"},
		{name: "infos are no warnings", body: strings.Replace(one, `"data"`, `"infos":["metric might not be a counter"],"data"`, 1), want: "0.25"},
		{name: "warnings", body: warned, want: "MISSING partial: 1 warnings, the first: store eu is away"},
		{name: "warnings allowed", body: warned, partial: true, want: "0.25"},
		{name: "warnings beside a breach", body: strings.Replace(warned, "0.25", "+Inf", 1), want: "MISSING partial"},
		{name: "histogram", body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1700000000,{"count":"3","sum":"6"}]}]}}`, want: "MISSING type: the answer is a histogram"},
		{name: "unheard of type", body: `{"status":"success","data":{"resultType":"streams","result":[]}}`, want: "MISSING type"},
		{name: "no series", body: nothing, want: "MISSING no series"},
		{name: "null for a vector", body: `{"status":"success","data":{"resultType":"vector","result":null}}`, want: "MISSING bad body"},
		{name: "no result", body: `{"status":"success","data":{"resultType":"vector"}}`, want: "MISSING bad body"},
		{name: "no data", body: `{"status":"success"}`, want: "MISSING type"},
		{name: "null for a scalar", body: `{"status":"success","data":{"resultType":"scalar","result":null}}`, want: "MISSING bad body"},
		{name: "a series without value", body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}`, want: "MISSING bad body"},
		{name: "a bare number", body: `{"status":"success","data":{"resultType":"scalar","result":[1700000000,0.25]}}`, want: "MISSING bad body"},
		{name: "a number in words", body: `{"status":"success","data":{"resultType":"scalar","result":[1700000000,"few"]}}`, want: "MISSING bad body"},
		{name: "a pair of three", body: `{"status":"success","data":{"resultType":"scalar","result":[1,"2","3"]}}`, want: "MISSING bad body"},
		{name: "error with status 200", body: `{"status":"error","errorType":"timeout","error":"query timed out"}`, want: "MISSING bad body: the server says timeout: query timed out"},
		{name: "no status", body: `{"data":{"resultType":"scalar","result":[1700000000,"0"]}}`, want: "MISSING bad body: status"},
		{name: "busy", status: 503, body: `{"status":"error","errorType":"unavailable","error":"starting"}`, want: "MISSING unreachable: the server answered 503: unavailable: starting"},
		{name: "a good body with a bad status", status: 500, body: one, want: "MISSING unreachable: the server answered 500"},
		{name: "accepted is no answer", status: 202, body: one, want: "MISSING unreachable: the server answered 202"},
		{name: "a page", body: "<html>login</html>", want: "MISSING bad body: not the JSON"},
		{name: "empty", body: "", want: "MISSING bad body: not the JSON"},
		{name: "two answers", body: one + one, want: "MISSING bad body: more than one JSON value"},
		{name: "cut off", body: one[:40], want: "MISSING bad body"},
		{name: "forged lines", body: `{"status":"error","errorType":"a\nb","error":"c\u0000d\u001b[31m"}`, want: "MISSING bad body: the server says a b: c d"},
		{name: "out of range is no +Inf", body: strings.Replace(one, "0.25", "1e400", 1), want: "MISSING bad body"},
		{name: "Inf by another name", body: strings.Replace(one, "0.25", "infinity", 1), want: "MISSING bad body"},
		{name: "hex", body: strings.Replace(one, "0.25", "0x1p-2", 1), want: "MISSING bad body"},
		{name: "another case", body: strings.Replace(one, "status", "STATUS", 1), want: "MISSING bad body: the key"},
		{name: "a key twice", body: strings.Replace(one, `"status"`, `"status":"error","status"`, 1), want: "MISSING bad body: the key"},
		{name: "labels are free", body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"Status":"a","status":"b","VALUE":"c"},"value":[1700000000,"0.25"]}]}}`, want: "0.25"},
		{name: "error and not which", body: `{"status":"error"}`, want: "MISSING bad body: the server says error and not which"},
		{name: "as long as allowed", body: one + strings.Repeat(" ", 1<<20-len(one)), want: "0.25"},
		{name: "a byte too long", body: one + strings.Repeat(" ", 1<<20-len(one)+1), want: "MISSING bad body: more than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/prefix/api/v1/query" || r.FormValue("query") != "up > 0" || r.URL.Query().Has("time") {
					t.Errorf("asked for %s", r.URL)
				}
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				fmt.Fprint(w, c.body)
			}))
			defer s.Close()
			q := &donav1.AnalysisQuery{PrometheusUrl: s.URL + "/prefix/", Query: "up > 0"}
			if c.partial {
				q.Config = config(t, map[string]any{"allow_partial": true})
			}
			r := ask(t, q)
			if got := show(r); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
			if want := c.body[:min(len(c.body), 64<<10)]; string(r.Evidence) != want {
				t.Errorf("the evidence has %d bytes, want the first %d of the answer", len(r.Evidence), len(want))
			}
		})
	}
}

// Redirects stay on the host that was named.
func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("another host was asked")
		fmt.Fprint(w, one)
	}))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/same"):
			http.Redirect(w, r, "/moved/api/v1/query?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		case strings.HasPrefix(r.URL.Path, "/loop"):
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/other"):
			http.Redirect(w, r, other.URL, http.StatusFound)
		default:
			fmt.Fprint(w, one)
		}
	}))
	defer s.Close()
	for path, want := range map[string]string{
		"/same":  "0.25",
		"/loop":  "MISSING unreachable: it redirects without end",
		"/other": "MISSING unreachable: it redirects to another host",
	} {
		if got := show(ask(t, &donav1.AnalysisQuery{PrometheusUrl: s.URL + path, Query: "up"})); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// A server that never answers, or drips, is given up at the query's timeout.
func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/drip") {
			fmt.Fprint(w, `{"status":`)
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	for path, want := range map[string]string{
		"/hang": "MISSING unreachable: no answer in time",
		"/drip": "MISSING bad body: it ended early: no answer in time",
	} {
		if got := show(ask(t, &donav1.AnalysisQuery{PrometheusUrl: s.URL + path, Query: "up", TimeoutMs: 50})); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, fields := range []map[string]any{
		{"allow_partail": true}, {"allow_partial": "yes"}, {"numerator": "a"}, {"denominator": "b"},
		{"numerator": "a", "denominator": "b", "min_denominator": -1.0}, {"min_denominator": 5.0}, {"numerator": "", "denominator": "b"},
	} {
		r := ask(t, &donav1.AnalysisQuery{PrometheusUrl: "http://127.0.0.1:1", Query: "up", Config: config(t, fields)})
		if got := show(r); !strings.HasPrefix(got, "MISSING config: ") {
			t.Errorf("%v: %s", fields, got)
		}
	}
}

// Whatever bytes a server sends, the answer is one of the forms above.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{one, warned, nothing, "", "{", "null", `{"status":"success","data":{"resultType":"scalar","result":[1,"-0"]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
		defer s.Close()
		r, err := prometheus.Evaluate(t.Context(), &pluginv1.EvaluateRequest{Query: &donav1.AnalysisQuery{PrometheusUrl: s.URL, Query: "up"}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict == donav1.Verdict_VERDICT_PASS || r.Verdict == donav1.Verdict_VERDICT_UNSPECIFIED && (!r.HasValue || r.Value-r.Value != 0) {
			t.Fatalf("%v", r)
		}
	})
}
