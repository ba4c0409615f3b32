package forward

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wait"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// way is an open connection on which the request goes to its target.
type way struct {
	conn     *stream
	routing  string
	policy   *target.Policy
	lease    Lease // nil = without a proxy
	at       place // where the connection is kept afterwards
	to       target.Target
	absolute bool
	reused   bool
	began    time.Time
}

// done releases the proxy, and has those who wait for one look again.
func (c *client) done(w *way) {
	c.use(nil)
	if w.lease != nil {
		w.lease.Release()
		w.lease = nil
		c.s.wake()
	}
}

// report tells what came of an attempt through a proxy.
func (c *client) report(w *way, stage controlplanev1.Outcome_Stage, class controlplanev1.ErrorClass, status int) {
	if w.lease == nil {
		return
	}
	took := time.Since(w.began)
	if stage != controlplanev1.Outcome_STAGE_TUNNEL { // which lasts as long as its client likes
		w.lease.Observe(took, class == 0)
	}
	if c.s.Report == nil {
		return
	}
	c.s.Report(worker.Outcome{
		ProxyID: w.lease.ProxyID(), Routing: w.routing, Stage: stage, Success: class == 0, Class: class, Status: status,
		Latency: took, TargetHost: c.q.Target.Host(),
	})
}

func (c *client) ask() *worker.Request {
	return &worker.Request{
		Target: c.q.Target, Method: c.q.Method, Client: c.name, ClientIP: c.ip,
		Header: func(name string) string { return string(c.q.Get(name)) },
	}
}

// rule finds the request's routing and lets its policy judge the target. Addresses
// are set where the gateway resolves names: they are the ones that were judged.
func (c *client) rule(q *worker.Request) (*worker.Routing, []netip.AddrPort, *refusal) {
	routing, ready := c.s.Routes.Route(q)
	switch {
	case !ready:
		return nil, nil, noView()
	case routing == nil:
		return nil, nil, &refusal{status: 421, token: "destination_not_found", why: "no routing is for this client, method and target"}
	}
	policy := routing.Policy
	if routing.Resolve != controlplanev1.Resolve_RESOLVE_PINNED {
		if err := policy.Check(q.Target); err != nil {
			return nil, nil, c.forbidden(q.Target, err)
		}
		return routing, nil, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.s.Limits.Resolve)
	defer cancel()
	addresses, err := policy.Resolve(ctx, q.Target, c.s.Direct.Resolver)
	if err != nil {
		return nil, nil, c.forbidden(q.Target, err)
	}
	return routing, addresses, nil
}

// forbidden is the answer to a target that is refused, or that has no address.
func (c *client) forbidden(to target.Target, err error) *refusal {
	var refused *target.Refusal
	if errors.As(err, &refused) {
		return denied(to, refused)
	}
	r := notConnected(err)
	if isTimeout(err) {
		r.status, r.token = 504, "dns_timeout"
	}
	return r
}

// lead finds a way for the request, or says what the client is answered.
func (c *client) lead() (*way, *refusal) {
	q := c.ask()
	routing, addresses, no := c.rule(q)
	if no != nil {
		return nil, no
	}
	var tried []string
	var last *refusal
	for attempt := 0; ; attempt++ {
		lease, lost := c.pick(q, routing, tried)
		if lost {
			return nil, lostProxy()
		}
		if lease == nil && len(tried) == 0 {
			if lease, no = c.wait(q, routing); no != nil {
				return nil, no
			}
			if lease != nil { // things may have changed meanwhile
				name := routing.Name
				if routing, addresses, no = c.rule(q); no == nil && routing.Name != name {
					no = unavailable("the routing changed while this request waited for a proxy")
				}
				if no != nil {
					lease.Release()
					c.s.wake()
					return nil, no
				}
			}
		}
		if lease == nil {
			if last != nil { // proxies were there and failed, which is no reason to go without one
				return nil, last
			}
			if routing.OnUnavailable == controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT {
				return c.fallBack(q, routing)
			}
			return nil, unavailable("no proxy has room for this request")
		}
		if attempt > 0 {
			c.s.Stats.Retried.Add(1)
		}
		w := &way{routing: routing.Name, policy: routing.Policy, lease: lease, to: q.Target, began: time.Now()}
		if len(addresses) > 0 {
			one := addresses[attempt%len(addresses)]
			w.to = target.Target{Addr: one.Addr(), Port: one.Port()}
		}
		err := c.open(w, len(addresses) > 0, true)
		if err == nil {
			c.stay(routing, lease.ProxyID())
			return w, nil
		}
		var e *upstream.Error
		errors.As(err, &e)
		if e != nil && e.Class != controlplanev1.ErrorClass_ERROR_CLASS_CANCELED {
			c.report(w, e.Stage, e.Class, e.Status)
		}
		c.s.Log.Debug("attempt failed", "proxy", lease.ProxyID(), "routing", routing.Name, "error", err)
		last = notConnected(err)
		tried = append(tried, lease.ProxyID())
		c.done(w)
		strict := c.bound(routing)
		if routing.Stickiness.GetMode() == controlplanev1.Stickiness_MODE_FAILOVER {
			c.s.sticky.forget(c.who(routing), tried[len(tried)-1])
		}
		// Not a byte went out: another proxy may try, unless it is this machine that fails.
		if attempt == retries || strict || c.ctx.Err() != nil || e == nil || e.Local && e.Class != controlplanev1.ErrorClass_ERROR_CLASS_POLICY {
			return nil, last
		}
	}
}

