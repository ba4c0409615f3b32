package rest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePool remembers extractions by actor and key, as a pool does.
type fakePool struct {
	mu     sync.Mutex
	err    error // the answer to everything
	wait   bool  // until the request's time is up
	calls  int
	actor  string
	last   *controlplanev1.ExtractRequest
	byKey  map[string]*controlplanev1.ExtractResponse
	bodies map[string]*controlplanev1.ExtractRequest
	owners map[string]string
}

func newPool() *fakePool {
	return &fakePool{byKey: map[string]*controlplanev1.ExtractResponse{}, bodies: map[string]*controlplanev1.ExtractRequest{}, owners: map[string]string{}}
}

func (f *fakePool) Extract(ctx context.Context, actor string, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error) {
	if f.wait {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.actor, f.last = actor, req
	if f.err != nil {
		return nil, f.err
	}
	key := actor + "\x00" + req.IdempotencyKey
	if before, ok := f.byKey[key]; ok {
		if !proto.Equal(f.bodies[key], req) {
			return nil, refusal.New(refusal.AlreadyExists, "the key came with another request")
		}
		again := proto.CloneOf(before)
		again.Replayed = true
		return again, nil
	}
	id := fmt.Sprintf("x-%d", f.calls)
	f.byKey[key] = &controlplanev1.ExtractResponse{ExtractionId: id, Shortfall: 1, Proxies: []*controlplanev1.ExtractedProxy{{
		Proxy:      &controlplanev1.Proxy{ProxyId: "px-1", Host: "h", Port: 80, Protocol: controlplanev1.Proxy_PROTOCOL_HTTP},
		Credential: &controlplanev1.Credential{Username: "u", Password: "p"},
	}}}
	f.bodies[key], f.owners[id] = req, actor
	return f.byKey[key], nil
}

func (f *fakePool) Extraction(_ context.Context, actor, id string) (*controlplanev1.ExtractResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	for _, x := range f.byKey {
		if x.ExtractionId == id && f.owners[id] == actor {
			return x, nil
		}
	}
	return nil, refusal.New(refusal.NotFound, "there is no extraction %s", id)
}

func (f *fakePool) Availability(context.Context) (*controlplanev1.GetAvailabilityResponse, error) {
	return &controlplanev1.GetAvailabilityResponse{Upstreams: []*controlplanev1.UpstreamAvailability{{Upstream: "u", UnownedAvailable: 3}}}, f.err
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func writeTokens(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	fresh := path + ".new"
	if err := os.WriteFile(fresh, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fresh, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		t.Fatal(err)
	}
}

const (
	annToken = "t0ken-of-ann"
	bobToken = "t0ken-of-bob"
)

// service is the handlers on a server.
type service struct {
	*httptest.Server
	pool *fakePool
	log  *bytes.Buffer
}

func serve(t *testing.T, change func(*Options)) *service {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, path, "# callers\n\nann:"+digest(annToken)+"\nbob:"+strings.ToUpper(digest(bobToken))+"\r\n", 0o600)
	tokens, err := OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{pool: newPool(), log: new(bytes.Buffer)}
	o := Options{Pool: s.pool, Tokens: tokens, Logger: hclog.New(&hclog.LoggerOptions{Output: s.log, Level: hclog.Trace})}
	if change != nil {
		change(&o)
	}
	s.Server = httptest.NewServer(New(o))
	t.Cleanup(s.Close)
	return s
}

// reply is an answer whose body was read.
type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// ask sends one request; of each pair of header the second may be empty for none.
func (s *service) ask(t *testing.T, method, path, body string, header ...string) (reply, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Status, resp.Header}, strings.TrimSpace(text.String())
}

const (
	auth     = "Authorization"
	key      = "Idempotency-Key"
	oneProxy = `{"upstream": "u", "count": 1, "min_remaining": "60s", "labels": {"a": "b"}}`
)

