package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool/health"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/store"
)

// Pool implements check.Reducer: proxies are checked, and what that comes to is
// decided by host/pool/health at each observation. Each level of an upstream is a
// scope, with its own schedule; the scopes of an upstream share its bound on checks
// under way.
var _ check.Reducer = (*Pool)(nil)

// CheckPlane is the plane's name in host/check.
const CheckPlane = "pool"

// egressTimes is how many intervals of BASIC checks one of EGRESS checks has.
const egressTimes = 4

// Checks is the broker of checks.
type Checks interface {
	// Hurry has tasks of a scope done at once.
	Hurry(tx store.Tx, plane, scope string, ids []string) error
	// Again has them done at once, although they were done just now.
	Again(tx store.Tx, plane, scope string, ids []string) error
	// Braked reports whether one checker's word is not enough in a scope.
	Braked(tx store.ReadTx, plane, scope string) (bool, error)
}

const (
	basicScope  = "basic"
	egressScope = "egress"
	targetScope = "target"
)

// scopeOf is the scope of a level of an upstream. A colon is in no name.
func scopeOf(upstream, level string) string { return upstream + ":" + level }

// targetID is the task of a target of a routing through a proxy, and its lane: the
// proxies of an upstream are compared by one target at a time, since the target may be
// what is down.
func targetID(proxy, routing, url string) (id, lane string) {
	sum := sha256.Sum256([]byte(routing + "\x00" + url))
	lane = hex.EncodeToString(sum[:8])
	return proxy + ":" + lane, lane
}

// targetsOf are the targets that the proxies of an upstream are checked with, by routing.
func (have *published) targetsOf(upstream string) (all []routed) {
	for i := range have.config.Routings {
		r := &have.config.Routings[i]
		if !r.Enabled || !slices.ContainsFunc(r.Upstreams, func(ref poolconfig.Ref) bool { return ref.Name == upstream }) {
			continue
		}
		for _, t := range r.Targets {
			all = append(all, routed{r.Name, t})
		}
	}
	return all
}

// routed is a target of a routing.
type routed struct {
	routing string
	poolconfig.Target
}

// Scopes lists the levels of the enabled upstreams that are checked.
func (p *Pool) Scopes(tx store.ReadTx) (scopes []string, err error) {
	have, err := p.lookUp(tx)
	if err != nil || have == nil {
		return nil, err
	}
	for i := range have.config.Upstreams {
		u := &have.config.Upstreams[i]
		for _, level := range []string{basicScope, egressScope, targetScope} {
			if have.checks(u, level) {
				scopes = append(scopes, scopeOf(u.Name, level))
			}
		}
	}
	return scopes, nil
}

// checks reports whether an upstream is checked at a level.
func (have *published) checks(u *poolconfig.Upstream, level string) bool {
	switch {
	case !u.Enabled:
		return false
	case level == basicScope:
		return u.Check.Basic
	case level == egressScope:
		return u.Check.EgressURL != ""
	case level == targetScope:
		return len(have.targetsOf(u.Name)) > 0
	}
	return false
}

// upstreamOf is a scope's upstream and level; nil when it is not checked.
func (p *Pool) upstreamOf(tx store.ReadTx, scope string) (have *published, u *poolconfig.Upstream, level string, err error) {
	name, level, _ := strings.Cut(scope, ":")
	if have, err = p.lookUp(tx); err != nil || have == nil {
		return nil, nil, "", err
	}
	u, ok := have.config.Upstream(name)
	if !ok || !have.checks(u, level) {
		return have, nil, level, nil
	}
	return have, u, level, nil
}

// Scope says how a level of an upstream is checked. Its version moves with the
// configuration, and when proxies come and go.
func (p *Pool) Scope(tx store.ReadTx, scope string) (check.Scope, error) {
	_, u, level, err := p.upstreamOf(tx, scope)
	if err != nil || u == nil {
		return check.Scope{}, err
	}
	moved, err := tx.GetMany(configKey, listedKey(u.Name))
	if err != nil {
		return check.Scope{}, err
	}
	s := check.Scope{
		Version: max(moved[0].Version, moved[1].Version), Probe: u.Check.Probe, Cap: u.Name, Most: int(u.Check.MaxInFlight),
		Level: map[string]controlplanev1.CheckLevel{basicScope: health.Basic, egressScope: health.Egress, targetScope: health.Target}[level],
	}
	if len(u.Check.ProbeConfig) > 0 {
		s.Config, err = structpb.NewStruct(u.Check.ProbeConfig)
	}
	return s, err
}

// checked reports whether a proxy of this state is checked.
func checked(s controlplanev1.ProxyStatus_State) bool {
	return s != ownership.Extracted && s != ownership.Expired
}

