// Package supply brings a pool what its configuration names outside of it: the
// proxies of lists, and the credentials of both. It reads sources and secrets again
// and again, agrees with the other hosts on the versions of credentials, and keeps
// the credentials themselves in memory, which is the only place where they are.
//
// Each host runs one [Supplier] over its pool; the pool asks it for credentials
// when it makes snapshots and answers extractions.
package supply

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/proxylist"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/pool/source"
	"github.com/dodona-project/dodona/host/store"
)

// Pool is what is supplied; *pool.Pool is one.
type Pool interface {
	InForce(ctx context.Context) (*poolconfig.Config, error)
	List(ctx context.Context, upstream string, listed []pool.Listed, ttl time.Duration, record func(tx store.Tx, first bool, added uint32) error) (added, refreshed uint32, err error)
	Settle(ctx context.Context, refs []string, decide func(ref string, v secret.Version) secret.Version) (map[string]uint32, error)
	Settled(ctx context.Context) <-chan struct{}
}

// Options of a supplier.
type Options struct {
	Resolver *secret.Resolver
	Key      secret.Key     // the hosts' common one; zero: proxies with credentials are not supplied
	Sources  source.Options // Report and Changed are the supplier's
	Every    time.Duration  // between two looks at the configuration; 0 = 1 s
	Secrets  time.Duration  // between two reads of secrets; 0 = 10 s
	Logger   hclog.Logger
}

// Supplier supplies a pool. It is safe for concurrent use.
type Supplier struct {
	pool   Pool
	o      Options
	keeper *source.Keeper
	log    hclog.Logger

	settling sync.Mutex // one at a time: before is what the last one left

	mu     sync.Mutex
	config *poolconfig.Config // that is followed; nil before there is one
	held   map[string]held    // by reference
	wrong  map[string]string  // problem by reference, and by upstream
	listed map[string]time.Time
	failed map[string]bool // upstreams whose list the pool has not taken
}

// held is a credential and which version of its reference it is.
type held struct {
	credential secret.Credential
	digest     secret.Digest
	version    uint32    // 0: this host has another one than the store's version
	upstream   string    // of a credential that stands in its list
	seen       time.Time // when it stood there last
}

// New returns a supplier that does nothing until Run.
func New(p Pool, o Options) *Supplier {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	o.Every, o.Secrets = cmp.Or(o.Every, time.Second), cmp.Or(o.Secrets, 10*time.Second)
	s := &Supplier{pool: p, o: o, log: o.Logger, held: map[string]held{}, wrong: map[string]string{}, listed: map[string]time.Time{}, failed: map[string]bool{}}
	o.Sources.Report = func(st source.Status) {
		if st.Problem != "" {
			s.log.Warn("a source of proxies cannot be read: its last good list stays", "upstream", st.Upstream, "problem", st.Problem, "since", st.Since.UTC().Format(time.RFC3339))
			return
		}
		s.log.Info("a source of proxies can be read again", "upstream", st.Upstream, "proxies", st.Entries)
	}
	o.Sources.Changed = func(string, *source.List) {}
	s.o = o
	return s
}

// Credential is the material of a reference in a version; ok is false where this host
// does not have that one.
func (s *Supplier) Credential(ref string, version uint32) (c secret.Credential, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[ref]
	if !ok || h.version == 0 || h.version != version {
		return secret.Credential{}, false
	}
	return h.credential, true
}

// Problems are what keeps proxies from being supplied, for people.
func (s *Supplier) Problems() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.wrong)) {
		all = append(all, s.wrong[name])
	}
	if s.keeper != nil {
		for _, st := range s.keeper.Statuses() {
			if st.Problem != "" {
				all = append(all, fmt.Sprintf("upstream %s: %s", st.Upstream, st.Problem))
			}
		}
	}
	return all
}

