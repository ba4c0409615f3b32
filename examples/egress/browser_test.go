package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// browserNames are what Chromium is called on one machine or another.
var browserNames = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chromium-headless-shell"}

func findBrowser() (string, error) {
	for _, name := range browserNames {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("none of %v is on the PATH", browserNames)
}

// browser is a headless Chromium that finds its gateways by a PAC file. It is driven by
// the DevTools protocol over two pipes: JSON, with a zero byte after each message.
type browser struct {
	w     *world
	path  string
	pages map[string]*page // by what its URLs begin with

	writing sync.Mutex
	to      *os.File

	mu         sync.Mutex
	last       int
	calls      map[int]chan message
	ended      error // why nothing can be asked any more
	key        string
	challenges int               // 407, as the browser tells of them
	asked      map[string]bool   // requests that had their challenge answered
	failures   map[string]string // session -> the network error that it told last
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// page is a tab, which asks one thing at a time.
type page struct {
	mu      sync.Mutex
	session string
}

// startBrowser starts one that trusts the world's targets, and nothing else. key is the
// password that it gives to the gateways when they ask; without one it gives up.
func startBrowser(w *world, path, key string) *browser {
	w.t.Helper()
	leaf, err := x509.ParseCertificate(w.cert.Certificate[0])
	if err != nil {
		w.t.Fatal(err)
	}
	spki := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	pac := fmt.Sprintf("function FindProxyForURL(url, host) { return %q; }", "PROXY "+w.gateways[0].listen+"; PROXY "+w.gateways[1].listen)
	home, err := os.MkdirTemp(w.dir, "browser")
	if err != nil {
		w.t.Fatal(err)
	}
	toBrowser, to, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	from, fromBrowser, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-extensions", "--disable-breakpad", "--disable-dev-shm-usage",
		// All tabs are at work, not only the one in front.
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
		"--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,OptimizationHints,MediaRouter",
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(home, "data"), "--ignore-certificate-errors-spki-list="+base64.StdEncoding.EncodeToString(spki[:]),
		"--proxy-pac-url=data:application/x-ns-proxy-autoconfig;base64,"+base64.StdEncoding.EncodeToString([]byte(pac)), "about:blank")
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // its descriptors 3 and 4
	err = cmd.Start()
	_ = toBrowser.Close()
	_ = fromBrowser.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	b := &browser{
		w: w, path: path, pages: map[string]*page{}, to: to, calls: map[int]chan message{}, key: key, asked: map[string]bool{}, failures: map[string]string{},
	}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, _ = b.call(ctx, "", "Browser.close", nil)
		cancel()
		_ = to.Close()
		kill := time.AfterFunc(stopIn, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		reading.Wait()
		_ = from.Close()
	})
	return b
}

func (b *browser) read(from io.Reader) {
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = fmt.Errorf("the browser has ended: %w", err)
			for id, to := range b.calls {
				delete(b.calls, id)
				close(to)
			}
			b.mu.Unlock()
			return
		}
		var m message
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			continue
		}
		if m.ID == 0 {
			b.event(m)
			continue
		}
		b.mu.Lock()
		to := b.calls[m.ID]
		delete(b.calls, m.ID)
		b.mu.Unlock()
		if to != nil {
			to <- m
		}
	}
}

// event answers what the browser asks, and remembers what it tells.
func (b *browser) event(m message) {
	var p struct {
		RequestID string `json:"requestId"`
		ErrorText string `json:"errorText"`
		Challenge struct {
			Source string `json:"source"`
		} `json:"authChallenge"`
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return
	}
	switch m.Method {
	case "Fetch.requestPaused":
		b.tell(m.SessionID, "Fetch.continueRequest", map[string]any{"requestId": p.RequestID})
	case "Fetch.authRequired":
		answer := map[string]any{"response": "CancelAuth"}
		b.mu.Lock()
		if p.Challenge.Source == "Proxy" {
			b.challenges++
			if b.key != "" && !b.asked[p.RequestID] {
				answer = map[string]any{"response": "ProvideCredentials", "username": login, "password": b.key}
				b.asked[p.RequestID] = true
			}
		}
		b.mu.Unlock()
		b.tell(m.SessionID, "Fetch.continueWithAuth", map[string]any{"requestId": p.RequestID, "authChallengeResponse": answer})
	case "Network.loadingFailed":
		b.mu.Lock()
		b.failures[m.SessionID] = p.ErrorText
		b.mu.Unlock()
	}
}

// tell sends a command whose answer nobody waits for.
func (b *browser) tell(session, method string, params any) {
	_ = b.write(message{SessionID: session, Method: method}, params, nil)
}

func (b *browser) write(m message, params any, to chan message) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if params != nil {
		m.Params = text
	}
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return b.ended
	}
	b.last++
	m.ID = b.last
	if to != nil {
		b.calls[m.ID] = to
	}
	b.mu.Unlock()
	if text, err = json.Marshal(m); err != nil {
		return err
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	_, err = b.to.Write(append(text, 0))
	return err
}

