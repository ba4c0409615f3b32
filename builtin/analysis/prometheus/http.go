package prometheus

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
)

const (
	maxBody      = 1 << 20 // bytes of an answer, after decompression
	maxRedirects = 3
)

// client is shared so that connections are. It follows redirects only on the
// host that was named: a server must not make us ask another one.
var client = &http.Client{
	Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: defaultTimeout}).DialContext,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    defaultTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	},
	CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errRedirects
		}
		if !strings.EqualFold(req.URL.Host, via[0].URL.Host) {
			return errOtherHost
		}
		return nil
	},
}

var (
	errOtherHost = errors.New("it redirects to another host")
	errRedirects = errors.New("it redirects without end")
)

// ask sends one instant query, at the server's own now, and returns the raw
// body. The error's text begins with the reason; a body may come with it.
func ask(ctx context.Context, base, query string) (raw []byte, err error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("unreachable: prometheus_url is not an http:// or https:// URL")
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {query}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("unreachable: prometheus_url cannot be asked")
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New("unreachable: " + cause(err))
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return raw, errors.New("bad body: it ended early: " + cause(err))
	case len(raw) > maxBody:
		return raw, fmt.Errorf("bad body: more than %d bytes", maxBody)
	case resp.StatusCode != http.StatusOK:
		return raw, fmt.Errorf("unreachable: the server answered %d%s", resp.StatusCode, said(raw))
	}
	return raw, nil
}

// said is what a server's error answer says of itself, if it does.
func said(raw []byte) string {
	_, err := read(raw, true)
	if text, ok := strings.CutPrefix(fmt.Sprint(err), "bad body: the server says "); ok {
		return ": " + text
	}
	return ""
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
