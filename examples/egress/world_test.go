package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/dodona-project/dodona/host/spawn"
)

const (
	login    = "teller"
	loginKey = "open-sesame"
	// quiet is how long a test waits for what has to happen on a busy machine.
	quiet = 30 * time.Second
	// parts is how many files the page needs.
	parts = 12
)

// world is the stage with targets that real programs have something to do with, and with
// gateways that ask for a login.
type world struct {
	*stage
	t     *testing.T
	cert  tls.Certificate
	roots string // file with what the targets are verified with
	apps  map[*proxy]*app
	repo  string // of what git is served, and where the backend of git is
	core  string
}

// newWorld starts everything; it ends with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	bin := build(t)
	programs, err := findPrograms(bin)
	if err != nil {
		t.Fatal(err)
	}
	programs.self = filepath.Join(bin, "egress")
	// Short: paths of sockets have little room.
	dir, err := os.MkdirTemp("/tmp", "e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &stage{programs: programs, dir: dir, story: newStory(t.Output()), spawn: spawn.New(spawn.Environ(os.Environ(), dir))}
	w := &world{stage: s, t: t, apps: map[*proxy]*app{}}
	t.Cleanup(func() {
		for _, a := range w.apps {
			a.close()
		}
		for _, problem := range s.end(s.host != nil && !t.Failed()) {
			t.Error(problem)
		}
		if !t.Failed() {
			return
		}
		for _, name := range []string{"dona-host", "gateway-1", "gateway-2", "proxy-checker"} {
			t.Logf("%s: %s", name, spawn.Tail(s.logOf(name)))
		}
	})
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.makeRepo()
	w.startApps()
	if err := s.startProxies(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.askForLogin()
	if err := s.startPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// askForLogin has the gateways ask for one.
func (w *world) askForLogin() {
	w.t.Helper()
	file := filepath.Join(w.dir, "gateway.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		text = bytes.Replace(text, []byte("gateway:\n"), []byte("gateway:\n  clients: [{name: "+login+", passwordFile: login}]\n"), 1)
		err = os.WriteFile(file, text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "login"), []byte(loginKey+"\n"), 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// startApps gives each proxy a target of its own, so that what arrives there came
// through that proxy.
func (w *world) startApps() {
	w.t.Helper()
	var names []string
	for _, u := range upstreams {
		names = append(names, u+hostSuffix)
	}
	cert, pem, err := newCertificate(names)
	if err != nil {
		w.t.Fatal(err)
	}
	w.cert, w.roots = cert, filepath.Join(w.dir, "apps.pem")
	if err := os.WriteFile(w.roots, pem, 0o600); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range w.proxies {
		a := newApp(p.target.exit, cert, w.repo, w.core)
		w.apps[p] = a
		p.settings.Hosts[p.upstream+hostSuffix+":80"] = a.plain.Listener.Addr().String()
		p.settings.Hosts[p.upstream+hostSuffix+":443"] = a.secure.Listener.Addr().String()
	}
}

// makeRepo makes what git clones and pushes to, where there is a git.
func (w *world) makeRepo() {
	w.t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		return
	}
	w.repo = filepath.Join(w.dir, "git")
	core, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		w.t.Fatal(err)
	}
	w.core = strings.TrimSpace(string(core))
	for _, u := range append([]string{"seed"}, upstreams...) {
		bare := filepath.Join(w.repo, u+".git")
		w.git("init", "-q", "--bare", "-b", "main", bare)
		w.git("-C", bare, "config", "http.receivepack", "true")
	}
	seed := filepath.Join(w.dir, "seed")
	w.git("init", "-q", "-b", "main", seed)
	if err := os.WriteFile(filepath.Join(seed, "file"), bytes.Repeat([]byte("content\n"), 10_000), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.git("-C", seed, "add", "file")
	w.git("-C", seed, "commit", "-q", "-m", "first")
	for _, u := range upstreams {
		w.git("-C", seed, "push", "-q", filepath.Join(w.repo, u+".git"), "main")
	}
}

// git runs a command of git that goes to nobody.
func (w *world) git(args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "git", args...)
	cmd.Env = gitEnviron(w.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func gitEnviron(home string) []string {
	return []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}
}

// app is what one proxy leads to: with and without TLS.
type app struct {
	exit          string
	plain, secure *httptest.Server
	underWay      atomic.Int64 // at /echo
	pages         atomic.Int64 // that were sent
	ended         chan struct{}
	once          sync.Once
}

func newApp(exit string, cert tls.Certificate, repo, core string) *app {
	a := &app{exit: exit, ended: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", a.echo)
	mux.HandleFunc("GET /page", a.page)
	mux.HandleFunc("GET /part/{name}", a.part)
	mux.Handle("/socket", websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	mux.Handle("/git/", &cgi.Handler{
		Path: filepath.Join(core, "git-http-backend"), Root: "/git", Dir: "/", Stderr: io.Discard,
		Env:    []string{"GIT_PROJECT_ROOT=" + repo, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=a"},
		Logger: log.New(io.Discard, "", 0),
	})
	start := func(tlsConfig *tls.Config) *httptest.Server {
		s := httptest.NewUnstartedServer(mux)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		if s.TLS = tlsConfig; tlsConfig != nil {
			s.StartTLS()
		} else {
			s.Start()
		}
		return s
	}
	a.plain, a.secure = start(nil), start(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	return a
}

func (a *app) close() {
	a.once.Do(func() { close(a.ended) })
	for _, s := range []*httptest.Server{a.plain, a.secure} {
		s.CloseClientConnections()
		s.Close()
	}
}

// echoed is what /echo says of a request.
type echoed struct {
	Exit   string `json:"exit"` // who the target took for its client
	Method string `json:"method"`
	Secure bool   `json:"secure"`
	Bytes  int64  `json:"bytes"`
	Sum    string `json:"sum"` // of the body
	Login  bool   `json:"login"`
}

// echo answers a little later, so that requests are under way.
func (a *app) echo(w http.ResponseWriter, r *http.Request) {
	a.underWay.Add(1)
	defer a.underWay.Add(-1)
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if d, err := time.ParseDuration(r.FormValue("wait")); err == nil {
		select {
		case <-time.After(d):
		case <-a.ended:
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(echoed{
		Exit: a.exit, Method: r.Method, Secure: r.TLS != nil, Bytes: n, Sum: hex.EncodeToString(h.Sum(nil)), Login: r.Header.Get("Proxy-Authorization") != "",
	})
}

// page needs parts files, and counts which have come.
func (a *app) page(w http.ResponseWriter, _ *http.Request) {
	a.pages.Add(1)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, "<!doctype html><title>page</title><script>var come = 0</script>\n")
	for n := range parts {
		switch n % 3 {
		case 0:
			fmt.Fprintf(w, "<script src=/part/%d.js></script>\n", n)
		case 1:
			fmt.Fprintf(w, "<link rel=stylesheet href=/part/%d.css onload=come++>\n", n)
		default:
			fmt.Fprintf(w, "<img src=/part/%d.svg onload=come++>\n", n)
		}
	}
}

func (a *app) part(w http.ResponseWriter, r *http.Request) {
	switch name := r.PathValue("name"); filepath.Ext(name) {
	case ".js":
		w.Header().Set("Content-Type", "text/javascript")
		fmt.Fprint(w, "come++")
	case ".css":
		w.Header().Set("Content-Type", "text/css")
		fmt.Fprint(w, "body {margin: 0}")
	default:
		w.Header().Set("Content-Type", "image/svg+xml")
		fmt.Fprint(w, `<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>`)
	}
}