// Run supplies until the context ends. It returns nil: what fails now is tried again.
func (s *Supplier) Run(ctx context.Context) error {
	o := s.o.Sources
	o.Changed = func(upstream string, list *source.List) { s.take(ctx, upstream, list) }
	keeper := source.NewKeeper(o)
	s.mu.Lock()
	s.keeper = keeper
	s.mu.Unlock()
	var reads sync.WaitGroup
	defer reads.Wait()
	reads.Go(func() { keeper.Run(ctx) })
	settled := s.pool.Settled(ctx)
	look := time.NewTicker(s.o.Every)
	defer look.Stop()
	var resolved time.Time
	for {
		changed := s.follow(ctx, keeper)
		if now := time.Now(); changed || now.Sub(resolved) >= s.o.Secrets {
			s.resolve(ctx)
			resolved = now
		}
		s.listAgain(ctx, keeper)
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case _, open := <-settled:
			if !open {
				settled = nil // the store is closed, and the host ends
			}
			resolved = time.Time{} // a secret that is new on one host may be here, too, by now
		}
	}
}

// follow takes the configuration in force, and reports whether it is another one.
func (s *Supplier) follow(ctx context.Context, keeper *source.Keeper) (changed bool) {
	c, err := s.pool.InForce(ctx)
	if err != nil {
		s.complain(ctx, "read the configuration", err)
		return false
	}
	s.mu.Lock()
	changed = c != s.config
	s.config = c
	if changed {
		s.forget(c)
	}
	s.mu.Unlock()
	if changed && c != nil {
		keeper.Keep(c)
	}
	return changed
}

// forget drops what belongs to nothing of a configuration. The lock is held.
func (s *Supplier) forget(c *poolconfig.Config) {
	upstreams, refs := map[string]bool{}, map[string]bool{}
	if c != nil {
		for _, u := range c.Upstreams {
			if u.Enabled {
				upstreams[u.Name] = true
				refs[u.SecretRef] = true
			}
		}
	}
	maps.DeleteFunc(s.held, func(ref string, h held) bool {
		return h.upstream != "" && !upstreams[h.upstream] || h.upstream == "" && !refs[ref]
	})
	maps.DeleteFunc(s.wrong, func(name string, _ string) bool { return !upstreams[name] && !refs[name] })
	maps.DeleteFunc(s.listed, func(name string, _ time.Time) bool { return !upstreams[name] })
	maps.DeleteFunc(s.failed, func(name string, _ bool) bool { return !upstreams[name] })
}

// complain logs what goes wrong, unless it is that the host stops.
func (s *Supplier) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Warn("cannot "+what+", and tries again", "error", err)
	}
}

// resolve reads the secrets that the configuration names. One that cannot be read
// stays as it was.
func (s *Supplier) resolve(ctx context.Context) {
	s.mu.Lock()
	c := s.config
	s.mu.Unlock()
	if c == nil {
		return
	}
	found := map[string]held{}
	wrong := map[string]string{}
	for _, u := range c.Upstreams {
		if _, done := found[u.SecretRef]; done || u.SecretRef == "" || !u.Enabled || wrong[u.SecretRef] != "" {
			continue
		}
		if s.o.Key.IsZero() {
			wrong[u.SecretRef] = "secret " + u.SecretRef + " is not used: " + noKey
			continue
		}
		credential, err := s.o.Resolver.Resolve(u.SecretRef)
		if err != nil {
			wrong[u.SecretRef] = err.Error()
			continue
		}
		found[u.SecretRef] = held{credential: credential, digest: s.o.Key.Digest(credential)}
	}
	s.mu.Lock()
	for _, u := range c.Upstreams {
		if ref := u.SecretRef; ref != "" {
			if wrong[ref] != "" && wrong[ref] != s.wrong[ref] {
				s.log.Warn("a secret cannot be read: what was read before stays", "problem", wrong[ref])
			}
			if s.wrong[ref] = wrong[ref]; wrong[ref] == "" {
				delete(s.wrong, ref)
			}
		}
	}
	s.mu.Unlock()
	s.settle(ctx, found)
}

