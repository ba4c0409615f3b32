// Package http is the built-in probe "http": an endpoint is well when it answers a
// request with a good status and, where the configuration says so, with a text in
// its body. sdk/plugin serves [Probe].
//
// The request goes to the endpoint and nowhere else: a redirect is followed on the
// same scheme, host and port only, at most three times.
package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "http"

const (
	maxRedirects = 3
	maxStatuses  = 64
)

// Config is what a policy's probe_config may hold.
type Config struct {
	Path         string     `json:"path,omitempty" jsonschema:"maxLength=1024,description=path and query; / by default"`
	Method       string     `json:"method,omitempty" jsonschema:"enum=GET,enum=HEAD,description=GET by default"`
	Host         string     `json:"host,omitempty" jsonschema:"maxLength=253,description=Host header; the endpoint's address by default"`
	ExpectStatus []uint32   `json:"expect_status,omitempty" jsonschema:"minimum=200,maximum=399,description=statuses that are good; 200 to 399 by default"`
	ExpectBody   string     `json:"expect_body,omitempty" jsonschema:"maxLength=1024,description=has to be within the first 64 KiB of the body"`
	TLS          *reach.TLS `json:"tls,omitempty" jsonschema:"description=speak https; an empty object is enough"`
	Allow        []string   `json:"allow,omitempty" jsonschema:"enum=loopback,enum=link-local,enum=metadata,description=addresses that may be checked although they are refused by default"`
}

// Check says what is wrong with a configuration that the schema cannot see.
func (c Config) Check() error {
	if _, err := c.target("127.0.0.1:80"); err != nil {
		return err
	}
	if len(c.ExpectStatus) > maxStatuses {
		return fmt.Errorf("expect_status has %d codes: allowed are at most %d", len(c.ExpectStatus), maxStatuses)
	}
	for i, code := range c.ExpectStatus {
		if code < 200 || code > 399 {
			return fmt.Errorf("expect_status[%d] is %d: allowed are 200 to 399", i, code)
		}
	}
	if strings.ContainsFunc(c.Host, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/\\@?#", r) }) {
		return errors.New("host is not a name, or a name with a port")
	}
	if c.Method == http.MethodHead && c.ExpectBody != "" {
		return errors.New("expect_body is set with the method HEAD, which has no body: use GET")
	}
	if err := c.TLS.Check(); err != nil {
		return err
	}
	return reach.CheckAllow(c.Allow)
}

// target is the URL of the check.
func (c Config) target(address string) (*url.URL, error) {
	path := c.Path
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || u.Host != "" {
		return nil, errors.New("path is not a path: it begins with one /, as in /healthz")
	}
	u.Scheme, u.Host = "http", address
	if c.TLS != nil {
		u.Scheme = "https"
	}
	return u, nil
}

// Probe implements the plugin.
type Probe struct {
	Resolver reach.Resolver // nil = the system's
}

// Configure refuses what the schema cannot see.
func (Probe) Configure(_ context.Context, c Config) error { return c.Check() }

// Check checks by the configuration of the instance that is called.
func (p Probe) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return p.CheckWith(ctx, config, req), nil
}

// CheckWith makes one check before ctx ends.
func (p Probe) CheckWith(ctx context.Context, c Config, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	address := req.GetEndpointAddress()
	if _, _, err := reach.SplitAddress(address); err != nil {
		return reach.Failed(ctx, err)
	}
	u, err := c.target(address)
	if err != nil {
		return reach.Unclear(0, "config: %s", err)
	}
	method := c.Method
	if method == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return reach.Unclear(0, "config: the request cannot be made: %s", err)
	}
	r.Host = c.Host
	r.Header.Set("User-Agent", "dodona-probe")
	life, end := context.WithCancel(ctx)
	defer end()
	client := p.client(life, c, address)
	resp, err := client.Do(r)
	if err != nil {
		return failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	expect := c.ExpectStatus
	if len(req.GetExpectStatus()) > 0 {
		expect = req.GetExpectStatus()
	}
	if !good(uint32(resp.StatusCode), expect) {
		bad := reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, "it answers %s", resp.Status)
		if resp.StatusCode >= 100 && resp.StatusCode <= 599 {
			bad.Status = uint32(resp.StatusCode)
		}
		return bad
	}
	if c.ExpectBody != "" {
		body, err := io.ReadAll(io.LimitReader(resp.Body, reach.MaxBytes))
		if !bytes.Contains(body, []byte(c.ExpectBody)) {
			if err != nil {
				return failed(ctx, err)
			}
			bad := reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "what is expected is not within the first %d bytes of the body", reach.MaxBytes)
			bad.Status = uint32(resp.StatusCode)
			return bad
		}
	}
	return reach.Good(resp.StatusCode, "it answers "+resp.Status)
}

func good(code uint32, expect []uint32) bool {
	if len(expect) == 0 {
		return code >= 200 && code <= 399
	}
	return slices.Contains(expect, code)
}

// client makes a client for one check, whose connections end with life: the transport
// goes on with a handshake that nobody waits for any more. Nothing is kept for the next
// check, which may have another address behind the same name.
func (p Probe) client(life context.Context, c Config, address string) *http.Client {
	dialer := reach.Dialer{Policy: reach.Allowing(c.Allow), Resolver: p.Resolver}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: func(_ context.Context, _, to string) (net.Conn, error) {
				conn, err := dialer.Dial(life, to)
				if err == nil {
					context.AfterFunc(life, func() { _ = conn.Close() })
				}
				return conn, err
			},
			TLSClientConfig:        c.TLS.Client(address),
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: reach.MaxBytes,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			first := via[0]
			here := next.URL.Scheme == first.URL.Scheme &&
				(strings.EqualFold(next.URL.Host, first.URL.Host) || c.Host != "" && strings.EqualFold(next.URL.Host, c.Host))
			switch {
			case len(via) > maxRedirects:
				return &redirect{text: fmt.Sprintf("it redirects more than %d times", maxRedirects)}
			case !here:
				return &redirect{text: "it redirects to another place, which says nothing of this endpoint: check the path that it redirects to, or expect the status of the redirect", elsewhere: true}
			}
			next.URL.Host, next.Host = first.URL.Host, c.Host
			return nil
		},
	}
}

// redirect is why a redirect was not followed.
type redirect struct {
	text      string
	elsewhere bool
}

func (r *redirect) Error() string { return r.text }

func failed(ctx context.Context, err error) *pluginv1.CheckReply {
	var where *redirect
	switch {
	case errors.As(err, &where) && where.elsewhere:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_POLICY, "%s", where.text)
	case errors.As(err, &where):
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "%s", where.text)
	case errors.Is(err, http.ErrSchemeMismatch):
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TLS, "it does not speak TLS")
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return reach.Failed(ctx, err)
}
