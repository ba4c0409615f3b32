package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"

	"github.com/dodona-project/dodona/builtin/analysis/internal/fetch"
	"github.com/dodona-project/dodona/builtin/analysis/webhook"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fetch.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// request asks about step 2 of rollout r1.
func request() *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{
		RolloutId: "r1", Service: "checkout", CanaryVariant: "v2", StableVariant: "v1",
		StepIndex: 2, StepPercent: 25, StepStartedAt: timestamppb.New(time.UnixMilli(1_700_000_000_123)),
		Query:  &donav1.AnalysisQuery{Name: "carts", Query: "abandoned", MaxValue: 0.5},
		Canary: &pluginv1.Window{Requests: 40, Errors: 2, UpperUs: []uint64{1000, 2000}, Counts: []uint64{30, 40}},
		Stable: &pluginv1.Window{Requests: 120, Errors: 1},
	}
}

// says is a good answer with further members.
func says(more string) string { return `{"version":1,"rollout":"r1","step":2` + more + `}` }

// evaluate asks and checks what holds for every answer.
func evaluate(t testing.TB, c webhook.Config, req *pluginv1.EvaluateRequest) *pluginv1.EvaluateReply {
	t.Helper()
	r := webhook.Evaluate(t.Context(), c, req)
	if r.Verdict == donav1.Verdict_VERDICT_UNSPECIFIED && !r.HasValue {
		t.Fatalf("%v: neither verdict nor value", r)
	}
	if r.HasValue && r.Value-r.Value != 0 {
		t.Fatalf("%v: the value is not finite", r)
	}
	if len(r.Detail) > 600 || strings.ContainsAny(r.Detail, "\n\r\x00\x1b") || len(r.Evidence) > 64<<10 {
		t.Fatalf("detail %q, %d bytes of evidence", r.Detail, len(r.Evidence))
	}
	return r
}

// show is an answer as the tables below write it.
func show(r *pluginv1.EvaluateReply) string {
	s := map[donav1.Verdict]string{0: "VALUE", 1: "PASS", 2: "BREACH", 3: "MISSING"}[r.Verdict]
	if r.HasValue {
		s += fmt.Sprintf(" %v", r.Value)
	}
	return strings.TrimSpace(s + " " + r.Detail)
}