func TestExtractions(t *testing.T) {
	s := serve(t, nil)
	first, text := s.ask(t, "POST", "/v1/extractions", oneProxy, auth, "Bearer "+annToken, key, "k 1", "Content-Type", "application/json; charset=utf-8")
	if first.StatusCode != http.StatusCreated || first.Header.Get("Location") != "/v1/extractions/x-1" || first.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the first: %s %v %s", first.Status, first.Header, text)
	}
	var got controlplanev1.ExtractResponse
	if err := protojson.Unmarshal([]byte(text), &got); err != nil || got.ExtractionId != "x-1" || got.Proxies[0].Credential.Password != "p" || !strings.Contains(text, `"proxy_id"`) {
		t.Errorf("the answer is %s: %v", text, err)
	}
	want := &controlplanev1.ExtractRequest{IdempotencyKey: "k 1", Upstream: "u", Count: 1, Labels: map[string]string{"a": "b"}, MinRemaining: s.pool.last.MinRemaining}
	if !proto.Equal(s.pool.last, want) || s.pool.last.MinRemaining.AsDuration() != time.Minute || s.pool.actor != "token:ann" {
		t.Errorf("the pool was asked by %s for %v", s.pool.actor, s.pool.last)
	}
	if again, text := s.ask(t, "POST", "/v1/extractions", oneProxy, auth, "bearer  "+annToken, key, "k 1"); again.StatusCode != http.StatusOK || !strings.Contains(text, `"replayed":true`) && !strings.Contains(text, `"replayed": true`) {
		t.Errorf("again: %s %s", again.Status, text)
	}
	if other, text := s.ask(t, "POST", "/v1/extractions", `{"upstream": "v", "count": 1}`, auth, "Bearer "+annToken, key, "k 1"); other.StatusCode != http.StatusConflict || !strings.Contains(text, "ALREADY_EXISTS") {
		t.Errorf("another body: %s %s", other.Status, text)
	}
	if bob, text := s.ask(t, "POST", "/v1/extractions", oneProxy, auth, "Bearer "+bobToken, key, "k 1"); bob.StatusCode != http.StatusCreated {
		t.Errorf("bob's own key: %s %s", bob.Status, text)
	}
	if read, text := s.ask(t, "GET", "/v1/extractions/x-1", "", auth, "Bearer "+annToken); read.StatusCode != http.StatusOK || !strings.Contains(text, "px-1") {
		t.Errorf("read again: %s %s", read.Status, text)
	}
	if read, text := s.ask(t, "GET", "/v1/extractions/x-1", "", auth, "Bearer "+bobToken); read.StatusCode != http.StatusNotFound || strings.Contains(text, "px-1") {
		t.Errorf("bob reads ann's: %s %s", read.Status, text)
	}
	if read, text := s.ask(t, "GET", "/v1/extractions/%20", "", auth, "Bearer "+annToken); read.StatusCode != http.StatusBadRequest {
		t.Errorf("a bad id: %s %s", read.Status, text)
	}
	if all, text := s.ask(t, "GET", "/v1/availability", "", auth, "Bearer "+annToken); all.StatusCode != http.StatusOK || !strings.Contains(text, `"unowned_available":3`) && !strings.Contains(text, `"unowned_available": 3`) {
		t.Errorf("availability: %s %s", all.Status, text)
	}
}

func TestWhoMayAsk(t *testing.T) {
	s := serve(t, nil)
	for _, path := range []string{"POST /v1/extractions", "GET /v1/extractions/x-1", "GET /v1/availability"} {
		method, path, _ := strings.Cut(path, " ")
		for _, header := range [][]string{
			nil, {auth, ""}, {auth, "Bearer"}, {auth, "Bearer "}, {auth, "Bearer x"}, {auth, annToken}, {auth, "Basic " + annToken},
			{auth, "Bearer " + annToken + "x"}, {auth, "Bearer " + annToken[1:]}, {auth, "Bearer " + digest(annToken)},
			{auth, "Bearer " + annToken, auth, "Bearer " + annToken}, {auth, "Bearer " + strings.Repeat("x", maxTokenBytes+1)},
		} {
			resp, text := s.ask(t, method, path, oneProxy, append(header, key, "k")...)
			if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" || !strings.Contains(text, "UNAUTHENTICATED") || strings.Contains(text, annToken) {
				t.Errorf("%s %v: %s %s", path, header, resp.Status, text)
			}
		}
	}
	if s.pool.calls != 0 {
		t.Errorf("the pool was asked %d times", s.pool.calls)
	}
	certified := serve(t, func(o *Options) {
		o.Tokens = nil
		o.Certificate = func(r *http.Request) (string, bool) { return "spiffe://d/svc/a", r.Header.Get("X-Certified") != "" }
	})
	if resp, text := certified.ask(t, "POST", "/v1/extractions", oneProxy, key, "k", "X-Certified", "1"); resp.StatusCode != http.StatusCreated || certified.pool.actor != "spiffe://d/svc/a" {
		t.Errorf("with a certificate: %s %s by %s", resp.Status, text, certified.pool.actor)
	}
	if resp, _ := certified.ask(t, "POST", "/v1/extractions", oneProxy, key, "k", auth, "Bearer "+annToken); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token where there are none: %s", resp.Status)
	}
}