// pick asks for a proxy, unless others wait for one.
func (c *client) pick(q *worker.Request, routing *worker.Routing, tried []string) (lease Lease, lost bool) {
	if routing.OnUnavailable == controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT && len(tried) == 0 && c.s.queue(routing.Name).Len() > 0 {
		return nil, false
	}
	return c.choose(q, routing, tried)
}

// wait waits for a proxy where the routing says so. No lease and no refusal is that it
// does not.
func (c *client) wait(q *worker.Request, routing *worker.Routing) (lease Lease, no *refusal) {
	if routing.OnUnavailable != controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, routing.WaitTimeout)
	defer cancel()
	left := false
	stop := c.watch(0, hungUp, func() {
		left = true
		cancel()
	})
	c.s.Stats.Waiting.Add(1)
	name, changed, lost := routing.Name, false, false
	err := c.s.queue(name).Wait(ctx, c.who(routing).client, func() wait.Result {
		now, ready := c.s.Routes.Route(q)
		if changed = !ready || now == nil || now.Name != name; changed {
			return wait.Served
		}
		lease, lost = c.choose(q, now, nil)
		switch {
		case lease != nil || lost:
			return wait.Served
		case c.bound(now):
			return wait.Passed
		}
		return wait.Nothing
	})
	c.s.Stats.Waiting.Add(-1)
	stop()
	switch {
	case (left || c.ctx.Err() != nil) && lease != nil:
		lease.Release()
		c.s.wake()
		return nil, &refusal{silent: true, close: true}
	case left || c.ctx.Err() != nil:
		return nil, &refusal{silent: true, close: true}
	case errors.Is(err, wait.ErrFull):
		return nil, unavailable("no proxy has room for this request, and " + err.Error())
	case err != nil:
		return nil, unavailable("no proxy got room for this request in time")
	case lost:
		return nil, lostProxy()
	case changed:
		if _, _, no := c.rule(q); no != nil {
			return nil, no
		}
		return nil, unavailable("the routing changed while this request waited for a proxy")
	}
	return lease, nil
}

// fallBack goes without a proxy where the routing still says so. That there was none may
// be because the snapshot has ended since the routing was found.
func (c *client) fallBack(q *worker.Request, routing *worker.Routing) (*way, *refusal) {
	now, ready := c.s.Routes.Route(q)
	switch {
	case !ready:
		return nil, noView()
	case now == nil || now.Name != routing.Name || now.OnUnavailable != controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT:
		return nil, unavailable("the routing changed while this request looked for a proxy")
	}
	return c.direct(q, now)
}

// direct connects to the target itself, at an address that the policy allowed.
func (c *client) direct(q *worker.Request, routing *worker.Routing) (*way, *refusal) {
	limit := c.s.Dialer.DialTimeout
	if limit <= 0 {
		limit = upstream.DefaultDialTimeout
	}
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	stop := c.attend()
	conn, err := c.s.Direct.Dial(ctx, routing.Policy, q.Target)
	stop()
	if err != nil {
		var refused *target.Refusal
		if errors.As(err, &refused) {
			return nil, denied(q.Target, refused)
		}
		return nil, notConnected(err)
	}
	c.s.Stats.Direct.Add(1)
	w := &way{routing: routing.Name, to: q.Target, conn: newStream(conn, c.s.Limits.Idle), began: time.Now()}
	c.use(conn)
	return w, nil
}

// open opens a connection through the way's proxy, or takes an idle one.
func (c *client) open(w *way, pinned, reuse bool) error {
	p := w.lease.Via()
	// A name that was resolved here goes on as an address. In absolute form the target's
	// server would then not learn its own name.
	w.absolute = !c.q.Connect && p.Absolute() && !pinned
	w.at = place{proxyID: w.lease.ProxyID(), version: w.lease.CredentialVersion()}
	if !w.absolute {
		w.at.to = w.to
	}
	if !c.q.Connect && reuse {
		if w.conn = c.s.idle.take(w.at); w.conn != nil {
			c.s.Stats.Reused.Add(1)
			w.reused = true
			c.use(w.conn.Conn)
			w.lease.Activate()
			return nil
		}
	}
	var conn net.Conn
	var err error
	stop := c.attend()
	if w.absolute {
		conn, err = c.s.Dialer.Connect(c.ctx, p)
	} else {
		conn, err = c.s.Dialer.Tunnel(c.ctx, p, w.to)
	}
	stop()
	if err != nil {
		return err
	}
	if !w.reused { // begun already
		w.lease.Activate()
	}
	w.conn, w.reused = newStream(conn, c.s.Limits.Idle), false
	c.use(conn)
	return nil
}
