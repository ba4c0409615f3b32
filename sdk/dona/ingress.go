package dona

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/ingress"
)

// IngressConfig says how an Ingress works. The zero value routes by the rules of
// all services.
type IngressConfig struct {
	// Services are those whose rules count; empty = all that the host knows. Name
	// them where there are many: the rules of each are read with its status.
	Services []string
	// Refresh is how often the rules are read again; 5 s when 0, at least 100 ms.
	Refresh time.Duration
	// Request says what the decision for an HTTP request depends on: its unit, its
	// attributes, the regions that may serve it. nil = on nothing. The regions of
	// the ingress rule and what was tried are added to it.
	Request func(*http.Request) Request
	// Transport makes the calls to the endpoints; nil = one of its own without
	// proxies.
	Transport http.RoundTripper
}

// Ingress is an http.Handler that brings requests from outside to the services:
// a request's host and path give the service by the ingress rules, and the service
// decides its endpoint with the client's caller as the caller. It works until the
// client is closed.
type Ingress struct {
	client *Client
	config IngressConfig
	proxy  *httputil.ReverseProxy

	table     atomic.Pointer[ingress.Table]
	problem   atomic.Pointer[error]
	ready     chan struct{} // closed with the first table
	readyOnce sync.Once
}

const (
	defaultRefresh = 5 * time.Second
	minRefresh     = 100 * time.Millisecond
	readTimeout    = 10 * time.Second      // for one status
	readPause      = 20 * time.Millisecond // between two, so that many services do not flood a host
)

// Ingress makes a handler that routes by the ingress rules and begins to read
// them. The client must have a caller: hosts and services see it as who asks.
func (c *Client) Ingress(config IngressConfig) (*Ingress, error) {
	if c.opts.callerService == "" {
		return nil, errors.New("an ingress calls as a service of its own: give Dial the option WithCaller")
	}
	if config.Refresh == 0 {
		config.Refresh = defaultRefresh
	}
	config.Refresh = max(config.Refresh, minRefresh)
	if config.Transport == nil {
		config.Transport = direct(true)
	}
	i := &Ingress{client: c, config: config, ready: make(chan struct{})}
	i.proxy = &httputil.ReverseProxy{
		Transport:    hops{config.Transport},
		Rewrite:      rewrite,
		ErrorHandler: failed,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.work.Go(func() { i.refresh(c.ctx) })
	return i, nil
}

// Ready waits until the rules were read for the first time.
func (i *Ingress) Ready(ctx context.Context) error {
	select {
	case <-i.ready:
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("wait for the ingress rules: %w", context.Cause(ctx))
		if problem := i.Problem(); problem != nil {
			err = fmt.Errorf("%w: %w", err, problem)
		}
		return err
	case <-i.client.ctx.Done():
		return ErrClosed
	}
}

// Table returns the rules in use; without any before Ready.
func (i *Ingress) Table() *ingress.Table {
	if t := i.table.Load(); t != nil {
		return t
	}
	return &ingress.Table{}
}

// Problem says why the rules could not be read the last time, or which of them
// are wrong; nil when all is well. Requests go on by the last rules that were
// read.
func (i *Ingress) Problem() error {
	if err := i.problem.Load(); err != nil {
		return *err
	}
	return nil
}

func (i *Ingress) refresh(ctx context.Context) {
	for {
		var rules []ingress.Rule
		h, err := i.client.ask(ctx, func(ctx context.Context, api donav1.ControlPlaneClient) (err error) {
			rules, err = i.read(ctx, api)
			return err
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			var table *ingress.Table
			if table, err = ingress.New(rules); err != nil {
				err = fmt.Errorf("host %s: %w", h.address, err)
			}
			i.use(table)
		}
		i.problem.Store(&err)
		if err != nil {
			i.client.opts.log.Warn("ingress rules", "host", h.address, "error", err)
		}
		if !sleep(ctx, i.config.Refresh) {
			return
		}
	}
}

// use puts a table into use and begins to watch the services it leads to.
func (i *Ingress) use(table *ingress.Table) {
	for _, r := range table.Rules() {
		i.client.Service(r.Service)
	}
	i.table.Store(table)
	i.readyOnce.Do(func() { close(i.ready) })
}

// read asks one host for the rules of all services that count.
func (i *Ingress) read(ctx context.Context, api donav1.ControlPlaneClient) ([]ingress.Rule, error) {
	services := i.config.Services
	if len(services) == 0 {
		reply, err := ask(ctx, api.ListServices, &donav1.ListServicesRequest{})
		if err != nil {
			return nil, fmt.Errorf("services: %w", err)
		}
		services = reply.GetServices()
	}
	var rules []ingress.Rule
	for n, name := range services {
		if n > 0 && !sleep(ctx, readPause) {
			return nil, ctx.Err()
		}
		reply, err := ask(ctx, api.GetStatus, &donav1.GetStatusRequest{Service: name})
		if status.Code(err) == codes.NotFound {
			continue // not there yet, or gone since
		}
		if err != nil {
			return nil, fmt.Errorf("ingress rules of %s: %w", name, err)
		}
		for _, r := range reply.GetIngresses() {
			rules = append(rules, ingress.Rule{Service: r.GetService(), Host: r.GetHost(), PathPrefix: r.GetPathPrefix(), AllowedRegions: r.GetAllowedRegions()})
		}
	}
	return rules, nil
}

// ServeHTTP answers 404 when no rule matches, 400 for a path with . or ..
// segments, 503 when no endpoint may or can serve, and 502 when the endpoint that
// was picked does not answer.
func (i *Ingress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	table := i.table.Load()
	if table == nil {
		unavailable(w)
		return
	}
	if dotted(r.URL.Path) {
		// The endpoint might read it as another path than the rules do.
		http.Error(w, "the path has . or .. segments", http.StatusBadRequest)
		return
	}
	rule, found := table.Resolve(r.Host, r.URL.Path)
	if !found {
		http.Error(w, "nothing is served here", http.StatusNotFound)
		return
	}
	h := &hop{service: i.client.Service(rule.Service)}
	if i.config.Request != nil {
		h.request = i.config.Request(r)
	}
	h.request.IngressRegions = rule.AllowedRegions
	i.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hopKey{}, h)))
}

func ask[Q, R, O any](ctx context.Context, rpc func(context.Context, Q, ...O) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return rpc(ctx, request)
}

func dotted(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "no endpoint can serve this now", http.StatusServiceUnavailable)
}

type hopKey struct{}

func rewrite(p *httputil.ProxyRequest) {
	p.Out.URL.Scheme = "http"
	p.Out.Host = p.In.Host
	p.SetXForwarded()
}

// failed answers what the transport could not bring anywhere. It tells nothing of
// services, regions and endpoints to the outside.
func failed(w http.ResponseWriter, _ *http.Request, err error) {
	var denied *DeniedError
	var out *UnavailableError
	if errors.As(err, &denied) || errors.As(err, &out) || errors.Is(err, ErrNoData) {
		unavailable(w)
		return
	}
	http.Error(w, "the endpoint does not answer", http.StatusBadGateway)
}

// hops sends each request on by what ServeHTTP decided it needs.
type hops struct{ base http.RoundTripper }

func (t hops) RoundTrip(req *http.Request) (*http.Response, error) {
	return req.Context().Value(hopKey{}).(*hop).send(t.base, req)
}
