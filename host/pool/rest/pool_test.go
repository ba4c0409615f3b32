package rest

import (
	"net/http"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// TestOverAPool: the handlers over a pool as a host has one.
func TestOverAPool(t *testing.T) {
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	p := pool.New(pool.Options{Store: st, Audit: audit.New("example.org"), HostID: "h1"})
	s := serve(t, func(o *Options) { o.Pool = p })
	ask := func(token, k string) (reply, string, *controlplanev1.ExtractResponse) {
		t.Helper()
		r, text := s.ask(t, "POST", "/v1/extractions", `{"upstream": "dc", "count": 2}`, auth, "Bearer "+token, key, k)
		var x controlplanev1.ExtractResponse
		if r.StatusCode < 300 {
			if err := protojson.Unmarshal([]byte(text), &x); err != nil {
				t.Fatal(err)
			}
		}
		return r, text, &x
	}
	if r, text, _ := ask(annToken, "k0"); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "no configuration") {
		t.Errorf("before a configuration: %s %s", r.Status, text)
	}
	if _, err := p.Publish(t.Context(), "ada", &controlplanev1.PublishConfigRequest{Yaml: `
cluster: {id: c1}
upstreams: [{name: dc, protocol: http, source: {type: static, proxies: []}}]`}); err != nil {
		t.Fatal(err)
	}
	if r, text, _ := ask(annToken, "k1"); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || !strings.Contains(text, "RESOURCE_EXHAUSTED") {
		t.Errorf("without proxies: %s %s", r.Status, text)
	}
	if _, err := p.Import(t.Context(), "ada", &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "192.0.2.1:80\n192.0.2.2:80\n192.0.2.3:80"}); err != nil {
		t.Fatal(err)
	}
	all, err := p.ListProxies(t.Context(), &controlplanev1.ListProxiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Update(t.Context(), store.Soft, func(tx store.Tx) error {
		for _, x := range all.Proxies {
			if err := p.Find(tx, x.Proxy.ProxyId, ownership.Finding{State: ownership.Available, AtMs: tx.Now().UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r, text, first := ask(annToken, "k1")
	if r.StatusCode != http.StatusCreated || len(first.Proxies) != 2 || first.Shortfall != 0 || r.Header.Get("Location") != "/v1/extractions/"+first.ExtractionId {
		t.Fatalf("two proxies: %s %s", r.Status, text)
	}
	if r, _, again := ask(annToken, "k1"); r.StatusCode != http.StatusOK || !again.Replayed || again.ExtractionId != first.ExtractionId {
		t.Errorf("the same key: %s %v", r.Status, again)
	}
	if r, text := s.ask(t, "POST", "/v1/extractions", `{"upstream": "dc", "count": 1}`, auth, "Bearer "+annToken, key, "k1"); r.StatusCode != http.StatusConflict {
		t.Errorf("the same key for something else: %s %s", r.Status, text)
	}
	if r, text := s.ask(t, "POST", "/v1/extractions", `{"upstream": "dc", "count": 101}`, auth, "Bearer "+annToken, key, "k9"); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"field":"count"`) {
		t.Errorf("too many: %s %s", r.Status, text)
	}
	if r, _, rest := ask(bobToken, "k1"); r.StatusCode != http.StatusCreated || len(rest.Proxies) != 1 || rest.Shortfall != 1 {
		t.Errorf("bob's of the same key: %s %v", r.Status, rest)
	}
	if r, _ := s.ask(t, "GET", "/v1/extractions/"+first.ExtractionId, "", auth, "Bearer "+annToken); r.StatusCode != http.StatusOK {
		t.Errorf("read again: %s", r.Status)
	}
	if r, text := s.ask(t, "GET", "/v1/extractions/"+first.ExtractionId, "", auth, "Bearer "+bobToken); r.StatusCode != http.StatusNotFound || strings.Contains(text, "192.0.2") {
		t.Errorf("bob reads ann's: %s %s", r.Status, text)
	}
	if r, text := s.ask(t, "GET", "/v1/availability", "", auth, "Bearer "+bobToken); r.StatusCode != http.StatusOK || !strings.Contains(text, `"EXTRACTED"`) {
		t.Errorf("availability: %s %s", r.Status, text)
	}
}
