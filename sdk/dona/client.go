package dona

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/internal/cache"
	"github.com/dodona-project/dodona/sdk/dona/internal/report"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/name"
)

// Client is connected to the hosts of one deployment. Close it when done.
type Client struct {
	opts     *options
	hosts    []*host
	health   *hosts.Set // of hosts, by their place
	cache    *cache.Dir // nil = nothing on disk
	reporter *report.Reporter
	reported int // the host that failed the report under way, or hosts.None; owned by the reporter

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu            sync.Mutex
	closed        bool
	services      map[string]*Service
	registrations map[*Registration]struct{}
}

// host is one address of a control-plane host.
type host struct {
	place   int // in the client's list
	address string
	conn    *grpc.ClientConn
	release func() error

	mu      sync.Mutex
	trusted context.Context // see stay; nil = made when it is asked for
	doubted context.CancelFunc
}

// MaxHosts is how many hosts a target may name.
const MaxHosts = hosts.Most

// Dial makes a client for the hosts in target: host:port, or several, separated by
// commas, of one deployment: they share a store. It does not wait for a connection,
// so a program starts also when no host can be reached; Service.Ready waits. Clients
// of one process share one connection to each host. ctx is for the call only.
func Dial(ctx context.Context, target string, opts ...Option) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	addresses, err := ParseTarget(target)
	if err != nil {
		return nil, fmt.Errorf("dial: target %w", err)
	}
	c := &Client{opts: o, health: hosts.New(len(addresses), o.random), reported: hosts.None,
		services: map[string]*Service{}, registrations: map[*Registration]struct{}{}}
	for _, a := range addresses {
		h, err := connect(a, o)
		if err != nil {
			c.releaseHosts()
			return nil, fmt.Errorf("dial %s: %w", a, err)
		}
		h.place = len(c.hosts)
		c.hosts = append(c.hosts, h)
	}
	if o.cacheDir != "" {
		c.cache = &cache.Dir{Path: o.cacheDir}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.reporter = report.New(report.Config{
		Send:     c.sendReport,
		Caller:   o.callerService,
		Interval: o.interval,
		Random:   o.random,
		Log:      o.log,
	})
	return c, nil
}

// ParseTarget returns the addresses that a target names, each once, in its order.
// The error says what is allowed and reads on after the name of whatever holds the
// target.
func ParseTarget(target string) ([]string, error) { return hosts.Parse(target) }

// Service returns the service of that name and begins to watch it. The same name
// gives the same Service. A name that cannot be one is refused by Ready and Pick.
func (c *Client) Service(serviceName string) *Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.services[serviceName]
	if s != nil {
		return s
	}
	s = &Service{client: c, name: serviceName, ready: make(chan struct{}), fresh: make(chan struct{}), save: make(chan struct{}, 1)}
	s.changed.Store(&watchStatus{})
	c.services[serviceName] = s
	switch err := name.Service(serviceName); {
	case err != nil:
		s.refused = err
	case c.closed:
		s.refused = ErrClosed
	default:
		c.work.Go(func() { s.watch(c.ctx) })
	}
	return s
}

// Stats are counts since the client was made.
type Stats struct {
	Reported        uint64 // items that a host acknowledged
	Dropped         uint64 // items that were not sent: queues were full, or a host refused them
	AttributeErrors uint64 // attributes of another type than a targeting rule asks for
}

// Stats returns what was reported and lost so far.
func (c *Client) Stats() Stats {
	r := c.reporter.Stats()
	out := Stats{Reported: r.Reported, Dropped: r.Dropped}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.services {
		out.AttributeErrors += s.attributeErrors.Load()
	}
	return out
}

// closeTimeout bounds what Close waits for, deregistration and the last report side
// by side. What is left of two seconds is for ending streams and connections.
const closeTimeout = 1750 * time.Millisecond

// Close deregisters the client's endpoints, sends what was not reported yet and
// ends the client, all within 2 s whatever hosts do. Services go on deciding by the snapshot they
// have. The error says what could not be delivered.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var open []*Registration
	for r := range c.registrations {
		open = append(open, r)
	}
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	var closing sync.WaitGroup
	var mu sync.Mutex
	for _, r := range open {
		closing.Go(func() {
			if err := r.Close(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				keep(err)
			}
		})
	}
	reported := c.reporter.Close(ctx)
	closing.Wait()
	keep(reported)
	c.cancel()
	c.work.Wait()
	keep(c.releaseHosts())
	return first
}

func (c *Client) releaseHosts() (first error) {
	for _, h := range c.hosts {
		if err := h.release(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Explain decides a request on a snapshot and says what each stage saw, by the
// code that serves requests. It needs no client. An error means that a client
// would refuse the snapshot.
func Explain(snapshot *donav1.ConfigSnapshot, req Request) (*decide.Trace, error) {
	return decide.Explain(snapshot, req)
}