// settle agrees on the versions of credentials and takes them over.
func (s *Supplier) settle(ctx context.Context, found map[string]held) bool {
	if len(found) == 0 {
		return true
	}
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	before := maps.Clone(s.held)
	s.mu.Unlock()
	stale := map[string]bool{}
	numbers, err := s.pool.Settle(ctx, slices.Sorted(maps.Keys(found)), func(ref string, v secret.Version) secret.Version {
		var last *secret.Digest
		if h, ok := before[ref]; ok {
			last = &h.digest
		}
		next, standing := secret.Decide(v, last, found[ref].digest)
		stale[ref] = standing == secret.Stale
		return next
	})
	if err != nil {
		s.complain(ctx, "agree on the versions of credentials", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lists := map[string]int{} // stale ones of an upstream's list
	for ref, h := range found {
		if h.version = numbers[ref]; stale[ref] {
			h.version = 0
			if h.upstream == "" {
				s.wrong[ref] = fmt.Sprintf("secret %s is version %d elsewhere, and this host still has an earlier one: replace it here too", ref, numbers[ref])
			} else {
				lists[h.upstream]++
			}
		}
		s.held[ref] = h
	}
	for name, n := range lists {
		s.wrong[name] = fmt.Sprintf("upstream %s: %d credentials of its list are newer ones on another host", name, n)
	}
	return true
}

// take has the pool take a list: the credentials first, so that a proxy is never
// without.
func (s *Supplier) take(ctx context.Context, upstream string, list *source.List) {
	s.mu.Lock()
	c := s.config
	s.mu.Unlock()
	if c == nil {
		return
	}
	u, ok := c.Upstream(upstream)
	if !ok || !u.Enabled {
		return
	}
	s.mu.Lock()
	delete(s.wrong, upstream)
	s.mu.Unlock()
	listed, found := s.entries(u, list.Entries)
	done := s.settle(ctx, found)
	if done {
		_, _, err := s.pool.List(ctx, upstream, listed, 0, nil)
		if done = err == nil; !done {
			s.complain(ctx, "list the proxies of "+upstream, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[upstream] = !done
	if done {
		s.listed[upstream] = time.Now()
		maps.DeleteFunc(s.held, func(_ string, h held) bool { // of proxies that the list had too long ago
			return h.upstream == upstream && time.Since(h.seen) > u.TTL
		})
	}
}

const noKey = "this host has no key for digests of credentials"

// entries are the proxies of a list as the pool knows them, and their credentials.
func (s *Supplier) entries(u *poolconfig.Upstream, all []proxylist.Entry) (listed []pool.Listed, found map[string]held) {
	found = map[string]held{}
	dropped := 0
	for _, e := range all {
		l := pool.Listed{Protocol: e.Protocol, Host: e.Host, Port: e.Port, SecretRef: u.SecretRef}
		if l.Protocol == controlplanev1.Proxy_PROTOCOL_UNSPECIFIED {
			l.Protocol = u.Protocol
		}
		if !e.Credential.IsZero() {
			if s.o.Key.IsZero() {
				dropped++
				continue
			}
			l.ID = s.o.Key.ProxyID(u.Name, l.Protocol.String(), e.Host, e.Port, e.Credential.Username())
			l.SecretRef = pool.InlineRef(u.Name, l.ID)
			found[l.SecretRef] = held{credential: e.Credential, digest: s.o.Key.Digest(e.Credential), upstream: u.Name, seen: time.Now()}
		}
		listed = append(listed, l)
	}
	if dropped > 0 {
		s.mu.Lock()
		s.wrong[u.Name] = fmt.Sprintf("upstream %s: %d proxies of its list have credentials and are left out: %s", u.Name, dropped, noKey)
		s.mu.Unlock()
	}
	return listed, found
}

// listAgain lists what the pool did not take, and what stands in the configuration,
// before it ends: that is never read again.
func (s *Supplier) listAgain(ctx context.Context, keeper *source.Keeper) {
	s.mu.Lock()
	c := s.config
	var due []string
	if c != nil {
		for _, u := range c.Upstreams {
			again := u.Source.Type == poolconfig.Static && !s.listed[u.Name].IsZero() && time.Since(s.listed[u.Name]) >= u.TTL/3
			if u.Enabled && (s.failed[u.Name] || again) {
				due = append(due, u.Name)
			}
		}
	}
	s.mu.Unlock()
	for _, name := range due {
		if list := keeper.List(name); list != nil {
			s.take(ctx, name, list)
		}
	}
}