func (b *browser) call(ctx context.Context, session, method string, params any) (json.RawMessage, error) {
	to := make(chan message, 1)
	if err := b.write(message{SessionID: session, Method: method}, params, to); err != nil {
		return nil, err
	}
	select {
	case m, ok := <-to:
		switch {
		case !ok:
			return nil, errors.New("the browser has ended")
		case m.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

// tab opens one, and has what it asks for pass by us, for the challenges of gateways.
func (b *browser) tab(ctx context.Context) (*page, error) {
	var made struct {
		TargetID  string `json:"targetId"`
		SessionID string `json:"sessionId"`
	}
	raw, err := b.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank"})
	if err == nil {
		err = json.Unmarshal(raw, &made)
	}
	if err != nil {
		return nil, err
	}
	raw, err = b.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true})
	if err == nil {
		err = json.Unmarshal(raw, &made)
	}
	if err != nil {
		return nil, err
	}
	for method, params := range map[string]any{"Fetch.enable": map[string]any{"handleAuthRequests": true}, "Network.enable": nil, "Page.enable": nil} {
		if _, err := b.call(ctx, made.SessionID, method, params); err != nil {
			return nil, err
		}
	}
	return &page{session: made.SessionID}, nil
}

// navigate opens address in the tab; the error is the browser's own for what went wrong.
func (b *browser) navigate(ctx context.Context, p *page, address string) error {
	raw, err := b.call(ctx, p.session, "Page.navigate", map[string]any{"url": address})
	if err != nil {
		return err
	}
	var went struct {
		ErrorText string `json:"errorText"`
	}
	if err := json.Unmarshal(raw, &went); err != nil {
		return err
	}
	if went.ErrorText != "" {
		return errors.New(went.ErrorText)
	}
	return nil
}

// evaluate runs a script in the page, waits for its promise and decodes what that gives.
func (b *browser) evaluate(ctx context.Context, p *page, script string, into any) error {
	raw, err := b.call(ctx, p.session, "Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true})
	if err != nil {
		return err
	}
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return err
	}
	if e := got.Exception; e != nil {
		return fmt.Errorf("%s %s", e.Text, e.Exception.Description)
	}
	return json.Unmarshal(got.Result.Value, into)
}

// open has a tab at the page of an upstream, with all that the page needs.
func (b *browser) open(ctx context.Context, scheme, upstream string) error {
	p, err := b.tab(ctx)
	if err != nil {
		return err
	}
	origin := scheme + "://" + upstream + hostSuffix
	if err := b.navigate(ctx, p, origin+"/page"); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	var state struct {
		Origin string `json:"origin"`
		Come   int    `json:"come"`
	}
	for {
		err := b.evaluate(ctx, p, `new Promise(done => {
			const look = () => done({origin: location.origin, come: window.come || 0});
			document.readyState == "complete" ? look() : addEventListener("load", look);
		})`, &state)
		switch {
		case err == nil && state.Origin == origin && state.Come == parts:
			b.pages[origin] = p
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s has %d of %d parts: %w", state.Origin, state.Come, parts, errors.Join(err, ctx.Err()))
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			continue
		}
	}
}

// openAll has a tab for each upstream, with and without TLS.
func (b *browser) openAll() {
	b.w.t.Helper()
	ctx, cancel := context.WithTimeout(b.w.t.Context(), 2*quiet)
	defer cancel()
	for _, u := range upstreams {
		for _, scheme := range []string{"http", "https"} {
			if err := b.open(ctx, scheme, u); err != nil {
				b.w.t.Fatalf("chromium: %v", err)
			}
		}
	}
}

func (b *browser) name() string { return "Chromium" }

// send fetches in the tab that is at the same origin. The browser chooses the gateway.
func (b *browser) send(ctx context.Context, _ []string, e errand) reply {
	u, err := url.Parse(e.url)
	if err != nil {
		return reply{err: err}
	}
	p := b.pages[u.Scheme+"://"+u.Host]
	if p == nil {
		return reply{err: fmt.Errorf("no tab is at %s", e.url)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.mu.Lock()
	delete(b.failures, p.session)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	how, err := json.Marshal(map[string]any{"method": e.method, "body": e.body, "cache": "no-store"})
	if err != nil {
		return reply{err: err}
	}
	if e.method == http.MethodGet {
		how = []byte(`{"cache": "no-store"}`)
	}
	var got struct {
		Status int    `json:"status"`
		Own    string `json:"own"`
		Text   string `json:"text"`
		Error  string `json:"error"`
	}
	err = b.evaluate(ctx, p, fmt.Sprintf(`fetch(%q, %s).then(
		async r => ({status: r.status, own: r.headers.get("proxy-status") || "", text: await r.text()})).catch(e => ({error: String(e)}))`, e.url, how), &got)
	if err != nil {
		return reply{err: err}
	}
	r := reply{status: got.Status, own: got.Own, text: got.Text}
	if got.Error != "" {
		b.mu.Lock()
		r.err = fmt.Errorf("%s %s", got.Error, b.failures[p.session])
		b.mu.Unlock()
	}
	return r
}

// socket says something over a WebSocket and returns what comes back.
func (b *browser) socket(ctx context.Context, origin, text string) (echo string, err error) {
	p := b.pages[origin]
	p.mu.Lock()
	defer p.mu.Unlock()
	err = b.evaluate(ctx, p, fmt.Sprintf(`new Promise((done, fail) => {
		const s = new WebSocket(location.origin.replace("http", "ws") + "/socket");
		s.onopen = () => s.send(%q);
		s.onmessage = m => { done(m.data); s.close(); };
		s.onerror = () => fail("no WebSocket");
	})`, text), &echo)
	return echo, err
}