// Every form of an answer, good and bad, as it goes over the wire.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		body   string
		status int
		want   string // a prefix when it is MISSING
	}{
		{name: "a value", body: says(`,"value":0.25`), want: "VALUE 0.25"},
		{name: "a value with words", body: says(`,"value":-1e-9,"detail":"carts left behind"`), want: "VALUE -1e-09 carts left behind"},
		{name: "a pass", body: says(`,"verdict":"pass"`), want: "PASS the endpoint says pass"},
		{name: "a pass with value and words", body: says(`,"verdict":"pass","value":3,"detail":"fine"`), want: "PASS 3 fine"},
		{name: "a breach", body: says(`,"verdict":"breach","detail":"carts are lost"`), want: "BREACH carts are lost"},
		{name: "missing", body: says(`,"verdict":"missing"`), want: "MISSING the endpoint says missing"},
		{name: "any order and blanks", body: " {\n\"value\" : 1 , \"step\":2,\"rollout\":\"r1\",\"version\":1}\n", want: "VALUE 1"},

		{name: "another step", body: `{"version":1,"rollout":"r1","step":1,"verdict":"pass"}`, want: `MISSING another step: the answer is for step 1 of rollout "r1", asked was for step 2 of "r1"`},
		{name: "a breach of another step", body: `{"version":1,"rollout":"r1","step":3,"verdict":"breach"}`, want: "MISSING another step"},
		{name: "another rollout", body: `{"version":1,"rollout":"r0","step":2,"verdict":"pass"}`, want: "MISSING another step"},
		{name: "no step", body: `{"version":1,"rollout":"r1","verdict":"pass"}`, want: "MISSING bad body: the key step is not there"},
		{name: "no rollout", body: `{"version":1,"step":2,"verdict":"pass"}`, want: "MISSING bad body: the key rollout is not there"},
		{name: "no version", body: `{"rollout":"r1","step":2,"verdict":"pass"}`, want: "MISSING bad body: the key version is not there"},
		{name: "another version", body: `{"version":2,"rollout":"r1","step":2,"verdict":"pass"}`, want: "MISSING bad body: version is 2: allowed is 1"},
		{name: "neither verdict nor value", body: says(`,"detail":"ok"`), want: "MISSING bad body: neither verdict nor value"},
		{name: "an unknown verdict", body: says(`,"verdict":"PASS"`), want: `MISSING bad body: verdict is "PASS": allowed is pass, breach or missing`},
		{name: "no word for a verdict", body: says(`,"verdict":""`), want: "MISSING bad body: verdict"},
		{name: "a number for a verdict", body: says(`,"verdict":1`), want: "MISSING bad body: verdict is something else"},
		{name: "true for a verdict", body: says(`,"verdict":true`), want: "MISSING bad body: verdict"},
		{name: "null for a verdict", body: says(`,"verdict":null,"value":0`), want: "MISSING bad body: verdict"},
		{name: "null for a value", body: says(`,"value":null`), want: "MISSING bad body: value is something else: allowed is a finite number"},
		{name: "NaN", body: says(`,"value":NaN`), want: "MISSING bad body: value"},
		{name: "Infinity", body: says(`,"value":Infinity`), want: "MISSING bad body: value"},
		{name: "a value in quotes", body: says(`,"value":"0.25"`), want: "MISSING bad body: value"},
		{name: "NaN in quotes", body: says(`,"value":"NaN"`), want: "MISSING bad body: value"},
		{name: "out of range", body: says(`,"value":1e400`), want: "MISSING bad body: value"},
		{name: "out of range beside a breach", body: says(`,"verdict":"breach","value":-1e400`), want: "MISSING bad body: value"},
		{name: "a list", body: says(`,"value":[1]`), want: "MISSING bad body: value"},
		{name: "a step with a fraction", body: `{"version":1,"rollout":"r1","step":2.5,"verdict":"pass"}`, want: "MISSING bad body: step"},
		{name: "a negative step", body: `{"version":1,"rollout":"r1","step":-2,"verdict":"pass"}`, want: "MISSING bad body: step"},
		{name: "an unknown key", body: says(`,"verdict":"pass","partial":true`), want: `MISSING bad body: the key "partial" is not known`},
		{name: "a key in another case", body: says(`,"Verdict":"pass"`), want: `MISSING bad body: the key "Verdict" is not known`},
		{name: "a key twice", body: says(`,"verdict":"breach","verdict":"pass"`), want: `MISSING bad body: the key "verdict" is there twice`},
		{name: "a key twice, escaped", body: says(`,"verdict":"breach","verdi\u0063t":"pass"`), want: `MISSING bad body: the key "verdict" is there twice`},
		{name: "two answers", body: says(`,"verdict":"pass"`) + says(`,"verdict":"pass"`), want: "MISSING bad body: more than one JSON value"},
		{name: "cut off", body: says(`,"verdict":"pass"`)[:30], want: "MISSING bad body"},
		{name: "without its end", body: strings.TrimSuffix(says(`,"verdict":"pass"`), "}"), want: "MISSING bad body"},
		{name: "with more behind", body: says(`,"verdict":"pass"`) + "x", want: "MISSING bad body: more than one"},
		{name: "a list of answers", body: "[" + says(`,"verdict":"pass"`) + "]", want: "MISSING bad body: not a JSON object"},
		{name: "a bare word", body: `"pass"`, want: "MISSING bad body: not a JSON object"},
		{name: "null", body: "null", want: "MISSING bad body: not a JSON object"},
		{name: "empty", body: "", want: "MISSING bad body: not a JSON object"},
		{name: "an empty object", body: "{}", want: "MISSING bad body: the key version is not there"},
		{name: "a page", body: "<html>login</html>", want: "MISSING bad body: not a JSON object"},
		{name: "not UTF-8", body: says(`,"verdict":"pass","detail":"` + "\xff" + `"`), want: "MISSING bad body: not UTF-8"},
		{name: "deeply nested", body: says(`,"value":` + strings.Repeat("[", 20_000)), want: "MISSING bad body: value"},
		{name: "forged lines", body: says(`,"verdict":"breach","detail":"a\nb\u0000c\u001b[31m"`), want: "BREACH a b c [31m"},

		{name: "busy", status: 503, body: says(`,"verdict":"pass"`), want: "MISSING unreachable: the endpoint answered 503"},
		{name: "a good body with a bad status", status: 500, body: says(`,"verdict":"pass"`), want: "MISSING unreachable: the endpoint answered 500"},
		{name: "accepted is no answer", status: 202, body: says(`,"verdict":"pass"`), want: "MISSING unreachable: the endpoint answered 202"},
		{name: "no content", status: 204, want: "MISSING unreachable: the endpoint answered 204"},
		{name: "unauthorised", status: 401, body: says(`,"verdict":"pass"`), want: "MISSING unreachable: the endpoint answered 401"},
		{name: "as long as allowed", body: says(`,"value":1`) + strings.Repeat(" ", 1<<20-len(says(`,"value":1`))), want: "VALUE 1"},
		{name: "a byte too long", body: says(`,"value":1`) + strings.Repeat(" ", 1<<20-len(says(`,"value":1`))+1), want: "MISSING bad body: more than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				fmt.Fprint(w, c.body)
			}))
			defer s.Close()
			r := evaluate(t, webhook.Config{URL: s.URL + "/judge"}, request())
			if got := show(r); got != c.want && !(strings.HasPrefix(c.want, "MISSING") && strings.HasPrefix(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
			if want := c.body[:min(len(c.body), 64<<10)]; string(r.Evidence) != want {
				t.Errorf("the evidence has %d bytes, want the first %d of the answer", len(r.Evidence), len(want))
			}
		})
	}
}