func TestBadRequests(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("k", maxKey)
	for _, c := range []struct {
		name, body string
		header     []string
		status     int
		says       string
	}{
		{"no key", oneProxy, nil, 400, "stands in 0 headers"},
		{"an empty key", oneProxy, []string{key, ""}, 400, "is empty"},
		{"two keys", oneProxy, []string{key, "a", key, "b"}, 400, "stands in 2 headers"},
		{"a key too long", oneProxy, []string{key, long + "k"}, 400, "1 to 128"},
		{"a key that is not ASCII", oneProxy, []string{key, "clé"}, 400, "ASCII"},
		{"another key inside", `{"idempotency_key": "b", "upstream": "u", "count": 1}`, []string{key, "a"}, 400, "another one"},
		{"no body", "", []string{key, "a"}, 400, "no ExtractRequest"},
		{"no JSON", "count=1", []string{key, "a"}, 400, "no ExtractRequest"},
		{"an array", "[]", []string{key, "a"}, 400, "no ExtractRequest"},
		{"an unknown field", `{"counts": 1}`, []string{key, "a"}, 400, "counts"},
		{"a field twice", `{"count": 1, "count": 2}`, []string{key, "a"}, 400, "count"},
		{"a wrong type", `{"count": "many"}`, []string{key, "a"}, 400, "count"},
		{"a negative number", `{"count": -1}`, []string{key, "a"}, 400, "count"},
		{"an unknown enum", `{"protocol": "PROTOCOL_SMTP"}`, []string{key, "a"}, 400, "protocol"},
		{"more behind", oneProxy + "{}", []string{key, "a"}, 400, "no ExtractRequest"},
		{"not UTF-8", "{\"upstream\": \"\xff\"}", []string{key, "a"}, 400, "no ExtractRequest"},
		{"deep", strings.Repeat(`{"labels":`, 20_000/10) + "1", []string{key, "a"}, 400, "no ExtractRequest"},
		{"a long name", `{"` + strings.Repeat("n", 10_000) + `": 1}`, []string{key, "a"}, 400, "…"},
		{"a form", oneProxy, []string{key, "a", "Content-Type", "application/x-www-form-urlencoded"}, 415, "application/json"},
		{"a bad type", oneProxy, []string{key, "a", "Content-Type", "json;;"}, 415, "application/json"},
		{"too much", `{"upstream": "` + strings.Repeat("u", maxBody) + `"}`, []string{key, "a"}, 413, "65536"},
	} {
		resp, text := s.ask(t, "POST", "/v1/extractions", c.body, append(c.header, auth, "Bearer "+annToken)...)
		if resp.StatusCode != c.status || !strings.Contains(text, c.says) || len(text) > 1<<10 || !json.Valid([]byte(text)) {
			t.Errorf("%s: %s %s", c.name, resp.Status, text)
		}
	}
	if s.pool.calls != 0 {
		t.Errorf("the pool was asked %d times", s.pool.calls)
	}
	if resp, text := s.ask(t, "POST", "/v1/extractions", oneProxy, key, long, auth, "Bearer "+annToken); resp.StatusCode != http.StatusCreated {
		t.Errorf("the longest key: %s %s", resp.Status, text)
	}
	padding := strings.Repeat(" ", maxBody-len(oneProxy))
	if resp, text := s.ask(t, "POST", "/v1/extractions", oneProxy+padding, key, "pad", auth, "Bearer "+annToken); resp.StatusCode != http.StatusCreated {
		t.Errorf("the longest body: %s %s", resp.Status, text)
	}
	for _, path := range []string{"PUT /v1/extractions", "DELETE /v1/extractions/x", "POST /v1/availability"} {
		method, path, _ := strings.Cut(path, " ")
		if resp, _ := s.ask(t, method, path, "", auth, "Bearer "+annToken); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %s", method, path, resp.Status)
		}
	}
}