// Targets lists the checks of a scope.
func (p *Pool) Targets(tx store.ReadTx, scope string) (all []check.Target, err error) {
	have, u, level, err := p.upstreamOf(tx, scope)
	if err != nil || u == nil {
		return nil, err
	}
	entries, err := tx.Scan(proxiesIndex(u.Name), 0, store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	proxies, err := loadProxies(tx, entries)
	if err != nil {
		return nil, err
	}
	targets := have.targetsOf(u.Name)
	for _, s := range proxies {
		if !checked(s.State) {
			continue
		}
		t := check.Target{ID: s.Id, Proxy: s.Id, Address: net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))}
		switch level {
		case basicScope:
			all = append(all, t)
		case egressScope:
			t.URL, t.Every = u.Check.EgressURL, egressTimes*p.o.CheckInterval
			all = append(all, t)
		case targetScope:
			for _, to := range targets {
				t.ID, t.Lane = targetID(s.Id, to.routing, to.URL)
				t.Routing, t.URL, t.Every = to.routing, to.URL, to.Interval
				all = append(all, t)
			}
		}
	}
	slices.SortFunc(all, func(a, b check.Target) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Prepare adds to a task what it takes to check its proxy, and the credential that is
// good at this moment.
func (p *Pool) Prepare(tx store.ReadTx, t *check.Task) (check.Ready, error) {
	have, u, _, err := p.upstreamOf(tx, t.Scope)
	if err != nil {
		return check.Later, err
	}
	s, err := loadProxy(tx, t.Proxy.GetProxyId())
	if err != nil {
		return check.Later, err
	}
	if u == nil || s == nil || !checked(s.State) || s.Upstream != u.Name {
		return check.Gone, nil
	}
	if t.Level == health.Target {
		targets := have.targetsOf(u.Name)
		i := slices.IndexFunc(targets, func(to routed) bool { return to.routing == t.Routing && to.URL == t.URL })
		if i < 0 {
			return check.Gone, nil
		}
		t.ExpectStatus = targets[i].ExpectStatus
	}
	version, err := credentialVersion(tx, s.SecretRef)
	if err != nil {
		return check.Later, err
	}
	c, ok := p.credential(s.SecretRef, version)
	if !ok {
		return check.Later, nil // another host may have it
	}
	t.Proxy = message(s, u, version)
	if s.SecretRef != "" {
		t.Credential = &controlplanev1.Credential{SecretRef: s.SecretRef, CredentialVersion: version, Username: c.Username(), Password: c.Password()}
	}
	return check.Prepared, nil
}

// Observe takes an observation of a proxy over.
func (p *Pool) Observe(tx store.Tx, o check.Sighting) (check.Effect, error) {
	have, u, _, err := p.upstreamOf(tx, o.Task.Scope)
	if err != nil {
		return check.Effect{}, err
	}
	proxy, err := loadProxy(tx, o.Task.ProxyId)
	if err != nil {
		return check.Effect{}, err
	}
	if u == nil || proxy == nil || !checked(proxy.State) {
		return check.Effect{Gone: true}, nil
	}
	before := health.Proxy{State: proxy.State, Health: &statev1.ProxyHealth{}}
	if err := loadSoft(tx, healthKey(proxy.Id), before.Health); err != nil {
		return check.Effect{}, err
	}
	level := cmp.Or(o.Task.Level, health.Basic)
	var enabled []controlplanev1.CheckLevel
	if u.Check.Basic {
		enabled = append(enabled, health.Basic)
	}
	if u.Check.EgressURL != "" {
		enabled = append(enabled, health.Egress)
	}
	seen := health.Seen{
		Level: level, Counts: o.Counts, Good: o.Good, Run: o.Run, AtMs: o.AtMs, Reason: o.Reason,
		Believed: o.Counts && !o.Good && o.Word.Believed(o.Rules, o.Run),
	}
	if level == health.Target {
		seen.Routing, seen.URL = o.Task.Routing, o.Task.Url
	}
	after := health.Reduce(o.Rules, enabled, before, seen)
	effect := check.Effect{Wait: health.Wait(o.Rules, after, level, o.Run)}
	if !proto.Equal(before.Health, after.Health) {
		if err := store.Save(tx, healthKey(proxy.Id), after.Health); err != nil {
			return effect, err
		}
	}
	effect.Bad = health.Bad(after, seen)
	if after.State != before.State {
		effect.Sooner = siblings(have, u, proxy.Id, after.State)
		if after.State == ownership.Available {
			effect.Well = vital(u.Name, proxy.Id)
		}
	}
	return effect, p.found(tx, have, proxy, after, o.EgressIP, o.AtMs)
}

// found writes what is known of a proxy now, where that is something else than before:
// every change of a proxy is looked at by all hosts.
func (p *Pool) found(tx store.Tx, have *published, proxy *statev1.ProxyState, h health.Proxy, egressIP string, now int64) error {
	targets := have.targetsOf(proxy.Upstream)
	denied := health.Denied(h.Health, func(routing, url string) bool {
		return slices.ContainsFunc(targets, func(t routed) bool { return t.routing == routing && t.URL == url })
	})
	if h.State == proxy.State && equalStrings(denied, proxy.DeniedRoutings) && (egressIP == "" || egressIP == proxy.EgressIp) || h.State == ownership.New {
		return nil
	}
	return p.Find(tx, proxy.Id, ownership.Finding{State: h.State, EgressIP: egressIP, LastError: h.Health.LastError, Denied: denied, AtMs: now})
}

// siblings are the other checks of a proxy that matter once its state is another one:
// those that bring it back, or, when it is available, what it may be used for.
func siblings(have *published, u *poolconfig.Upstream, id string, state controlplanev1.ProxyStatus_State) (tasks []string) {
	if state == ownership.Available {
		for _, t := range have.targetsOf(u.Name) {
			task, _ := targetID(id, t.routing, t.URL)
			tasks = append(tasks, scopeOf(u.Name, targetScope)+"/"+task)
		}
		return tasks
	}
	return vital(u.Name, id)
}

// vital are the checks of a proxy that its state comes from.
func vital(upstream, id string) []string {
	return []string{scopeOf(upstream, basicScope) + "/" + id, scopeOf(upstream, egressScope) + "/" + id}
}

// doubtAfter is how many of a proxy's uses in one batch have to fail, and none succeed,
// for it to be suspect.
const doubtAfter = 3

// hear takes the outcomes of a worker as hints: a proxy that could not be used is
// checked soon, and suspect when that was so every time. A worker that could use no
// proxy at all says more about itself.
func (p *Pool) hear(tx store.Tx, worker string, outcomes []*controlplanev1.Outcome) error {
	if p.o.Checks == nil {
		return nil
	}
	bad, good := map[string]int{}, map[string]bool{}
	for _, o := range outcomes {
		switch {
		case o.Success || o.Stage == controlplanev1.Outcome_STAGE_TUNNEL || o.Stage == controlplanev1.Outcome_STAGE_RESPONSE_HEADERS:
			good[o.ProxyId] = good[o.ProxyId] || o.Success
		case o.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_CANCELED && o.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_POLICY:
			bad[o.ProxyId]++
		}
	}
	anyGood := false
	for _, g := range good {
		anyGood = anyGood || g
	}
	entries := make([]store.Entry, 0, len(bad))
	for id := range bad {
		if id != "" && len(id) < store.MaxKeyLen/2 {
			entries = append(entries, store.Entry{Member: id})
		}
	}
	slices.SortFunc(entries, func(a, b store.Entry) int { return cmp.Compare(a.Member, b.Member) })
	have, err := p.lookUp(tx)
	if err != nil || have == nil || len(entries) == 0 {
		return err
	}
	proxies, err := loadProxies(tx, entries)
	if err != nil {
		return err
	}
	soon := map[string][]string{}
	for _, proxy := range proxies {
		if proxy.Owner != worker {
			continue
		}
		soon[proxy.Upstream] = append(soon[proxy.Upstream], proxy.Id)
		if !anyGood || good[proxy.Id] || bad[proxy.Id] < doubtAfter || proxy.State != ownership.Available {
			continue
		}
		if err := p.doubt(tx, have, proxy); err != nil {
			return err
		}
	}
	for upstream, ids := range soon {
		if err := p.o.Checks.Hurry(tx, CheckPlane, scopeOf(upstream, basicScope), ids); err != nil {
			return err
		}
	}
	return nil
}

// doubt makes an available proxy suspect, unless the brake of its upstream is on.
func (p *Pool) doubt(tx store.Tx, have *published, proxy *statev1.ProxyState) error {
	u, ok := have.config.Upstream(proxy.Upstream)
	if !ok || !have.checks(u, basicScope) {
		return nil // nothing would bring it back
	}
	braked, err := p.o.Checks.Braked(tx, CheckPlane, scopeOf(proxy.Upstream, basicScope))
	if err != nil || braked {
		return err
	}
	before := health.Proxy{State: proxy.State, Health: &statev1.ProxyHealth{}}
	if err := loadSoft(tx, healthKey(proxy.Id), before.Health); err != nil {
		return err
	}
	after := health.Doubt(before)
	after.Health.LastError = "a worker could not use it"
	if err := store.Save(tx, healthKey(proxy.Id), after.Health); err != nil {
		return err
	}
	return p.found(tx, have, proxy, after, "", tx.Now().UnixMilli())
}

// braked reports whether a brake of an upstream is on.
func (p *Pool) braked(tx store.ReadTx, upstream string) (on bool, err error) {
	if p.o.Checks == nil {
		return false, nil
	}
	for _, level := range []string{basicScope, egressScope, targetScope} {
		is, failed := p.o.Checks.Braked(tx, CheckPlane, scopeOf(upstream, level))
		if failed != nil && err == nil {
			err = failed // go on: the rest is fetched in the same round trip
		}
		on = on || is
	}
	return on, err
}

// checkInterval is the usual one between two BASIC checks.
const checkInterval = 30 * time.Second
