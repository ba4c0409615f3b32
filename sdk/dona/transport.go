package dona

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	firstSnapshot = 2 * time.Second // what a first request to a service waits for
	attempts      = 3               // of a request that may be sent again
)

// TransportConfig says how a transport decides and calls. The zero value takes what
// a decision depends on from the request's context; see NewContext.
type TransportConfig struct {
	// Request says what the decision for an HTTP request depends on. Tried
	// endpoints are added to its answer. nil = what NewContext put in the context.
	Request func(*http.Request) Request
	// Base makes the calls to the endpoints; nil = one of its own without proxies.
	Base http.RoundTripper
}

// Transport makes an http.RoundTripper for requests to services by name: a request
// for http://checkout/pay goes to the endpoint that the service checkout decides
// for it, with checkout as its Host header. A request that cannot be sent, and a
// safe one that gets no answer, is sent to another endpoint, up to 3 attempts in
// all, unless it has a body without GetBody. How a call went is reported: status
// 500 and above is a failure.
//
// A service is watched from the first request to it until the client is closed, so
// hosts of URLs must not come from outside. The error of a request that nothing may
// or can serve is a *DeniedError or *UnavailableError. The first request to a
// service waits up to 2 s for its snapshot.
func (c *Client) Transport(config TransportConfig) http.RoundTripper {
	if config.Request == nil {
		config.Request = func(r *http.Request) Request { return FromContext(r.Context()) }
	}
	if config.Base == nil {
		config.Base = direct(false)
	}
	return transport{client: c, config: config}
}

// direct makes the transport to endpoints. asIs passes bodies on as they come.
func direct(asIs bool) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, DisableCompression: asIs,
	}
}

type transport struct {
	client *Client
	config TransportConfig
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == "" || req.URL.Host != req.URL.Hostname() {
		discard(req)
		return nil, fmt.Errorf("URL %.200q: allowed is http://<service>/…, without a port: the endpoint has one", req.URL.Redacted())
	}
	h := &hop{service: t.client.Service(req.URL.Host), request: t.config.Request(req)}
	return h.send(t.config.Base, req)
}

// CloseIdleConnections closes those of the base, for http.Client.
func (t transport) CloseIdleConnections() {
	if base, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// discard closes a body that is not sent, as a RoundTripper has to.
func discard(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// hop is the way of one HTTP request to an endpoint.
type hop struct {
	service *Service
	request Request
}

// send picks an endpoint, and another one when the first cannot be reached and the
// request can be sent again.
func (h *hop) send(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	var last error
	for try := 1; ; try++ {
		pick, err := h.pick(req.Context())
		if err != nil {
			if try == 1 {
				discard(req)
			}
			return nil, errors.Join(last, err)
		}
		out := req.Clone(req.Context())
		if out.Host == "" {
			out.Host = req.URL.Host
		}
		out.URL.Host = pick.Endpoint.Address
		if try > 1 && hasBody(req) {
			if out.Body, err = req.GetBody(); err != nil {
				pick.Cancel()
				return nil, errors.Join(last, err)
			}
		}
		began := time.Now()
		resp, err := base.RoundTrip(out)
		if err == nil {
			finish(resp, &pick, time.Since(began))
			return resp, nil
		}
		if req.Context().Err() != nil {
			pick.Cancel() // whoever asked is gone: it says nothing about the endpoint
			return nil, err
		}
		pick.Done(Outcome{Latency: time.Since(began), Code: "unreachable"})
		if last = err; try == attempts || !again(req, err) {
			return nil, err
		}
		h.request.Tried = append(slices.Clip(h.request.Tried), pick.Endpoint.ID) // the list is the caller's
	}
}

// pick decides, and waits a moment for the first snapshot of a service.
func (h *hop) pick(ctx context.Context) (Pick, error) {
	pick, err := h.service.Pick(ctx, h.request)
	if !errors.Is(err, ErrNoData) {
		return pick, err
	}
	ctx, cancel := context.WithTimeout(ctx, firstSnapshot)
	defer cancel()
	if err := h.service.Ready(ctx); err != nil {
		return pick, err
	}
	return h.service.Pick(ctx, h.request)
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// again reports whether a request may be sent to another endpoint: it has no body
// that is used up, and either changes nothing or did not arrive.
func again(req *http.Request, err error) bool {
	if hasBody(req) && req.GetBody == nil {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// finish ends the pick with the response's body, so that its endpoint is busy as
// long as it sends.
func finish(resp *http.Response, pick *Pick, took time.Duration) {
	b := &body{ReadCloser: resp.Body, pick: pick, outcome: Outcome{
		Success: resp.StatusCode < http.StatusInternalServerError, Latency: took, Code: strconv.Itoa(resp.StatusCode),
	}}
	if writer, ok := resp.Body.(io.Writer); ok { // a protocol switch: it is both ways
		resp.Body = &duplex{b, writer}
		return
	}
	resp.Body = b
}

type body struct {
	io.ReadCloser
	once    sync.Once
	pick    *Pick
	outcome Outcome
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(errors.Is(err, io.EOF) || errors.Is(err, context.Canceled))
	}
	return n, err
}

func (b *body) Close() error {
	b.end(true)
	return b.ReadCloser.Close()
}

func (b *body) end(whole bool) {
	b.once.Do(func() {
		b.outcome.Success = b.outcome.Success && whole
		b.pick.Done(b.outcome)
	})
}

type duplex struct {
	*body
	io.Writer
}