// TestErrors: each kind of error of the pool has its status, 503 says when to come
// again, and a fault's text goes to the log and not to the caller.
func TestErrors(t *testing.T) {
	s := serve(t, nil)
	secret := errors.New("dial tcp 10.0.0.7:6379: refused")
	for _, c := range []struct {
		err    error
		status int
		code   string
		says   string
	}{
		{refusal.Field("count", "is 0: allowed are 1 to 100"), 400, "INVALID_ARGUMENT", "count is 0"},
		{refusal.New(refusal.Denied, "no"), 403, "PERMISSION_DENIED", "no"},
		{refusal.New(refusal.NotFound, "no upstream"), 404, "NOT_FOUND", "no upstream"},
		{refusal.New(refusal.Precondition, "the upstream is disabled"), 409, "FAILED_PRECONDITION", "disabled"},
		{refusal.New(refusal.AlreadyExists, "another request"), 409, "ALREADY_EXISTS", "another request"},
		{refusal.New(refusal.Aborted, "overtaken"), 409, "ABORTED", "overtaken"},
		{refusal.New(refusal.Exhausted, "no proxy is free"), 503, "RESOURCE_EXHAUSTED", "no proxy is free"},
		{&refusal.Error{Kind: refusal.Unavailable, Text: "not now", Cause: secret}, 503, "UNAVAILABLE", "not now"},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), 503, "DEADLINE_EXCEEDED", "same Idempotency-Key"},
		{fmt.Errorf("%w: %w", store.ErrUnknown, secret), 503, "UNAVAILABLE", "outcome unknown"},
		{fmt.Errorf("%w: %w", store.ErrUnavailable, secret), 503, "UNAVAILABLE", "store"},
		{fmt.Errorf("%w: %w", store.ErrReadOnly, secret), 503, "UNAVAILABLE", "store"},
		{secret, 500, "INTERNAL", "the host failed"},
	} {
		s.pool.err = c.err
		for _, path := range []string{"POST /v1/extractions", "GET /v1/extractions/x", "GET /v1/availability"} {
			method, path, _ := strings.Cut(path, " ")
			s.log.Reset()
			resp, text := s.ask(t, method, path, oneProxy, key, "k", auth, "Bearer "+annToken)
			var body struct {
				Error struct{ Code, Message, Field string }
			}
			if err := json.Unmarshal([]byte(text), &body); err != nil || resp.StatusCode != c.status || body.Error.Code != c.code || !strings.Contains(body.Error.Message, c.says) {
				t.Errorf("%v: %s %s", c.err, resp.Status, text)
			}
			if (resp.Header.Get("Retry-After") == "1") != (c.status == 503) {
				t.Errorf("%v: Retry-After is %q", c.err, resp.Header.Get("Retry-After"))
			}
			if strings.Contains(text, "10.0.0.7") || errors.Is(c.err, secret) && !strings.Contains(s.log.String(), "10.0.0.7") {
				t.Errorf("%v: told %s, logged %s", c.err, text, s.log)
			}
			if strings.Contains(s.log.String(), annToken) {
				t.Errorf("the token is in the log: %s", s.log)
			}
		}
	}
}

func TestSlowPool(t *testing.T) {
	s := serve(t, func(o *Options) { o.Timeout = 20 * time.Millisecond })
	s.pool.wait = true
	if resp, text := s.ask(t, "POST", "/v1/extractions", oneProxy, key, "k", auth, "Bearer "+annToken); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "too long") {
		t.Errorf("%s %s", resp.Status, text)
	}
}

// FuzzExtract: no body makes the handler fail or answer something else than JSON.
func FuzzExtract(f *testing.F) {
	f.Add([]byte(oneProxy))
	f.Add([]byte(`{"count": 1e400, "labels": {"a": null}}`))
	h := New(Options{Pool: newPool(), Certificate: func(*http.Request) (string, bool) { return "a", true }})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/extractions", bytes.NewReader(raw))
		r.Header.Set(key, "k"+digest(string(raw)))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 201 && w.Code != 200 && w.Code != 400 && w.Code != 413 || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q: %d %s", raw, w.Code, w.Body)
		}
	})
}
