package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needEnv has a test fail instead of leaving a program out that is not there; the make
// target that installs them sets it.
const needEnv = "EGRESS_CLIENTS"

// callers are the programs of this machine: curl, git, Go, Node.js and Chromium.
func (w *world) callers() (all []caller) {
	w.t.Helper()
	missing := func(name string, err error) {
		w.t.Helper()
		if os.Getenv(needEnv) == "all" {
			w.t.Fatalf("%s is needed: %v", name, err)
		}
		w.t.Logf("without %s: %v", name, err)
	}
	all = append(all, newGoProgram(w.t, w.roots))
	for name, make := range map[string]func(*world, string) *command{"curl": newCurl, "git": newGit} {
		if path, err := exec.LookPath(name); err != nil {
			missing(name, err)
		} else {
			all = append(all, make(w, path))
		}
	}
	if err := nodePackages(w.t.Context()); err != nil {
		missing("Node.js with undici", err)
	} else {
		all = append(all, newNode(w))
	}
	if path, err := findBrowser(); err != nil {
		missing("Chromium", err)
	} else {
		b := startBrowser(w, path, loginKey)
		b.openAll()
		all = append(all, b)
	}
	return all
}

// errands is what a program asks of an upstream.
func errands(c caller, upstream, wait string) (all []errand) {
	host := upstream + hostSuffix
	if c.name() == "git" {
		return []errand{{method: http.MethodGet, url: "https://" + host + "/git/" + upstream + ".git", key: loginKey}}
	}
	for _, scheme := range []string{"http", "https"} {
		at := scheme + "://" + host + "/echo?wait=" + wait
		all = append(all,
			errand{method: http.MethodGet, url: at, key: loginKey},
			errand{method: http.MethodPost, url: at, key: loginKey, body: strings.Repeat("sent by "+c.name()+"\n", 4_000)})
	}
	return all
}

// check says what is wrong with an answer to an errand.
func (w *world) check(c caller, upstream string, e errand, r reply) error {
	switch {
	case r.err != nil:
		return r.err
	case r.status != http.StatusOK:
		return fmt.Errorf("status %d: %q", r.status, r.text)
	case c.name() == "git":
		if commit, rest, _ := strings.Cut(r.text, "\t"); len(commit) != 40 || strings.TrimSpace(rest) != "refs/heads/main" {
			return fmt.Errorf("git read %q", r.text)
		}
		return nil
	}
	var got echoed
	if err := json.Unmarshal([]byte(r.text), &got); err != nil {
		return fmt.Errorf("%w: %q", err, r.text)
	}
	sum := sha256.Sum256([]byte(e.body))
	want := echoed{Exit: got.Exit, Method: e.method, Secure: strings.HasPrefix(e.url, "https:"), Bytes: int64(len(e.body)), Sum: hex.EncodeToString(sum[:])}
	if got != want {
		return fmt.Errorf("the target saw %+v, want %+v", got, want)
	}
	if p := w.byExit(got.Exit); p == nil || p.upstream != upstream {
		return fmt.Errorf("it came from %q", got.Exit)
	}
	return nil
}

// Curl, git, Go's client, Node's fetch through a proxy agent and a browser by a PAC file
// send requests through both gateways and each kind of upstream proxy: GET and POST with
// a body, in absolute form and through CONNECT. The gateways ask for a login, and whoever
// has none is told 407 and nothing else.
func TestClients(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, c := range w.callers() {
		began, n := time.Now(), 0
		for i, u := range upstreams {
			for j, e := range errands(c, u, "0s") {
				through := []string{w.gateways[(i+j)%2].listen, w.gateways[(i+j+1)%2].listen}
				if err := w.check(c, u, e, c.send(ctx, through, e)); err != nil {
					t.Errorf("%s, %s %.60s: %v", c.name(), e.method, e.url, err)
				}
				n++
			}
		}
		switch c := c.(type) {
		case *browser:
			w.browserToo(ctx, c)
		case *command:
			if c.name() == "git" {
				w.gitToo()
			}
			w.refused(ctx, c)
		default:
			w.refused(ctx, c)
		}
		t.Logf("%s: %d requests and more in %v", c.name(), n, time.Since(began).Round(time.Millisecond))
	}
}

// refused wants 407 for nobody and for a wrong password.
func (w *world) refused(ctx context.Context, c caller) {
	w.t.Helper()
	for _, key := range []string{"", "guessed"} {
		for _, e := range errands(c, "http", "0s") {
			e.key = key
			if r := c.send(ctx, []string{w.gateways[0].listen}, e); r.status != http.StatusProxyAuthRequired {
				w.t.Errorf("%s with the password %q, %.60s: status %d, %v, want 407", c.name(), key, e.url, r.status, r.err)
			}
		}
	}
}

// gitToo clones and pushes: bodies both ways, of more than a few bytes.
func (w *world) gitToo() {
	w.t.Helper()
	for i, u := range upstreams {
		to := filepath.Join(w.dir, "clone-"+u)
		via := "http.proxy=" + gatewayURL(w.gateways[i%2].listen, loginKey).String()
		w.git("-c", "http.sslCAInfo="+w.roots, "-c", via, "clone", "-q", "https://"+u+hostSuffix+"/git/"+u+".git", to)
		if got, err := os.ReadFile(filepath.Join(to, "file")); err != nil || len(got) != 80_000 {
			w.t.Errorf("git clones %d bytes through %s: %v", len(got), u, err)
		}
		if err := os.WriteFile(filepath.Join(to, "more"), []byte(newPassword()), 0o600); err != nil {
			w.t.Fatal(err)
		}
		w.git("-C", to, "add", "more")
		w.git("-C", to, "commit", "-q", "-m", "second")
		w.git("-C", to, "-c", "http.sslCAInfo="+w.roots, "-c", via, "push", "-q", "origin", "main")
		if here, there := w.git("-C", to, "rev-parse", "HEAD"), w.git("-C", filepath.Join(w.repo, u+".git"), "rev-parse", "main"); here != there {
			w.t.Errorf("git pushes %s through %s, and %s is there", here, u, there)
		}
	}
}

// browserToo wants that the pages, whose parts have all come, were asked for a login, that
// WebSockets go through CONNECT, and that a browser without a login sees nothing.
func (w *world) browserToo(ctx context.Context, b *browser) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*quiet)
	defer cancel()
	b.mu.Lock()
	challenges := b.challenges
	b.mu.Unlock()
	if challenges == 0 {
		w.t.Error("the browser was never asked for a login")
	}
	for origin := range b.pages {
		text := "said at " + origin
		if echo, err := b.socket(ctx, origin, text); err != nil || echo != text {
			w.t.Errorf("a WebSocket at %s: %q, %v", origin, echo, err)
		}
	}
	before := w.pagesSent()
	nobody := startBrowser(w, b.path, "")
	for i, scheme := range []string{"http", "https"} {
		p, err := nobody.tab(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		address := scheme + "://http" + hostSuffix + "/page"
		// Either it shows what the gateway says, or an error of its own.
		why := nobody.navigate(ctx, p, address)
		nobody.mu.Lock()
		challenges = nobody.challenges
		nobody.mu.Unlock()
		if challenges != i+1 {
			w.t.Errorf("a browser without a login was asked for one %d times at %s: %v", challenges, address, why)
		}
	}
	if after := w.pagesSent(); after != before {
		w.t.Errorf("a browser without a login was sent %d pages", after-before)
	}
}

// pagesSent counts the pages that all targets have sent.
func (w *world) pagesSent() (n int64) {
	for _, a := range w.apps {
		n += a.pages.Load()
	}
	return n
}
