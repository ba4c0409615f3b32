package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// errand is a request that a program is to send.
type errand struct {
	method, url string
	body        string
	// key is the password of the login; without one none is sent.
	key string
}

// reply is what became of it.
type reply struct {
	gateway int    // that was asked last
	status  int    // of whoever answered; 0 when nobody did, or the program does not say
	own     string // Proxy-Status, when a gateway answered by itself and the program shows it
	text    string
	err     error
}

// caller is a program that goes through gateways. send tries them in their order: the next
// one when nobody listens at one, and no second time what was sent.
type caller interface {
	name() string
	send(ctx context.Context, gateways []string, e errand) reply
}

// either asks a gateway after the other until somebody listens.
func either(gateways []string, ask func(gateway string) (r reply, refused bool)) (r reply) {
	for i, g := range gateways {
		var refused bool
		r, refused = ask(g)
		if r.gateway = i; !refused {
			break
		}
	}
	return r
}

func gatewayURL(gateway, key string) *url.URL {
	u := &url.URL{Scheme: "http", Host: gateway}
	if key != "" {
		u.User = url.UserPassword(login, key)
	}
	return u
}

// goProgram is net/http with its own way to keep connections.
type goProgram struct {
	roots *x509.CertPool
	mu    sync.Mutex
	by    map[string]*http.Client // proxy's URL -> client
}

func newGoProgram(t *testing.T, roots string) *goProgram {
	t.Helper()
	pem, err := os.ReadFile(roots)
	if err != nil {
		t.Fatal(err)
	}
	g := &goProgram{roots: x509.NewCertPool(), by: map[string]*http.Client{}}
	g.roots.AppendCertsFromPEM(pem)
	t.Cleanup(func() {
		for _, c := range g.by {
			c.CloseIdleConnections()
		}
	})
	return g
}

func (g *goProgram) name() string { return "Go" }

// refusedTunnel is an answer to CONNECT that is none of 200.
type refusedTunnel struct {
	status int
	own    string
}

func (e *refusedTunnel) Error() string { return fmt.Sprintf("CONNECT is answered %d", e.status) }

func (g *goProgram) client(via *url.URL) *http.Client {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.by[via.String()]
	if c == nil {
		c = &http.Client{Timeout: quiet, Transport: &http.Transport{
			Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12},
			OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
				if answer.StatusCode == http.StatusOK {
					return nil
				}
				return &refusedTunnel{answer.StatusCode, answer.Header.Get("Proxy-Status")}
			},
		}}
		g.by[via.String()] = c
	}
	return c
}

func (g *goProgram) send(ctx context.Context, gateways []string, e errand) reply {
	return either(gateways, func(gateway string) (reply, bool) {
		r, err := http.NewRequestWithContext(ctx, e.method, e.url, strings.NewReader(e.body))
		if err != nil {
			return reply{err: err}, false
		}
		answer, err := g.client(gatewayURL(gateway, e.key)).Do(r)
		var tunnel *refusedTunnel
		switch {
		case errors.As(err, &tunnel):
			return reply{status: tunnel.status, own: tunnel.own, err: err}, false
		case err != nil:
			return reply{err: err}, errors.Is(err, syscall.ECONNREFUSED)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return reply{status: answer.StatusCode, own: answer.Header.Get("Proxy-Status"), text: string(text), err: err}, false
	})
}

// command is a program that is started for each request.
type command struct {
	title, path string
	environ     []string
	args        func(gateway *url.URL, e errand) []string
	read        func(e errand, stdout, stderr []byte, exit int) (r reply, refused bool)
}

func (c *command) name() string { return c.title }

func (c *command) send(ctx context.Context, gateways []string, e errand) reply {
	return either(gateways, func(gateway string) (reply, bool) {
		ctx, cancel := context.WithTimeout(ctx, quiet+5*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, c.path, c.args(gatewayURL(gateway, e.key), e)...)
		var stdout, stderr bytes.Buffer
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.environ, strings.NewReader(e.body), &stdout, &stderr
		err := cmd.Run()
		if cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
			return reply{err: err}, false
		}
		r, refused := c.read(e, stdout.Bytes(), stderr.Bytes(), cmd.ProcessState.ExitCode())
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(stderr.String()), " "))
		}
		return r, refused
	})
}

// curlConnect is the exit code of curl when nobody listens.
const curlConnect = 7