// A long line is cut; what is cut stays text.
func TestLongDetail(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, says(`,"verdict":"breach","detail":"`+strings.Repeat("é", 1000)+`"`))
	}))
	defer s.Close()
	if r := evaluate(t, webhook.Config{URL: s.URL}, request()); !strings.HasSuffix(r.Detail, "é…") {
		t.Errorf("%q", r.Detail)
	}
}

// What an endpoint is told, byte for byte.
func TestRequest(t *testing.T) {
	t.Setenv("WEBHOOK_TOKEN", "Bearer s3cret")
	var got, kind, token string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/judge" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		got, kind, token = string(text), r.Header.Get("Content-Type"), r.Header.Get("Authorization")
		fmt.Fprint(w, says(`,"value":1`))
	}))
	defer s.Close()
	t.Setenv("WEBHOOK_HOSTS", "example.org, "+strings.ToUpper(strings.TrimPrefix(s.URL, "http://")))
	c := webhook.Config{URL: s.URL + "/judge", Headers: map[string]string{"authorization": "WEBHOOK_TOKEN"}}
	if r := evaluate(t, c, request()); r.Value != 1 {
		t.Fatal(r)
	}
	want := `{"version":1,"rollout":"r1","service":"checkout",` +
		`"step":{"index":2,"percent":25,"started":"2023-11-14T22:13:20.123Z"},` +
		`"query":{"name":"carts","query":"abandoned","max_value":0.5},` +
		`"canary":{"variant":"v2","requests":40,"errors":2,"latencies":[{"up_to_us":1000,"count":30},{"up_to_us":2000,"count":40}]},` +
		`"stable":{"variant":"v1","requests":120,"errors":1,"latencies":[]}}`
	if got != want || kind != "application/json" || token != "Bearer s3cret" {
		t.Errorf("sent %s (%s, %s)\nwant %s", got, kind, token, want)
	}
	// The documentation shows the same body.
	page, err := os.ReadFile("../../../docs/plugins/analysis-webhook.md")
	if err != nil {
		t.Fatal(err)
	}
	if flat := strings.Join(strings.Fields(string(page)), ""); !strings.Contains(flat, strings.ReplaceAll(want, " ", "")) {
		t.Error("docs/plugins/analysis-webhook.md does not show this body")
	}
	// Little is known of a rollout that has just begun; it is still JSON.
	if evaluate(t, c, &pluginv1.EvaluateRequest{}); !json.Valid([]byte(got)) || !strings.Contains(got, `"query":{"name":""}`) {
		t.Errorf("an empty request is sent as %s", got)
	}
}

