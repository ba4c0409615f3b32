package dona_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// httpServer answers with its name, the request's host and its body.
func httpServer(t *testing.T, name string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = fmt.Fprintf(w, "%s %s %s", name, r.Host, body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestTransport(t *testing.T) {
	h := startHost(t)
	h.publish(&donav1.ConfigSnapshot{Service: "checkout", Version: 1,
		Endpoints: []*donav1.Endpoint{
			{Id: "a", Address: closedPort, Variant: "v1", Region: "eu", LbWeight: 100},
			{Id: "b", Address: httpServer(t, "b"), Variant: "v1", Region: "eu", LbWeight: 100},
			{Id: "c", Address: httpServer(t, "c"), Variant: "v2", Region: "us", LbWeight: 100}},
		Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: 0}, {Variant: "v1", Weight: 100}},
		Flags: []*donav1.FlagRule{{Flag: "beta", Service: "checkout",
			Targeting: []*donav1.TargetingRule{{Attribute: "tester", Values: []string{"yes"}, Variant: "v2"}}}},
	})
	c := dial(t, h.address)
	client := &http.Client{Transport: c.Transport(dona.TransportConfig{})}
	t.Cleanup(client.CloseIdleConnections)
	do := func(ctx context.Context, method, url string, body io.Reader) (string, error) {
		req, err := http.NewRequestWithContext(ctx, method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	for range 20 { // half of the picks are refused first
		if got, err := do(t.Context(), "GET", "http://checkout/x", nil); err != nil || got != "b checkout " {
			t.Fatalf("GET: %q, %v", got, err)
		}
		if got, err := do(t.Context(), "POST", "http://checkout/x", strings.NewReader("order")); err != nil || got != "b checkout order" {
			t.Fatalf("POST with a body that can be sent again: %q, %v", got, err)
		}
		tester := dona.NewContext(t.Context(), dona.Request{Attributes: []dona.Attribute{dona.String("tester", "yes")}})
		if got, err := do(tester, "GET", "http://checkout/x", nil); err != nil || got != "c checkout " {
			t.Fatalf("a tester: %q, %v", got, err)
		}
	}
	room := make([]string, 8)
	for range 20 { // what is tried is added to a copy of the caller's list
		ctx := dona.NewContext(t.Context(), dona.Request{Tried: room[:0]})
		if got, err := do(ctx, "GET", "http://checkout/x", nil); err != nil || got != "b checkout " {
			t.Fatalf("GET: %q, %v", got, err)
		}
	}
	if got := strings.Join(room, ""); got != "" {
		t.Errorf("the caller's list was written to: %q", room)
	}
	refused := 0
	for range 20 { // a body that is used up goes to one endpoint only
		if got, err := do(t.Context(), "POST", "http://checkout/x", io.MultiReader(strings.NewReader("order"))); err != nil {
			refused++
		} else if got != "b checkout order" {
			t.Fatalf("POST: %q", got)
		}
	}
	if refused == 0 || refused == 20 {
		t.Errorf("%d of 20 bodies that cannot be sent again were refused: want about half", refused)
	}
	if _, err := do(t.Context(), "GET", "http://checkout/broken", nil); err != nil {
		t.Error(err)
	}
	var denied *dona.DeniedError
	if _, err := do(dona.NewContext(t.Context(), dona.Request{Regions: []string{"mars"}}), "GET", "http://checkout/x", nil); !errors.As(err, &denied) {
		t.Errorf("residency: %v", err)
	}
	for url, text := range map[string]string{"http://checkout:80/": "without a port", "http://Check_Out/": "service"} {
		if _, err := do(t.Context(), "GET", url, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", url, err)
		}
	}
	codes := map[string]uint32{}
	until(t, "all outcomes are reported", func() bool {
		clear(codes)
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, b := range h.batches {
			for _, o := range b.Calls {
				codes[fmt.Sprint(o.EndpointId, " ", o.Success, " ", o.Code)] += max(1, o.Count)
			}
		}
		return codes["b true 200"] == 80-uint32(refused) && codes["c true 200"] == 20 && codes["b false 500"] == 1
	})
	if codes["a false unreachable"] < uint32(refused) {
		t.Errorf("outcomes: %v", codes)
	}
}
