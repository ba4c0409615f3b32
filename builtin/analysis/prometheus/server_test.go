package prometheus_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/builtin/analysis/prometheus"
)

// ask evaluates one query and checks what holds for every answer.
func ask(t *testing.T, q *donav1.AnalysisQuery) *pluginv1.EvaluateReply {
	t.Helper()
	r, err := prometheus.Evaluate(t.Context(), &pluginv1.EvaluateRequest{Query: q})
	if err != nil {
		t.Fatalf("Evaluate: %v: a failure to measure is an answer", err)
	}
	if r.Verdict == donav1.Verdict_VERDICT_PASS {
		t.Fatalf("%v: this provider never says PASS by itself", r)
	}
	if r.Verdict == donav1.Verdict_VERDICT_UNSPECIFIED && !r.HasValue {
		t.Fatalf("%v: neither verdict nor value", r)
	}
	if len(r.Detail) > 600 || strings.ContainsAny(r.Detail, "\n\r\x00") {
		t.Fatalf("detail %q is not one short line", r.Detail)
	}
	if len(r.Evidence) > 64<<10 {
		t.Fatalf("%d bytes of evidence", len(r.Evidence))
	}
	return r
}

// show is an answer as the tables below write it: a value, BREACH with a value,
// or the reason of a MISSING.
func show(r *pluginv1.EvaluateReply) string {
	switch r.Verdict {
	case donav1.Verdict_VERDICT_UNSPECIFIED:
		return fmt.Sprint(r.Value)
	case donav1.Verdict_VERDICT_BREACH:
		return fmt.Sprintf("BREACH %v", r.Value)
	}
	return "MISSING " + r.Detail
}

func config(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startPrometheus runs the real server, scraping an exporter of ours, and
// returns its URL once the first scrape can be asked for.
func startPrometheus(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("this test asks a real server: install the package prometheus, so that the program is in PATH: %v", err)
	}
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "requests_total{code=\"200\"} 90\nrequests_total{code=\"500\"} 10\nlatency_seconds 0.25\nidle_total 0\n")
	}))
	t.Cleanup(exporter.Close)

	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
global: {scrape_interval: 200ms, scrape_timeout: 200ms}
scrape_configs:
  - job_name: test
    static_configs: [{targets: [%q]}]
`, exporter.Listener.Addr().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	start := func() (base string, ended chan struct{}) {
		address := freeAddress(t)
		cmd := exec.Command(binary, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
			"--web.listen-address="+address, "--log.level=warn")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatalf("start %s: %v", binary, err)
		}
		ended = make(chan struct{})
		go func() { defer close(ended); cmd.Wait() }()
		t.Cleanup(func() {
			cmd.Process.Kill()
			<-ended
		})
		return "http://" + address, ended
	}

	base, ended := start()
	deadline := time.After(60 * time.Second)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		r := ask(t, &donav1.AnalysisQuery{PrometheusUrl: base, Query: "latency_seconds"})
		if r.HasValue {
			return base
		}
		select {
		case <-again.C:
		case <-ended: // between finding a free port and taking it somebody else may
			base, ended = start()
		case <-deadline:
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("%s did not scrape within 60 s: %s\n%s", binary, r.Detail, said)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A real server answers each form of query; its clock and its words are not
// ours.
func TestRealServer(t *testing.T) {
	base := startPrometheus(t)
	ratio := func(numerator, denominator string, least float64) map[string]any {
		return map[string]any{"numerator": numerator, "denominator": denominator, "min_denominator": least}
	}
	for _, c := range []struct {
		query  string
		config map[string]any
		want   string // a prefix for MISSING
	}{
		{query: "scalar(latency_seconds)", want: "0.25"},
		{query: "latency_seconds", want: "0.25"},
		{query: `sum(requests_total{code="500"}) / sum(requests_total)`, want: "0.1"},
		{query: "vector(1)/0", want: "BREACH +Inf"},
		{query: "scalar(vector(1)/0)", want: "BREACH +Inf"},
		{query: "vector(-1)/0", want: "MISSING nan: the value is -Inf"},
		{query: "vector(0)/0", want: "MISSING nan: the value is NaN"},
		{query: "scalar(no_such_series)", want: "MISSING nan: the value is NaN"},
		{query: "no_such_series", want: "MISSING no series"},
		{query: "requests_total", want: "MISSING ambiguous 2"},
		{query: `"text"`, want: "MISSING type: the answer is a string"},
		{query: "latency_seconds[1m]", want: "MISSING type: the answer is a matrix"},
		{query: "latency_seconds{", want: "MISSING unreachable: the server answered 400: bad_data"},

		// The paired form: no error series is a rate of 0, no traffic is nothing.
		{config: ratio(`sum(requests_total{code="500"})`, "sum(requests_total)", 50), want: "0.1"},
		{config: ratio(`sum(requests_total{code="503"})`, "sum(requests_total)", 50), want: "0"},
		{config: ratio(`sum(requests_total{code="500"})`, "sum(requests_total)", 101), want: "MISSING denominator is 100: it must be above 0 and at least 101"},
		{config: ratio(`sum(requests_total{code="500"})`, "idle_total", 0), want: "MISSING denominator is 0"},
		{config: ratio(`sum(requests_total{code="500"})`, "no_such_series", 0), want: "MISSING denominator: no series"},
		{config: ratio("requests_total", "sum(requests_total)", 0), want: "MISSING numerator: ambiguous 2"},
		{config: ratio("vector(0)/0", "sum(requests_total)", 0), want: "MISSING nan"},
		{config: ratio("latency_seconds{", "sum(requests_total)", 0), want: "MISSING numerator: unreachable"},
	} {
		q := &donav1.AnalysisQuery{PrometheusUrl: base, Query: c.query}
		if c.config != nil {
			q.Config = config(t, c.config)
		}
		r := ask(t, q)
		got := show(r)
		if got != c.want && !(strings.HasPrefix(c.want, "MISSING") && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s %v: %s, want %s", c.query, c.config, got, c.want)
		}
		if !strings.Contains(string(r.Evidence), `"status"`) {
			t.Errorf("%s %v: the evidence is not the raw answer: %q", c.query, c.config, r.Evidence)
		}
	}
}

// A server that is gone is a reason, not an error.
func TestUnreachable(t *testing.T) {
	for _, base := range []string{"http://" + freeAddress(t), "ftp://127.0.0.1", "http://", "%zz", ""} {
		if got := show(ask(t, &donav1.AnalysisQuery{PrometheusUrl: base, Query: "up"})); !strings.HasPrefix(got, "MISSING unreachable: ") {
			t.Errorf("%q: %s", base, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := prometheus.Evaluate(ctx, &pluginv1.EvaluateRequest{Query: &donav1.AnalysisQuery{PrometheusUrl: "http://127.0.0.1:1", Query: "up"}})
	if err != nil || r.Verdict != donav1.Verdict_VERDICT_MISSING {
		t.Errorf("cancelled: %v, %v", r, err)
	}
}
