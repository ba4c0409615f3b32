package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/loopback"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// hostAway is how long the gateways are on their own.
const hostAway = 2 * time.Second

// sessionTTL is the default of a worker's session.
const sessionTTL = 30 * time.Second

// facts are what the acts found; the claims are judged on them. What was not reached is
// zero.
type facts struct {
	asked, answered int // by curl, or Go's client, before anything was killed

	found, back time.Duration // from the proxy's death, and from its return, until the host knew

	gatewayDead, gatewayBack time.Time // the latter when it was ready again

	hostDead, hostBack        time.Time
	ownersBefore, ownersAfter map[string]string
	connectedAfter            time.Duration // both gateways, since the host is back
	extraction                *extraction
	ended                     time.Time
}

// play runs the acts.
func (s *stage) play(ctx context.Context) error {
	for _, act := range []func(context.Context) error{s.opening, s.first, s.killProxy, s.killGateway, s.killHost, s.extract} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	s.facts.ended = time.Now()
	return nil
}

// opening starts everything.
func (s *stage) opening(ctx context.Context) error {
	s.story.line("The egress plane: a host, a checker, two gateways and ten upstream proxies, all on this machine")
	s.story.chapter("1. Upstream proxies, a host, a checker, two gateways")
	for _, act := range []func(context.Context) error{s.prepare, s.startProxies, s.startPlane} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare finds an address for everything, and starts the targets.
func (s *stage) prepare(context.Context) (err error) {
	s.password = newPassword()
	s.admin = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if err := os.WriteFile(filepath.Join(s.dir, "password"), []byte(s.password), 0o600); err != nil {
		return err
	}
	addresses := [6]string{}
	for i := range addresses {
		if addresses[i], err = loopback.Free(); err != nil {
			return err
		}
	}
	s.grpc, s.http = addresses[0], addresses[1]
	for i := range s.gateways {
		s.gateways[i] = &gateway{name: fmt.Sprintf("gateway-%d", i+1), listen: addresses[2+2*i], admin: addresses[3+2*i]}
	}
	if s.conn, err = dialHost(s.grpc); err != nil {
		return err
	}
	s.pool = controlplanev1.NewPoolAdminClient(s.conn)
	return s.startTargets()
}

// startProxies starts the upstream proxies, and writes the files of the programs, which
// have what the proxies are verified with.
func (s *stage) startProxies(ctx context.Context) error {
	for _, p := range s.proxies {
		if err := s.startProxy(p); err != nil {
			return err
		}
	}
	for _, p := range s.proxies {
		if err := s.proxyReady(ctx, p); err != nil {
			return err
		}
	}
	s.story.tell("%d upstream proxies listen: %s; they ask for a password", len(s.proxies), kinds())
	return s.writeFiles()
}

// startPlane starts the host, the checker and the gateways, and waits until the proxies
// are shared out.
func (s *stage) startPlane(ctx context.Context) error {
	if err := s.startHost(ctx); err != nil {
		return err
	}
	doc, err := s.document()
	if err != nil {
		return err
	}
	reply, err := s.pool.PublishConfig(ctx, &controlplanev1.PublishConfigRequest{Yaml: doc})
	if err != nil {
		return fmt.Errorf("publication: %w", err)
	}
	s.story.tell("the host answers on %s (pid %d); revision %d of the configuration is published", s.grpc, s.host.PID(), reply.GetRevision())
	if err := s.startChecker(); err != nil {
		return err
	}
	for _, g := range s.gateways {
		if err := s.startGateway(g); err != nil {
			return err
		}
	}
	for _, g := range s.gateways {
		if err := s.gatewayReady(ctx, g); err != nil {
			return err
		}
	}
	if err := s.shared(ctx); err != nil {
		return err
	}
	s.story.tell("the checker found all of them well, and each gateway has some of each upstream")
	return nil
}

func kinds() string {
	var parts []string
	for _, u := range upstreams {
		parts = append(parts, fmt.Sprintf("%d %s", sizes[u], u))
	}
	return strings.Join(parts, ", ")
}

// shared waits until all proxies are checked and have an owner, and no gateway is without
// one of each upstream.
func (s *stage) shared(ctx context.Context) error {
	return s.until(ctx, 30*time.Second, "all proxies to be available and shared out", func(ctx context.Context) error {
		have, err := s.list(ctx)
		if err != nil {
			return err
		}
		owned := map[string]bool{}
		for _, p := range s.proxies {
			st := have[p.name]
			if st.GetState() != controlplanev1.ProxyStatus_STATE_AVAILABLE || st.GetOwnerWorkerId() == "" {
				return fmt.Errorf("%s is %s, its owner is %q, %s", p.name, st.GetState(), st.GetOwnerWorkerId(), st.GetLastError())
			}
			owned[st.GetOwnerWorkerId()+" "+p.upstream] = true
		}
		if len(owned) != len(s.gateways)*len(upstreams) {
			return fmt.Errorf("a gateway lacks an upstream: %v", owned)
		}
		return nil
	}, s.host)
}

// first sends one request for each way that there is, and then starts the load.
func (s *stage) first(ctx context.Context) error {
	c := s.clients[min(1, len(s.clients)-1)] // curl, if there is one
	for _, other := range s.clients {
		if other.name == "curl" {
			c = other
		}
	}
	s.story.chapter("2. Requests: " + c.name + " through each gateway and each kind of proxy")
	for _, g := range s.gateways {
		for _, u := range upstreams {
			for _, scheme := range []string{"http", "https"} {
				if c.secureOnly && scheme == "http" {
					continue
				}
				address := scheme + "://" + u + hostSuffix + "/"
				s.facts.asked++
				exit, err := c.send(ctx, g.listen, address)
				if err != nil {
					return fmt.Errorf("%s through %s to %s: %w", c.name, g.name, address, err)
				}
				p := s.byExit(exit)
				if p == nil || p.upstream != u {
					return fmt.Errorf("%s through %s to %s came from %s", c.name, g.name, address, exit)
				}
				s.facts.answered++
				s.story.tell("%s -x http://%s %-23s  comes from %s, by %s", c.name, g.listen, address, exit, p.name)
			}
		}
	}
	s.load = &load{gateways: s.gateways, admin: s.admin}
	sending, stopLoad := context.WithCancel(context.WithoutCancel(ctx))
	life, killLoad := context.WithCancel(context.WithoutCancel(ctx))
	s.stopLoad, s.killLoad = stopLoad, killLoad
	s.sending.Go(func() { s.load.run(sending, life, s.clients) })
	var names []string
	for _, c := range s.clients {
		names = append(names, c.name)
	}
	s.story.tell("from now on %s send requests all the time", strings.Join(names, ", "))
	return sleep(ctx, time.Second)
}

func (s *stage) byExit(exit string) *proxy {
	for _, p := range s.proxies {
		if p.target.exit == exit {
			return p
		}
	}
	return nil
}

// note remembers a kill, and when it was.
func (s *stage) note(what string, gateway bool) time.Time {
	now := time.Now()
	s.kills = append(s.kills, kill{what, now, gateway})
	return now
}

// killProxy kills an upstream proxy, and starts it again once the host knows.
func (s *stage) killProxy(ctx context.Context) error {
	s.story.chapter("3. An upstream proxy is killed")
	p := s.proxies[0]
	err := s.until(ctx, 20*time.Second, "a request through "+p.name, func(context.Context) error {
		if !p.target.busy() {
			return errors.New("none is under way")
		}
		return nil
	})
	if err != nil {
		return err
	}
	dead := s.note(p.name, false)
	p.child.Kill()
	s.story.tell("kill -9 %d: %s of upstream %s is gone", p.child.PID(), p.name, p.upstream)
	state := func(ctx context.Context, well bool) error {
		have, err := s.list(ctx)
		if err != nil {
			return err
		}
		if st := have[p.name]; (st.GetState() == controlplanev1.ProxyStatus_STATE_AVAILABLE) != well {
			return fmt.Errorf("it is %s: %s", st.GetState(), st.GetLastError())
		}
		return nil
	}
	if err := s.until(ctx, 20*time.Second, "the checker to find "+p.name+" dead", func(ctx context.Context) error { return state(ctx, false) }, s.host); err != nil {
		return err
	}
	s.facts.found = time.Since(dead)
	s.story.tell("the checker found it out after %s; the gateways had gone on with others at once", seconds(s.facts.found))
	if err := sleep(ctx, max(0, 1500*time.Millisecond-time.Since(dead))); err != nil {
		return err
	}
	if err := s.startProxy(p); err != nil {
		return err
	}
	if err := s.proxyReady(ctx, p); err != nil {
		return err
	}
	again := time.Now()
	if err := s.until(ctx, 30*time.Second, p.name+" to be available again", func(ctx context.Context) error { return state(ctx, true) }, s.host); err != nil {
		return err
	}
	s.facts.back = time.Since(again)
	s.story.tell("it was started again, and is available after %s", seconds(s.facts.back))
	return nil
}

// killGateway kills a gateway; its clients use the other one until it is back.
func (s *stage) killGateway(ctx context.Context) error {
	s.story.chapter("4. A gateway is killed")
	g := s.gateways[0]
	s.facts.gatewayDead = s.note(g.name, true)
	g.child.Kill()
	s.story.tell("kill -9 %d: %s is gone, and with it all that it had open", g.child.PID(), g.name)
	if err := sleep(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	some, failed := s.load.between(s.facts.gatewayDead.Add(time.Second), time.Now())
	s.story.tell("requests that began in the second after the first: %d, all by %s; failed: %d", len(some), s.gateways[1].name, failed)
	started := time.Now()
	if err := s.startGateway(g); err != nil {
		return err
	}
	if err := s.gatewayReady(ctx, g); err != nil {
		return err
	}
	s.facts.gatewayBack = time.Now()
	s.story.tell("started again, it is ready after %s: the same worker with the proxies that it had", seconds(s.facts.gatewayBack.Sub(started)))
	return sleep(ctx, time.Second)
}

// owners says who owns which proxy.
func (s *stage) owners(ctx context.Context) (map[string]string, error) {
	have, err := s.list(ctx)
	out := map[string]string{}
	for name, st := range have {
		out[name] = st.GetOwnerWorkerId()
	}
	return out, err
}

// killHost kills the host and starts it again on its data.
func (s *stage) killHost(ctx context.Context) (err error) {
	s.story.chapter("5. The host is killed; requests go on")
	if err := s.shared(ctx); err != nil {
		return err
	}
	if s.facts.ownersBefore, err = s.owners(ctx); err != nil {
		return err
	}
	s.facts.hostDead = s.note("the host", false)
	s.host.Kill()
	s.story.tell("kill -9 %d: there is no control plane", s.host.PID())
	if err := sleep(ctx, hostAway); err != nil {
		return err
	}
	some, failed := s.load.between(s.facts.hostDead, time.Now())
	s.story.tell("%d requests meanwhile, %d failed: a gateway asks nobody on a request's way", len(some), failed)
	if err := s.startHost(ctx); err != nil {
		return err
	}
	s.facts.hostBack = time.Now()
	s.story.tell("the host is back on its data (pid %d)", s.host.PID())
	if err := s.reconnected(ctx); err != nil {
		return err
	}
	s.facts.connectedAfter = time.Since(s.facts.hostBack)
	if s.facts.ownersAfter, err = s.owners(ctx); err != nil {
		return err
	}
	s.story.tell("both gateways are connected, and own what they owned")
	return nil
}

// reconnected waits until both gateways have said something to the host since it is back.
func (s *stage) reconnected(ctx context.Context) error {
	return s.until(ctx, 20*time.Second, "both gateways to be connected", func(ctx context.Context) error {
		reply, err := s.pool.ListWorkers(ctx, &controlplanev1.ListWorkersRequest{})
		if err != nil {
			return err
		}
		for _, w := range reply.GetWorkers() {
			// What says so has to have come since the host is back.
			renewed := w.GetSessionExpiresAt().AsTime().Add(-sessionTTL).After(s.facts.hostBack)
			if !w.GetConnected() || !renewed || w.GetFenced() || w.GetAcknowledgedVersion() == 0 {
				return fmt.Errorf("%s is not", w.GetWorkerId())
			}
		}
		if len(reply.GetWorkers()) != len(s.gateways) {
			return fmt.Errorf("there are %d workers", len(reply.GetWorkers()))
		}
		return nil
	}, s.host)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// of is the proxies of an upstream that were not given away.
func (s *stage) of(upstream string) []*proxy {
	return slices.DeleteFunc(slices.Clone(s.proxies), func(p *proxy) bool { return p.upstream != upstream })
}