func newCurl(w *world, path string) *command {
	return &command{
		title: "curl", path: path, environ: []string{"HOME=" + w.dir},
		args: func(gateway *url.URL, e errand) []string {
			args := []string{"-sS", "-i", "-m", "30", "--cacert", w.roots, "-x", gateway.String(), "-X", e.method, e.url}
			if e.body != "" {
				args = append(args, "--data-binary", "@-", "-H", "Content-Type: text/plain")
			}
			if e.key != "" {
				args = append(args, "--proxy-anyauth") // asks without it first, and is told 407
			}
			return args
		},
		read: func(e errand, stdout, _ []byte, exit int) (reply, bool) {
			r := reply{}
			in := bufio.NewReader(bytes.NewReader(stdout))
			// The heads of all answers, those to CONNECT among them, and the body of the last.
			for {
				if start, _ := in.Peek(7); string(start) != "HTTP/1." {
					break
				}
				head := textproto.NewReader(in)
				line, _ := head.ReadLine()
				fields, _ := head.ReadMIMEHeader()
				if words := strings.Fields(line); len(words) > 1 {
					r.status, _ = strconv.Atoi(words[1])
				}
				r.own = fields.Get("Proxy-Status")
			}
			text, _ := io.ReadAll(in)
			r.text = string(text)
			if exit != 0 && (r.status == http.StatusOK || r.status == http.StatusProxyAuthRequired && e.key == loginKey) {
				r.status, r.own = 0, "" // of what went before: a tunnel that stood, a challenge that was met
			}
			return r, exit == curlConnect
		},
	}
}

var gitStatus = regexp.MustCompile(`(?:response |returned error: |code = |HTTP )(\d{3})`)

// newGit makes git list the branches of url's upstream, which is a GET and a POST through
// one tunnel.
func newGit(w *world, path string) *command {
	return &command{
		title: "git", path: path, environ: gitEnviron(w.dir),
		args: func(gateway *url.URL, e errand) []string {
			return []string{"-c", "http.sslCAInfo=" + w.roots, "-c", "http.proxy=" + gateway.String(), "-c", "protocol.version=2", "ls-remote", e.url, "refs/heads/main"}
		},
		read: func(_ errand, stdout, stderr []byte, exit int) (reply, bool) {
			if exit == 0 {
				return reply{status: http.StatusOK, text: string(stdout)}, false
			}
			r := reply{}
			if m := gitStatus.FindSubmatch(stderr); m != nil {
				r.status, _ = strconv.Atoi(string(m[1]))
			}
			return r, bytes.Contains(stderr, []byte("Failed to connect to 127.0.0.1")) || bytes.Contains(stderr, []byte("Couldn't connect to server"))
		},
	}
}

// nodeProgram is a Node.js process that fetches through the proxy agent of undici.
type nodeProgram struct {
	in io.Writer

	mu    sync.Mutex
	last  int
	calls map[int]chan nodeReply
}

type nodeReply struct {
	ID      int    `json:"id"`
	Gateway int    `json:"gateway"`
	Status  int    `json:"status"`
	Own     string `json:"own"`
	Text    string `json:"text"`
	Error   string `json:"error"`
}

const nodeDir = "testdata/node"

// nodePackages reports why there is no undici, after having tried to get it.
func nodePackages(ctx context.Context) error {
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(nodeDir, "node_modules/undici/package.json")); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "install", "--no-fund", "--no-audit", "--no-package-lock", "--loglevel=error", "--prefix", nodeDir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("npm install: %w: %.200s", err, out)
	}
	return nil
}

func newNode(w *world) *nodeProgram {
	w.t.Helper()
	cmd := exec.Command("node", "fetch.js", w.roots)
	cmd.Dir, cmd.Env = nodeDir, []string{"HOME=" + w.dir, "PATH=" + os.Getenv("PATH")}
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	n := &nodeProgram{in: in, calls: map[int]chan nodeReply{}}
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var r nodeReply
			if json.Unmarshal(line, &r) != nil {
				continue
			}
			n.mu.Lock()
			to := n.calls[r.ID]
			delete(n.calls, r.ID)
			n.mu.Unlock()
			if to != nil {
				to <- r
			}
		}
	})
	w.t.Cleanup(func() {
		_ = in.Close() // it ends by itself then
		reading.Wait()
		if err := cmd.Wait(); err != nil {
			w.t.Errorf("node: %v\n%s", err, stderr.String())
		}
	})
	return n
}

func (n *nodeProgram) name() string { return "Node" }

// nodeStatus is how undici tells of a gateway's own answer.
var nodeStatus = regexp.MustCompile(`Proxy (?:response|Authentication Required) \((\d{3})\)`)

func (n *nodeProgram) send(ctx context.Context, gateways []string, e errand) reply {
	q := map[string]any{"url": e.url, "method": e.method, "body": e.body, "patience": quiet.Milliseconds()}
	if e.key != "" {
		q["token"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(login+":"+e.key))
	}
	var through []string
	for _, g := range gateways {
		through = append(through, "http://"+g)
	}
	q["gateways"] = through
	to := make(chan nodeReply, 1)
	n.mu.Lock()
	n.last++
	id := n.last
	q["id"] = id
	n.calls[id] = to
	line, err := json.Marshal(q)
	if err == nil {
		_, err = n.in.Write(append(line, '\n'))
	}
	n.mu.Unlock()
	if err != nil {
		return reply{err: err}
	}
	select {
	case r := <-to:
		out := reply{gateway: r.Gateway, status: r.Status, own: r.Own, text: r.Text}
		if r.Error != "" {
			out.err = errors.New(r.Error)
			if m := nodeStatus.FindStringSubmatch(r.Error); m != nil {
				out.status, _ = strconv.Atoi(m[1])
			}
		}
		return out
	case <-ctx.Done():
		return reply{err: ctx.Err()}
	}
}
