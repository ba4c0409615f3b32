// Package fetch asks an HTTP server in the way in which the built-in analyses
// may: one host, one MiB, no longer than the context allows. They use it to
// measure; what an answer means is theirs to say.
//
// What comes back was written by somebody else: bodies are bounded, and [Line]
// makes text of it fit for a person's screen.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dodona-project/dodona/sdk/plugin/line"
)

const (
	// Timeout is how long an analysis waits for an answer when its query says
	// nothing.
	Timeout = 3 * time.Second
	// MaxBody bounds an answer, in bytes after decompression.
	MaxBody = 1 << 20

	maxRedirects = 3
	maxEvidence  = 64 << 10 // bytes of an answer that are handed on
	maxLine      = 512      // bytes of a text for people
)

// client is shared so that connections are. It follows redirects only on the
// host that was named: a server must not make us ask another one, nor carry on
// in the clear, nor turn a question into one without a body.
var client = &http.Client{
	Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: Timeout}).DialContext,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	},
	CheckRedirect: Follow,
}

// Follow says whether a redirect may be followed, as http.Client asks it.
func Follow(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) > maxRedirects:
		return errors.New("it redirects without end")
	case !strings.EqualFold(req.URL.Host, first.URL.Host):
		return errors.New("it redirects to another host")
	case first.URL.Scheme == "https" && req.URL.Scheme != "https":
		return errors.New("it redirects from https to http")
	case req.Method != first.Method:
		return fmt.Errorf("it redirects from %s to %s: allowed are 307 and 308", first.Method, req.Method)
	}
	return nil
}

// Do sends a request and reads the answer, whatever its status. The error's text
// begins with the reason, "unreachable" or "bad body"; what was read of a body
// may come with it.
func Do(req *http.Request) (body []byte, status int, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, errors.New("unreachable: " + cause(err))
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case err != nil:
		return body, resp.StatusCode, errors.New("bad body: it ended early: " + cause(err))
	case len(body) > MaxBody:
		return body, resp.StatusCode, fmt.Errorf("bad body: more than %d bytes", MaxBody)
	}
	return body, resp.StatusCode, nil
}

// cause is the innermost reason of a failed request, without its URL, which may
// be long and is not for everybody's eyes.
func cause(err error) string {
	var timeout interface{ Timeout() bool }
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}

// CloseIdleConnections ends the connections that wait for the next question.
func CloseIdleConnections() { client.CloseIdleConnections() }

// Evidence is an answer, or its beginning when it is longer than evidence may
// be.
func Evidence(body []byte) []byte { return body[:min(len(body), maxEvidence)] }

// Line makes one bounded, printable line of a text that a server may have
// written.
func Line(s string) string { return line.Of(s, maxLine) }
