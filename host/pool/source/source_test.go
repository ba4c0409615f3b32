package source

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/proxylist"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const planted = "pl4nted-s3cret"

// newReader is a reader as the keeper makes it.
func newReader(s poolconfig.Source, dir string) *reader {
	if s.Format == "" {
		s.Format = poolconfig.Lines
	}
	return &reader{source: s, dir: dir, client: NewClient(), list: proxylist.Options{
		Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Inline: s.Type != poolconfig.Static,
	}}
}

// names are the entries of a list, in short.
func names(l *List) string {
	if l == nil {
		return "no list"
	}
	var all []string
	for _, e := range l.Entries {
		name := e.String()
		if !e.Credential.IsZero() {
			name += "+" + e.Credential.Username()
		}
		all = append(all, name)
	}
	for _, r := range l.Rejected {
		all = append(all, fmt.Sprintf("-%d", r.Line))
	}
	return strings.Join(all, " ")
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("lines", "# x\r\nh:1\nbad\nu:"+planted+"@h:2\n127.0.0.1:3\n")
	write("json", "\ufeff[\"h:1\", \"h:2:u:p\", \"bad\"]\n")
	write("object", `{"h:1": 1}`)
	write("null", `null`)
	write("numbers", `[1]`)
	write("empty", "")
	write("bad", planted+"\n"+planted+":"+planted)
	write("huge", strings.Repeat("#", MaxBytes+1))
	write("full", "h:1\n"+strings.Repeat("#", MaxBytes-4))
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path   string
		format poolconfig.Format
		want   string // or, after !, what the error says
	}{
		{"lines", poolconfig.Lines, "http://h:1 http://h:2+u -3 -5"},
		{"json", poolconfig.JSON, "http://h:1 http://h:2+u -3"},
		{"full", poolconfig.Lines, "http://h:1"},
		{"object", poolconfig.JSON, "!no JSON array of strings"},
		{"null", poolconfig.JSON, "!no JSON array of strings"},
		{"numbers", poolconfig.JSON, "!no JSON array of strings"},
		{"lines", poolconfig.JSON, "!no JSON array of strings"},
		{"empty", poolconfig.Lines, "!has no proxy"},
		{"bad", poolconfig.Lines, "!line 1: has no port"},
		{"huge", poolconfig.Lines, "!more than 16777216 bytes"},
		{"none", poolconfig.Lines, "!no such file"},
		{"out", poolconfig.Lines, "!escapes"},
		{".", poolconfig.Lines, "!not a regular file"},
	} {
		list, err := newReader(poolconfig.Source{Type: poolconfig.File, Path: c.path, Format: c.format}, dir).read(t.Context(), time.Now())
		says, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), planted)):
			t.Errorf("%s as %s: %v; want an error with %q", c.path, c.format, err, says)
		case !fails && (err != nil || names(list) != c.want):
			t.Errorf("%s as %s: %s, %v; want %s", c.path, c.format, names(list), err, c.want)
		}
	}
	if _, err := newReader(poolconfig.Source{Type: poolconfig.File, Path: "lines"}, "").read(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "pool.lists_dir") {
		t.Errorf("without a directory: %v", err)
	}
}

func TestManyRejected(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "l"), []byte("h:1\n"+strings.Repeat("bad\n", MaxRejected+5)), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := newReader(poolconfig.Source{Type: poolconfig.File, Path: "l"}, dir).read(t.Context(), time.Now())
	if err != nil || len(list.Rejected) != MaxRejected || list.Dropped != 5 || len(list.Entries) != 1 {
		t.Errorf("%d rejected, %d dropped, %v", len(list.Rejected), list.Dropped, err)
	}
}

