package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// patience is how long a client waits for one answer.
const patience = 10 * time.Second

// gitCommit is what the targets' repository is at.
const gitCommit = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// client is a program, or Go's own, that sends a request through a gateway.
type client struct {
	name string
	// send gets an URL and returns what it answers, without the end of the line.
	send func(ctx context.Context, gateway, url string) (string, error)
	// secureOnly is for clients that speak https alone.
	secureOnly bool
}

// nodeScript gets process.argv[2] through the proxy at process.argv[1]: in absolute
// form, or with TLS through CONNECT.
const nodeScript = `const http = require("http"), https = require("https");
const [host, port] = process.argv[1].split(":"), url = new URL(process.argv[2]);
const fail = e => { console.error(String(e)); process.exit(1); };
const read = r => {
	let text = "";
	r.on("data", d => text += d).on("end", () => r.statusCode == 200 ? process.stdout.write(text) : fail(r.statusCode + " " + text)).on("error", fail);
};
if (url.protocol == "http:") http.request({host, port, path: url.href, headers: {Host: url.host}, agent: false}, read).on("error", fail).end();
else http.request({host, port, method: "CONNECT", path: url.hostname + ":443", agent: false})
	.on("connect", (r, socket) => r.statusCode != 200 ? fail("CONNECT is answered " + r.statusCode) :
		https.get({socket, servername: url.hostname, host: url.hostname, path: url.pathname, agent: false}, read).on("error", fail))
	.on("error", fail).end();`

// newClients finds what there is on this machine. roots is the file of what the targets
// are verified with.
func newClients(dir, roots string, pem []byte) (found []client, missing []string, closeAll func()) {
	environ := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "NODE_EXTRA_CA_CERTS=" + roots}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, DialContext: (&net.Dialer{Timeout: patience}).DialContext,
		// Which gateway a request goes through is said with the request.
		Proxy: func(r *http.Request) (*url.URL, error) {
			return &url.URL{Scheme: "http", Host: r.Context().Value(gatewayKey{}).(string)}, nil
		},
		// A kept tunnel stays with its proxy; each request is to have one picked.
		DisableKeepAlives: true,
	}
	goClient := &http.Client{Transport: transport, Timeout: patience}
	found = append(found, client{name: "Go", send: func(ctx context.Context, gateway, address string) (string, error) {
		return get(ctx, goClient, gateway, address)
	}})
	for _, c := range []struct {
		name string
		args func(gateway, url string) []string
	}{
		{"curl", func(gateway, url string) []string {
			return []string{"-sSf", "-m", "10", "--cacert", roots, "-x", "http://" + gateway, url}
		}},
		{"git", func(gateway, url string) []string {
			return []string{"-c", "http.sslCAInfo=" + roots, "-c", "http.proxy=http://" + gateway, "ls-remote", url + "repo.git", "HEAD"}
		}},
		{"node", func(gateway, url string) []string { return []string{"-e", nodeScript, gateway, url} }},
	} {
		path, err := exec.LookPath(c.name)
		if err != nil {
			missing = append(missing, c.name)
			continue
		}
		found = append(found, client{name: c.name, secureOnly: c.name == "git", send: func(ctx context.Context, gateway, url string) (string, error) {
			return program(ctx, environ, path, c.args(gateway, url)...)
		}})
	}
	return found, missing, transport.CloseIdleConnections
}

// program runs a client and returns the first word of what it writes.
func program(ctx context.Context, environ []string, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = environ
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(path), err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return "", fmt.Errorf("%s: it wrote nothing", filepath.Base(path))
	}
	return words[0], nil
}

// gatewayKey is where a context has the gateway that a request of Go's client is for.
type gatewayKey struct{}

func get(ctx context.Context, c *http.Client, gateway, address string) (string, error) {
	r, err := http.NewRequestWithContext(context.WithValue(ctx, gatewayKey{}, gateway), http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	answer, err := c.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL
		}
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode != http.StatusOK:
		return "", statusError{answer.StatusCode, strings.TrimSpace(string(text))}
	}
	return strings.TrimSpace(string(text)), nil
}

// statusError is an answer that is none of what was asked for.
type statusError struct {
	code int
	text string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.text) }