// Redirects stay on the host that was named, and keep the question.
func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("another host was asked")
		fmt.Fprint(w, says(`,"verdict":"pass"`))
	}))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/same":
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		case "/get":
			http.Redirect(w, r, "/moved", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusPermanentRedirect)
		case "/other":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/file":
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusTemporaryRedirect)
		default:
			if text, _ := io.ReadAll(r.Body); r.Method != http.MethodPost || !json.Valid(text) {
				t.Errorf("%s with %q after a redirect", r.Method, text)
			}
			fmt.Fprint(w, says(`,"value":1`))
		}
	}))
	defer s.Close()
	for path, want := range map[string]string{
		"/same":  "VALUE 1",
		"/get":   "MISSING unreachable: it redirects from POST to GET: allowed are 307 and 308",
		"/loop":  "MISSING unreachable: it redirects without end",
		"/other": "MISSING unreachable: it redirects to another host",
		"/file":  "MISSING unreachable: it redirects to another host",
	} {
		if got := show(evaluate(t, webhook.Config{URL: s.URL + path}, request())); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// What was to be private is not carried into the clear.
func TestRedirectFromHTTPS(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("asked in the clear: %s", r.URL)
	}))
	defer s.Close()
	u := s.URL
	for from, refused := range map[string]bool{"https" + strings.TrimPrefix(u, "http"): true, u: false} {
		first, err := http.NewRequest(http.MethodPost, from, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		next, err := http.NewRequest(http.MethodPost, u, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if err := fetch.Follow(next, []*http.Request{first}); (err != nil) != refused {
			t.Errorf("from %s to %s: %v", from, u, err)
		}
	}
}

// An endpoint that never answers, or drips, or closes, is given up in time.
func TestSlowAndBroken(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/drip":
			fmt.Fprint(w, `{"version":1,`)
			w.(http.Flusher).Flush()
		case "/close":
			panic(http.ErrAbortHandler)
		case "/short":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, says(`,"verdict":"pass"`))
			return
		}
		// The body is read, so that the server sees the end of the connection.
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	for path, want := range map[string]string{
		"/hang":  "MISSING unreachable: no answer in time",
		"/drip":  "MISSING bad body: it ended early: no answer in time",
		"/close": "MISSING unreachable: ",
		"/short": "MISSING bad body: it ended early: ",
	} {
		req := request()
		req.Query.TimeoutMs = 300
		if got := show(evaluate(t, webhook.Config{URL: s.URL + path}, req)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := webhook.Evaluate(ctx, webhook.Config{URL: s.URL}, request()); r.Verdict != donav1.Verdict_VERDICT_MISSING {
		t.Errorf("cancelled: %v", r)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	if got := show(evaluate(t, webhook.Config{URL: gone.URL}, request())); !strings.HasPrefix(got, "MISSING unreachable: ") {
		t.Errorf("nobody listens: %s", got)
	}
}

// What a configuration may say, and that no refusal tells a secret.
func TestCheck(t *testing.T) {
	t.Setenv("WEBHOOK_HOSTS", "ok.example:8443,plain.example")
	t.Setenv("WEBHOOK_TOKEN", "hush hush")
	t.Setenv("WEBHOOK_EMPTY", "")
	t.Setenv("WEBHOOK_LINES", "hush\r\nX-Evil: hush")
	t.Setenv("OTHER_TOKEN", "hush")
	const ok = "https://ok.example:8443/x"
	with := func(name, from string) map[string]string { return map[string]string{name: from} }
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprintf("X-%d", i)] = "WEBHOOK_TOKEN"
	}
	for _, c := range []struct {
		url     string
		headers map[string]string
		want    string // "" = accepted
	}{
		{ok, nil, ""},
		{"https://OK.example:8443/", with("Authorization", "WEBHOOK_TOKEN"), ""},
		{"http://plain.example/", nil, ""},
		{"http://plain.example:9999/", nil, ""}, // listed without a port: any
		{"https://ok.example/x", nil, "does not list"},
		{"https://ok.example.evil:8443/x", nil, "does not list"},
		{"https://127.0.0.1/", nil, "does not list"},
		{"", nil, "is not an http:// or https:// URL"},
		{"ftp://ok.example:8443", nil, "is not an http:// or https:// URL"},
		{"http://", nil, "is not an http:// or https:// URL"},
		{"http://:80", nil, "is not an http:// or https:// URL"},
		{"%zz", nil, "is not an http:// or https:// URL"},
		{"https://me:hush@ok.example:8443/x", nil, "user info"},
		{"https://ok.example:8443/x?token=hush", nil, "query"},
		{"https://ok.example:8443/x#hush", nil, "fragment"},
		{ok + strings.Repeat("x", 2048), nil, "at most 2048"},
		{ok, many, "at most 16"},
		{ok, with("Host", "WEBHOOK_TOKEN"), "none that the request itself decides"},
		{ok, with("content-length", "WEBHOOK_TOKEN"), "none that the request itself decides"},
		{ok, with("X Y", "WEBHOOK_TOKEN"), "names are of letters"},
		{ok, with("X\r\nY", "WEBHOOK_TOKEN"), "names are of letters"},
		{ok, with("", "WEBHOOK_TOKEN"), "names are of letters"},
		{ok, with("X-Token", "OTHER_TOKEN"), "only variables WEBHOOK_* are allowed"},
		{ok, with("X-Token", "PATH"), "only variables WEBHOOK_* are allowed"},
		{ok, with("X-Token", "WEBHOOK_HOSTS"), "but not WEBHOOK_HOSTS"},
		{ok, with("X-Token", ""), "only variables WEBHOOK_* are allowed"},
		{ok, with("X-Token", "WEBHOOK_UNSET"), "WEBHOOK_UNSET is not set"},
		{ok, with("X-Token", "WEBHOOK_EMPTY"), "WEBHOOK_EMPTY is not set"},
		{ok, with("X-Token", "WEBHOOK_LINES"), "not printable"},
		{ok, map[string]string{"X-Token": "WEBHOOK_TOKEN", "x-token": "WEBHOOK_TOKEN"}, "twice"},
	} {
		err := webhook.Config{URL: c.url, Headers: c.headers}.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.80q %v: %v, want %q", c.url, slices.Collect(maps.Keys(c.headers)), err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hush") || len(err.Error()) > 400) {
			t.Errorf("the refusal repeats too much: %s", err)
		}
	}

	// Without a list any host may be asked, but nothing of the environment leaves.
	t.Setenv("WEBHOOK_HOSTS", "")
	if err := (webhook.Config{URL: "http://anybody.example"}).Check(); err != nil {
		t.Error(err)
	}
	err := webhook.Config{URL: ok, Headers: with("Authorization", "WEBHOOK_TOKEN")}.Check()
	if err == nil || !strings.Contains(err.Error(), "need WEBHOOK_HOSTS") {
		t.Error(err)
	}
	// What was accepted is looked at again when it is used.
	if got := show(evaluate(t, webhook.Config{URL: ok, Headers: with("Authorization", "WEBHOOK_TOKEN")}, request())); !strings.HasPrefix(got, "MISSING config: ") {
		t.Error(got)
	}
}

