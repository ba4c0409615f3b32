package forward

import (
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

// maxSticky is how many clients are remembered. Beyond it any of them is forgotten.
const maxSticky = 1 << 16

// sticky remembers which proxy a client used, for routings that say so.
type sticky struct {
	mu      sync.Mutex
	entries map[stays]remembered
}

// stays is a client of a routing, by its name, or by its address where nobody is asked for
// a name.
type stays struct{ routing, client string }

type remembered struct {
	proxyID     string
	since, used time.Time
}

// recall returns the proxy of a client, empty when there is none any more.
func (s *sticky) recall(who stays, how *controlplanev1.Stickiness) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.entries[who]
	if !ok {
		return ""
	}
	now := time.Now()
	over := func(since time.Time, limit time.Duration) bool { return limit > 0 && now.Sub(since) >= limit }
	if over(r.since, how.GetTtl().AsDuration()) || over(r.used, how.GetIdle().AsDuration()) {
		delete(s.entries, who)
		return ""
	}
	r.used = now
	s.entries[who] = r
	return r.proxyID
}

// remember has a client stay with a proxy, unless it stays with one.
func (s *sticky) remember(who stays, proxyID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries[who]; ok {
		return
	}
	if s.entries == nil {
		s.entries = map[stays]remembered{}
	}
	for other := range s.entries {
		if len(s.entries) < maxSticky {
			break
		}
		delete(s.entries, other)
	}
	now := time.Now()
	s.entries[who] = remembered{proxyID, now, now}
}

// forget ends a client's stay with a proxy.
func (s *sticky) forget(who stays, proxyID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[who].proxyID == proxyID {
		delete(s.entries, who)
	}
}

// bound reports whether the client can use the proxy that it stays with and no other.
func (c *client) bound(routing *worker.Routing) bool {
	return routing.Stickiness.GetMode() == controlplanev1.Stickiness_MODE_STRICT && c.s.sticky.recall(c.who(routing), routing.Stickiness) != ""
}

// who is the client of a request: it may stay with a proxy, and takes turns with others.
func (c *client) who(routing *worker.Routing) stays {
	if c.name != "" {
		return stays{routing.Name, "name " + c.name}
	}
	return stays{routing.Name, "address " + c.ip}
}

// choose picks a proxy: the one that the client stays with, if there is one. lost is
// that this one is gone, and that the routing allows no other.
func (c *client) choose(q *worker.Request, routing *worker.Routing, tried []string) (lease Lease, lost bool) {
	mode := routing.Stickiness.GetMode()
	if mode == controlplanev1.Stickiness_MODE_UNSPECIFIED || len(tried) > 0 {
		return c.s.Routes.Pick(routing, q, tried), false
	}
	who := c.who(routing)
	id := c.s.sticky.recall(who, routing.Stickiness)
	if id == "" {
		return c.s.Routes.Pick(routing, q, nil), false
	}
	lease, gone := c.s.Routes.PickProxy(routing, id)
	if lease != nil {
		return lease, false
	}
	if gone {
		c.s.sticky.forget(who, id) // the next request begins anew
	}
	if mode == controlplanev1.Stickiness_MODE_STRICT {
		return nil, gone
	}
	return c.s.Routes.Pick(routing, q, nil), false
}

// stay remembers the proxy of a request, once a connection to it stands.
func (c *client) stay(routing *worker.Routing, proxyID string) {
	if routing.Stickiness.GetMode() != controlplanev1.Stickiness_MODE_UNSPECIFIED {
		c.s.sticky.remember(c.who(routing), proxyID)
	}
}

// lostProxy is the answer to a client whose proxy is gone.
func lostProxy() *refusal {
	return &refusal{status: 502, token: "destination_unavailable", why: "the proxy that this client stays with is gone; the next request gets another one"}
}
