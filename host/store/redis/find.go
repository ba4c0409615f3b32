package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dodona-project/dodona/host/store"
)

// place is where the master of our keys is, and what is known about its replicas.
type place struct {
	addr     string
	replicas int // that there are, also those that are away; -1 = not known
}

// finder asks where the master is. Its methods are called by one goroutine at a
// time.
type finder interface {
	find(ctx context.Context) (place, error)
	close()
}

func newFinder(o *Options) finder {
	switch o.Target.Kind {
	case Sentinel:
		return &sentinels{peers{o: o}}
	case Cluster:
		return &nodes{peers: peers{o: o}}
	}
	return fixed{o.Target.Addrs[0]}
}

type fixed struct{ addr string }

func (f fixed) find(context.Context) (place, error) { return place{addr: f.addr, replicas: -1}, nil }
func (f fixed) close()                              {}

// peers are the connections to those who are asked where the master is.
type peers struct {
	o *Options

	mu      sync.Mutex
	clients map[string]*redis.Client
}

// client returns the connections to one of them.
func (p *peers) client(addr, user, secretKey, secretFile string) (*redis.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[addr]; c != nil {
		return c, nil
	}
	o, err := p.o.clientOptions(addr, user, secretKey, secretFile)
	if err != nil {
		return nil, err
	}
	if p.clients == nil {
		p.clients = make(map[string]*redis.Client)
	}
	p.clients[addr] = redis.NewClient(o)
	return p.clients[addr], nil
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, c := range p.clients {
		_ = c.Close()
		delete(p.clients, addr)
	}
}

// clientOptions are those of every connection of ours: no retries and no
// reconnecting of the library's own, which would hide what happens.
func (o *Options) clientOptions(addr, user, secretKey, secretFile string) (*redis.Options, error) {
	tls, err := o.Target.tls()
	if err != nil {
		return nil, err
	}
	ro := &redis.Options{
		Addr: addr,
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			password, err := readSecret(secretKey, secretFile)
			return user, password, err
		},
		TLSConfig: tls, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries:               -1, DialerRetries: 1,
		DialTimeout: o.CallTimeout, ReadTimeout: o.CallTimeout, WriteTimeout: o.CallTimeout, PoolTimeout: o.CallTimeout,
		ContextTimeoutEnabled: true,
		// After as many failed dials as its size, a pool would stop telling of
		// them one by one. How many calls there are is bounded by backend.call.
		PoolSize: 1 << 10,
	}
	dial := redis.NewDialer(ro)
	ro.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return c, nil
	}
	return ro, nil
}

// dialError is one of making a connection: nothing was sent on it.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// sentinels asks all Sentinels and believes the one with the newest
// configuration: after a partition some still name the old master.
type sentinels struct{ peers }

func (s *sentinels) find(ctx context.Context) (place, error) {
	type answer struct {
		place
		epoch int64
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.CallTimeout)
	defer cancel()
	answers := make([]answer, len(s.o.Target.Addrs))
	var wg sync.WaitGroup
	for i, addr := range s.o.Target.Addrs {
		wg.Go(func() {
			a := &answers[i]
			client, err := s.client(addr, "", "store.redis.sentinel_password_file", s.o.Target.SentinelPasswordFile)
			if err != nil {
				a.err = err
				return
			}
			cmd := redis.NewMapStringStringCmd(ctx, "SENTINEL", "MASTER", s.o.Target.Master)
			_ = client.Process(ctx, cmd)
			master, err := cmd.Result()
			if err != nil {
				a.err = fmt.Errorf("sentinel %s: %w", addr, explain(err))
				return
			}
			a.addr = redisAddr(master["ip"], master["port"])
			a.epoch, _ = strconv.ParseInt(master["config-epoch"], 10, 64)
			if a.replicas, err = strconv.Atoi(master["num-slaves"]); err != nil {
				a.replicas = -1
			}
		})
	}
	wg.Wait()
	best := answer{epoch: -1}
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, a.err)
		} else if a.epoch > best.epoch {
			best = a
		}
	}
	if best.epoch < 0 {
		return place{}, fmt.Errorf("%w: no Sentinel names the master %s: %w", store.ErrUnavailable, s.o.Target.Master, errors.Join(errs...))
	}
	return best.place, nil
}

func redisAddr(host, port string) string {
	addr, err := address(host, port)
	if err != nil {
		return host + ":" + port
	}
	return addr
}

// nodes asks the nodes of a Cluster, one after another, who has our slot.
type nodes struct {
	peers
	last string // answered last; one look is under way at a time
}

func (n *nodes) find(ctx context.Context) (place, error) {
	addrs := n.o.Target.Addrs
	if n.last != "" {
		addrs = append([]string{n.last}, addrs...)
	}
	var errs []error
	for _, addr := range addrs {
		p, err := n.ask(ctx, addr)
		if err == nil {
			n.last = addr
			return p, nil
		}
		errs = append(errs, fmt.Errorf("node %s: %w", addr, explain(err)))
	}
	return place{}, fmt.Errorf("%w: no node of the Cluster names the master of our keys: %w", store.ErrUnavailable, errors.Join(errs...))
}

func (n *nodes) ask(ctx context.Context, addr string) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, n.o.CallTimeout)
	defer cancel()
	client, err := n.client(addr, n.o.Target.User, "store.redis.password_file", n.o.Target.PasswordFile)
	if err != nil {
		return place{}, err
	}
	slot, err := client.ClusterKeySlot(ctx, keysOf(n.o.Target.Cluster).meta).Result()
	if err != nil {
		return place{}, err
	}
	ranges, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // what replaces it needs Redis 7
	if err != nil {
		return place{}, err
	}
	for _, r := range ranges {
		if int(slot) >= r.Start && int(slot) <= r.End && len(r.Nodes) > 0 {
			return place{addr: reached(r.Nodes[0].Addr, addr), replicas: len(r.Nodes) - 1}, nil
		}
	}
	return place{}, fmt.Errorf("nobody has slot %d", slot)
}

// reached is the address of a node as a node that was asked at from tells it. One that
// does not know its own names none: it is that one.
func reached(addr, from string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host != "" {
		return addr
	}
	if host, _, err = net.SplitHostPort(from); err != nil {
		return addr
	}
	return net.JoinHostPort(host, port)
}

// within bounds one call.
func (b *backend) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.o.CallTimeout)
}

// pause waits, unless ctx or the store ends before.
func (b *backend) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.closing:
		return store.ErrClosed
	}
}