// server answers as the path says.
func server(t *testing.T) *httptest.Server {
	t.Helper()
	var s, other *httptest.Server
	other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("other:1\n")) }))
	t.Cleanup(other.Close)
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/list":
			_, _ = w.Write([]byte("h:1\nu:p@h:2\n"))
		case "/etag":
			w.Header().Set("ETag", `"one"`)
			if r.Header.Get("If-None-Match") == `"one"` {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = w.Write([]byte("h:1\nbad\n"))
		case "/304":
			w.WriteHeader(http.StatusNotModified)
		case "/500":
			http.Error(w, planted, http.StatusInternalServerError)
		case "/huge":
			for range MaxBytes/1024 + 1 {
				if _, err := w.Write([]byte(strings.Repeat("#", 1023) + "\n")); err != nil {
					return
				}
			}
		case "/short":
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("h:1\n"))
		case "/silent":
			<-r.Context().Done()
		case "/drip":
			for range 1000 {
				_, _ = w.Write([]byte("h"))
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/moved":
			http.Redirect(w, r, "/list", http.StatusFound)
		case "/away":
			http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestHTTP(t *testing.T) {
	s := server(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct{ url, want string }{
		{s.URL + "/list?token=" + planted, "http://h:1 http://h:2+u"},
		{s.URL + "/moved?token=" + planted, "http://h:1 http://h:2+u"},
		{s.URL + "/500?token=" + planted, "!answers with status 500"},
		{s.URL + "/304?token=" + planted, "!answers with status 304"},
		{s.URL + "/huge?token=" + planted, "!more than 16777216 bytes"},
		{s.URL + "/short?token=" + planted, "!ends its answer early"},
		{s.URL + "/loop?token=" + planted, "!redirects more than 3 times"},
		{s.URL + "/away?token=" + planted, "!redirects to another host"},
		{s.URL + "/metadata?token=" + planted, "!redirects to another host"},
		{s.URL + "/empty?token=" + planted, "!has no proxy"},
		{gone.URL + "/?token=" + planted, "!cannot be asked: dial tcp"},
		{"http://169.254.169.254/" + planted, "!metadata address"},
		{"http://[fe80::1]/" + planted, "!link-local address"},
	} {
		r := newReader(poolconfig.Source{Type: poolconfig.HTTP, URL: c.url}, "")
		list, err := r.read(t.Context(), time.Now())
		r.client.CloseIdleConnections()
		says, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), planted)):
			t.Errorf("%s: %s, %v; want an error with %q", c.url, names(list), err, says)
		case !fails && (err != nil || names(list) != c.want):
			t.Errorf("%s: %s, %v; want %s", c.url, names(list), err, c.want)
		}
	}
}