// Whatever bytes an endpoint sends, a verdict or value comes only of an object
// that a plain reading of it agrees with.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		says(`,"value":0.25`), says(`,"verdict":"pass","detail":"x"`), says(`,"verdict":"breach","value":-0`), "", "{", "null", "[]",
		says(`,"value":1e999`), says(`,"verdict":"pass","verdict":"missing"`), says(`,"value":{"a":[1]}`), "\xff", says(`,"detail":"\ud800"`),
	} {
		f.Add([]byte(seed))
	}
	var body []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		body = raw
		r := evaluate(t, webhook.Config{URL: s.URL}, request())
		if r.Verdict == donav1.Verdict_VERDICT_MISSING {
			return
		}
		var plain struct {
			Version, Step int
			Rollout       string
			Verdict       string
			Value         *float64
		}
		if err := json.Unmarshal(raw, &plain); err != nil || plain.Version != 1 || plain.Step != 2 || plain.Rollout != "r1" {
			t.Fatalf("%s of %q: %v", show(r), raw, err)
		}
		if plain.Verdict != map[donav1.Verdict]string{1: "pass", 2: "breach"}[r.Verdict] || (plain.Value != nil) != r.HasValue || r.HasValue && *plain.Value != r.Value {
			t.Fatalf("%s of %q", show(r), raw)
		}
	})
}
