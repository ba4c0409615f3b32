package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestDo: what a server answers is read whole or refused with its reason, whatever it
// answers, and the address that was asked is in no error.
func TestDo(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	defer elsewhere.Close()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/whole":
			_, _ = w.Write(bytes.Repeat([]byte("x"), MaxBody))
		case "/larger":
			_, _ = w.Write(bytes.Repeat([]byte("x"), MaxBody+1))
		case "/bomb": // small on the wire
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 8*MaxBody))
			_ = z.Close()
		case "/short":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
		case "/refuses":
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("why"))
		case "/silent":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "/here":
			http.Redirect(w, r, "/refuses", http.StatusFound)
		case "/circle":
			http.Redirect(w, r, "/circle", http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/other-method":
			http.Redirect(w, r, "/whole", http.StatusSeeOther)
		}
	}))
	defer server.Close()
	defer close(release)
	defer CloseIdleConnections()
	for _, tc := range []struct {
		method, path string
		status, size int
		says         string
	}{
		{"GET", "/whole", 200, MaxBody, ""},
		{"GET", "/larger", 200, MaxBody + 1, "bad body: more than 1048576 bytes"},
		{"GET", "/bomb", 200, MaxBody + 1, "bad body: more than 1048576 bytes"},
		{"GET", "/short", 200, 4, "bad body: it ended early: unexpected EOF"},
		{"GET", "/refuses", 418, 3, ""},
		{"GET", "/silent", 0, 0, "unreachable: no answer in time"},
		{"GET", "/here", 418, 3, ""},
		{"GET", "/circle", 0, 0, "unreachable: it redirects without end"},
		{"GET", "/elsewhere", 0, 0, "unreachable: it redirects to another host"},
		{"POST", "/other-method", 0, 0, "unreachable: it redirects from POST to GET: allowed are 307 and 308"},
	} {
		limit := time.Minute
		if tc.path == "/silent" {
			limit = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		req, err := http.NewRequestWithContext(ctx, tc.method, server.URL+tc.path+"?token=secret", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, status, err := Do(req)
		cancel()
		said := ""
		if err != nil {
			said = err.Error()
		}
		if status != tc.status || len(body) != tc.size || said != tc.says {
			t.Errorf("%s: %d, %d bytes, %q; want %d, %d, %q", tc.path, status, len(body), said, tc.status, tc.size, tc.says)
		}
	}
}

func TestFollowKeepsTheChannel(t *testing.T) {
	request := func(url string) *http.Request { return httptest.NewRequest(http.MethodGet, url, nil) }
	if err := Follow(request("http://a.example/"), []*http.Request{request("https://a.example/")}); err == nil {
		t.Error("it goes on in the clear")
	}
	if err := Follow(request("https://A.example/x"), []*http.Request{request("http://a.example/")}); err != nil {
		t.Errorf("to https on the same host: %v", err)
	}
}

// TestForPeople: what a server wrote is bounded, and a line of text stays one.
func TestForPeople(t *testing.T) {
	if got := Line("a\x1b[31m\nb\xff" + strings.Repeat("é", 1000)); len(got) > maxLine || strings.ContainsAny(got, "\x1b\n") || !utf8.ValidString(got) {
		t.Errorf("a line of %d bytes: %q", len(got), got)
	}
	if got := Evidence(make([]byte, MaxBody)); len(got) != maxEvidence {
		t.Errorf("evidence of %d bytes", len(got))
	}
	if got := Evidence([]byte("short")); string(got) != "short" {
		t.Errorf("evidence is %q", got)
	}
}