// TestSilentServers: a server that says nothing, or next to nothing, costs its time
// and no more.
func TestSilentServers(t *testing.T) {
	s := server(t)
	for _, path := range []string{"/silent", "/drip"} {
		r := newReader(poolconfig.Source{Type: poolconfig.HTTP, URL: s.URL + path + "?token=" + planted}, "")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := r.read(ctx, time.Now())
		cancel()
		r.client.CloseIdleConnections()
		if err == nil || strings.Contains(err.Error(), planted) || !strings.Contains(err.Error(), "deadline") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNotModified(t *testing.T) {
	s := server(t)
	r := newReader(poolconfig.Source{Type: poolconfig.HTTP, URL: s.URL + "/etag"}, "")
	defer r.client.CloseIdleConnections()
	first, err := r.read(t.Context(), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.read(t.Context(), time.Unix(2, 0))
	if err != nil || names(second) != names(first) || !second.Read.Equal(time.Unix(2, 0)) || !first.Read.Equal(time.Unix(1, 0)) {
		t.Errorf("%s at %s, %v", names(second), second.Read, err)
	}
	if names(first) != "http://h:1 -2" {
		t.Errorf("the list is %s", names(first))
	}
}

// TestLastGoodListStays: with reads on the clock, a source that fails keeps its
// list and says so, once it works again it says that, and times are right.
func TestLastGoodListStays(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "list")); err != nil {
			t.Fatal(err)
		}
	}
	write("h:1\n")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string
		note := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, text)
		}
		heard := func() string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			text := strings.Join(said, "; ")
			said = nil
			return text
		}
		begin := time.Now()
		k := NewKeeper(Options{
			Dir: dir,
			Report: func(s Status) {
				note(fmt.Sprintf("problem %q", s.Problem))
			},
			Changed: func(u string, l *List) { note(u + ": " + names(l)) },
		})
		c := &poolconfig.Config{Upstreams: []poolconfig.Upstream{{
			Name: "u", Enabled: true, Protocol: controlplanev1.Proxy_PROTOCOL_HTTP,
			Source: poolconfig.Source{Type: poolconfig.File, Path: "list", Format: poolconfig.Lines, Interval: 100 * time.Second},
		}}}
		k.Keep(c)
		if k.List("u") != nil {
			t.Error("there is a list before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.Run(ctx) }()
		want := func(when, text string) {
			t.Helper()
			if got := heard(); got != text {
				t.Errorf("%s: %s\nwant %s", when, got, text)
			}
		}
		want("at the start", "u: http://h:1")
		time.Sleep(94 * time.Second)
		want("before the interval", "")
		write("h:1\nh:2\n")
		time.Sleep(12 * time.Second)
		want("after the interval", "u: http://h:1 http://h:2")
		write("\n# nothing\n")
		time.Sleep(106 * time.Second)
		if got := heard(); !strings.Contains(got, "has no proxy") || strings.Contains(got, "u:") {
			t.Errorf("an empty list: %s", got)
		}
		if err := os.Remove(filepath.Join(dir, "list")); err != nil {
			t.Fatal(err)
		}
		k.Refresh("u")
		k.Refresh("no such")
		if got := heard(); !strings.Contains(got, "no such file") {
			t.Errorf("no list: %s", got)
		}
		if names(k.List("u")) != "http://h:1 http://h:2" {
			t.Errorf("the last good list is %s", names(k.List("u")))
		}
		s := k.Statuses()
		if len(s) != 1 || s[0].Entries != 2 || !strings.Contains(s[0].Problem, "no such file") || s[0].Since.Sub(begin) < 190*time.Second || s[0].Read.Sub(begin) > 106*time.Second {
			t.Errorf("the status is %+v", s)
		}
		write("h:3\nbad\n")
		k.Refresh("u")
		want("once it works again", `problem ""; u: http://h:3 -2`)
		if s := k.Statuses(); s[0].Problem != "" || s[0].Entries != 1 || s[0].Rejected != 1 {
			t.Errorf("the status is %+v", s)
		}

		next := c.Clone()
		next.Upstreams[0].CapacityPerProxy = 7
		k.Keep(next)
		want("another capacity", "")
		next = c.Clone()
		next.Upstreams[0].AllowAddresses = []target.Class{target.Loopback}
		next.Upstreams = append(next.Upstreams, poolconfig.Upstream{Name: "s", Enabled: true, Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5,
			Source: poolconfig.Source{Type: poolconfig.Static, Proxies: []string{"h:9"}}})
		write("127.0.0.1:3\n")
		k.Keep(next)
		if k.List("u") == nil {
			t.Error("the list is gone before the changed source was read")
		}
		if got := heard(); got != "u: http://127.0.0.1:3; s: socks5://h:9" && got != "s: socks5://h:9; u: http://127.0.0.1:3" {
			t.Errorf("other addresses allowed, and another upstream: %s", got)
		}
		time.Sleep(24 * time.Hour)
		if got := heard(); strings.Contains(got, "s:") {
			t.Errorf("a list in the configuration was read again: %s", got)
		}
		next = next.Clone()
		next.Upstreams[0].Enabled = false
		k.Keep(next)
		time.Sleep(time.Hour)
		want("disabled", "")
		if k.List("u") != nil || k.List("s") == nil || len(k.Statuses()) != 1 {
			t.Errorf("disabled: %s, %s", names(k.List("u")), names(k.List("s")))
		}
		cancel()
		<-done
		k.Keep(c)
		want("after the end", "")
	})
}
