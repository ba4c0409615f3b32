package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

const maxInformational = 5 // 1xx answers before the one that counts

// egress asks for a URL that answers with the address that it sees.
func (k *check) egress(ctx context.Context, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	answer, bad := k.get(ctx, req)
	if bad != nil {
		return bad
	}
	ip, ok := exitAddress(answer.body)
	if !ok {
		if answer.cut != nil {
			return failed(ctx, answer.cut)
		}
		r := reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "the answer has no address in it: asked for are one alone, or JSON with one in ip, origin, query, address or the like")
		r.Status = uint32(answer.status)
		return r
	}
	r := reach.Good(answer.status, "its traffic leaves at "+ip.String())
	r.EgressIp = ip.String()
	return r
}

// target asks for a URL of a routing. Its status decides, and no redirect is followed: it
// is the answer.
func (k *check) target(ctx context.Context, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	answer, bad := k.get(ctx, req)
	if bad != nil {
		return bad
	}
	return reach.Good(answer.status, fmt.Sprintf("the target answers %d", answer.status))
}

// answer is what a target answered with a good status.
type answer struct {
	status int
	body   []byte // no more than reach.MaxBytes
	cut    error  // why the body is not whole
}

// get asks for the request's URL through the proxy. bad is not nil when there is no
// answer with a good status.
func (k *check) get(ctx context.Context, req *pluginv1.CheckRequest) (a answer, bad *pluginv1.CheckReply) {
	u, to, err := parseURL(req.GetUrl())
	if err != nil {
		return a, reach.Unclear(0, "url: %s", err)
	}
	if err := k.policy.CheckTarget(to); err != nil {
		return a, reach.Failed(ctx, err)
	}
	absolute := u.Scheme == "http" && k.via.Absolute()
	var conn net.Conn
	if absolute {
		conn, err = k.dialer.Connect(ctx, k.via)
	} else {
		conn, err = k.dialer.Tunnel(ctx, k.via, to)
	}
	if err != nil {
		return a, failed(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	defer follow(ctx, conn)()
	conn = reach.Bound(conn)
	if u.Scheme == "https" {
		secured := tls.Client(conn, k.TLS.Client(to.String()))
		if err := secured.HandshakeContext(ctx); err != nil {
			return a, failed(ctx, fmt.Errorf("TLS to the target: %w", err))
		}
		conn = secured
	}
	resp, err := ask(conn, u, absolute, k.via)
	if err != nil {
		return a, failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if bad := judge(resp, req, absolute); bad != nil {
		return a, bad
	}
	a.status = resp.StatusCode
	if req.GetLevel() == controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS {
		a.body, a.cut = io.ReadAll(io.LimitReader(resp.Body, reach.MaxBytes))
	}
	return a, nil
}

// judge refuses a status that is not good.
func judge(resp *http.Response, req *pluginv1.CheckRequest, absolute bool) *pluginv1.CheckReply {
	code := resp.StatusCode
	if absolute && code == http.StatusProxyAuthRequired {
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, "the proxy answers 407: it does not take these credentials")
	}
	good := code >= 200 && code <= 399
	switch {
	case len(req.GetExpectStatus()) > 0:
		good = slices.Contains(req.GetExpectStatus(), uint32(code))
	case req.GetLevel() == controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS:
		good = code >= 200 && code <= 299
	}
	if good {
		return nil
	}
	bad := reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, "the target answers %d", code)
	if code >= 100 && code <= 599 {
		bad.Status = uint32(code)
	}
	return bad
}

// parseURL reads a task's URL.
func parseURL(text string) (*url.URL, target.Target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, target.Target{}, errors.New("it is not a URL")
	}
	port := uint16(80)
	switch u.Scheme {
	case "http":
	case "https":
		port = 443
	default:
		return nil, target.Target{}, fmt.Errorf("its scheme is %.16q: allowed are http and https", u.Scheme)
	}
	if u.User != nil {
		return nil, target.Target{}, errors.New("it has a user in it, which no target is asked with")
	}
	to, err := target.Parse(u.Host, port)
	if err != nil {
		return nil, target.Target{}, err
	}
	return u, to, nil
}

// follow gives a connection the time that ctx has. The function that it returns ends that.
func follow(ctx context.Context, conn net.Conn) func() {
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// ask sends a request and reads the head of its answer.
func ask(conn net.Conn, u *url.URL, absolute bool, via upstream.Proxy) (*http.Response, error) {
	req := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Close: true, Header: http.Header{"User-Agent": {"dodona-probe"}, "Accept": {"*/*"}}}
	write := req.Write
	if absolute {
		write = req.WriteProxy
		if a := via.Authorization(); a != "" {
			req.Header.Set("Proxy-Authorization", a)
		}
	}
	if err := write(conn); err != nil {
		return nil, err
	}
	noted := &noted{Reader: conn}
	head := &io.LimitedReader{R: noted, N: reach.MaxBytes}
	r := bufio.NewReader(head)
	for range maxInformational {
		resp, err := http.ReadResponse(r, req)
		switch {
		case err != nil && head.N <= 0:
			return nil, reach.ErrTooMuch
		case err != nil && noted.err != nil:
			return nil, noted.err // half a line is given as a line, and is then called malformed
		case err != nil:
			return nil, err
		case resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols:
			head.N = 2 * reach.MaxBytes // the body has its own bound
			return resp, nil
		}
		_ = resp.Body.Close() // there is none
	}
	return nil, fmt.Errorf("more than %d informational answers", maxInformational)
}

// noted is a reader that remembers why it ended.
type noted struct {
	io.Reader
	err error
}

func (n *noted) Read(p []byte) (int, error) {
	m, err := n.Reader.Read(p)
	n.err = err
	return m, err
}
