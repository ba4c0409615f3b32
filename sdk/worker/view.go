package worker

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
	"github.com/dodona-project/dodona/sdk/worker/digest"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// never is an instant that does not come.
const never = int64(math.MaxInt64)

// View is a snapshot as requests use it. It is immutable, and safe for concurrent use;
// what changes with each request is on the slots, which outlive it. Instants in it are
// nanoseconds of the worker's monotonic clock.
type View struct {
	content  *content
	received int64
	until    int64
	routings []*Routing
	byName   map[string]*Routing
	proxies  map[string]*Proxy
	skipped  []error
}

// Version is the snapshot's.
func (v *View) Version() uint64 { return v.content.version }

// Epoch is the ownership epoch of the snapshot.
func (v *View) Epoch() uint64 { return v.content.epoch }

// Proxies returns how many proxies of the snapshot can be used.
func (v *View) Proxies() int { return len(v.proxies) }

// Proxy returns a proxy by its id; nil = it is not in the View.
func (v *View) Proxy(id string) *Proxy { return v.proxies[id] }

// Skipped says which proxies of the snapshot cannot be used, and why: a proxy without
// its credential is left out, and the others are not.
func (v *View) Skipped() []error { return v.skipped }

// Proxy is an upstream proxy in a View.
type Proxy struct {
	// What a pick reads comes first, to be in one line of memory.
	slot     *slot
	until    int64  // no new use from then on
	epoch    uint64 // of its assignment
	capacity uint32

	ID                string
	Upstream          string
	CredentialVersion uint32
	Via               upstream.Proxy // how to get there; it has the password
	Labels            map[string]string

	health controlplanev1.Health
	denied []string
}

// Routing says for which requests, and how, proxies are chosen.
type Routing struct {
	Name          string
	OnUnavailable controlplanev1.OnUnavailable
	WaitTimeout   time.Duration
	Resolve       controlplanev1.Resolve // REMOTE or PINNED
	Stickiness    *controlplanev1.Stickiness
	Policy        *target.Policy

	view    *View
	hosts   target.Hosts
	ports   []uint32
	clients []string
	methods []string
	hash    *donav1.HashPolicy // what a key is made of; nil = the plan has no keys

	healthy, suspect tier // SUSPECT proxies are used only when no other can be
}

// tier is what a pick may choose from.
type tier struct {
	proxies []*Proxy
	pickers []*plan.Picker // with a cursor each, and else the same; a power of two of them
	ordered bool           // a scan begins with the first
}

// Request is what a routing is found by, and a key made of.
type Request struct {
	Target   target.Target
	Method   string // CONNECT for a tunnel
	Client   string // the authenticated client's name, empty for none
	ClientIP string
	Sticky   string                   // what belongs together, if the client says so
	Header   func(name string) string // nil = there are none
}

// Route returns the first routing that matches, nil when none does.
func (v *View) Route(q *Request) *Routing {
	for _, r := range v.routings {
		if r.matches(q) {
			return r
		}
	}
	return nil
}

func (r *Routing) matches(q *Request) bool {
	return (len(r.ports) == 0 || slices.Contains(r.ports, uint32(q.Target.Port))) &&
		(len(r.clients) == 0 || slices.Contains(r.clients, q.Client)) &&
		(len(r.methods) == 0 || slices.Contains(r.methods, q.Method)) &&
		(r.hosts.Empty() || r.hosts.Has(q.Target))
}

// Key is what a consistent hash chooses by: requests with the same key go to the same
// proxy. 0 = there is none.
func (r *Routing) Key(q *Request) uint64 {
	if r.hash == nil {
		return 0
	}
	text := ""
	switch r.hash.GetSource() {
	case donav1.HashPolicy_SOURCE_UNIT:
		text = q.Sticky
	case donav1.HashPolicy_SOURCE_HEADER, donav1.HashPolicy_SOURCE_ATTRIBUTE:
		if q.Header != nil {
			text = q.Header(r.hash.GetName())
		}
	case donav1.HashPolicy_SOURCE_CLIENT_IP:
		text = q.ClientIP
	case donav1.HashPolicy_SOURCE_CLIENT_ID:
		text = q.Client
	case donav1.HashPolicy_SOURCE_TARGET_HOST:
		if text = q.Target.Name; text == "" {
			text = q.Target.Host()
		}
	}
	if text == "" {
		return 0
	}
	return plan.Key(text)
}

// compile makes a View of a snapshot that was received at an instant. An error says why
// the snapshot is refused as a whole: something in it that this worker does not know, or
// that would let requests where they must not go.
func (w *Worker) compile(c *content, received int64) (*View, error) {
	v := &View{content: c, received: received, until: received + int64(c.validity),
		byName: make(map[string]*Routing, len(c.routings)), proxies: make(map[string]*Proxy, len(c.proxies))}
	for _, id := range slices.Sorted(maps.Keys(c.proxies)) {
		p, err := w.proxy(c, c.proxies[id], received)
		switch {
		case errors.Is(err, errSkip):
			v.skipped = append(v.skipped, err)
		case err != nil:
			return nil, fmt.Errorf("proxy %.64q: %w", id, err)
		default:
			v.proxies[id] = p
		}
	}
	ordered := make([]*Proxy, 0, len(v.proxies))
	for _, id := range slices.Sorted(maps.Keys(v.proxies)) {
		ordered = append(ordered, v.proxies[id])
	}
	for _, m := range c.routings {
		r, err := w.routing(m, ordered)
		if err == nil && v.byName[m.GetName()] != nil {
			err = errors.New("it is there twice")
		}
		if err != nil {
			return nil, fmt.Errorf("routing %.64q: %w", m.GetName(), err)
		}
		r.view = v
		v.routings, v.byName[r.Name] = append(v.routings, r), r
	}
	return v, nil
}

// errSkip leaves out one proxy.
var errSkip = errors.New("it is left out")

func known[E ~int32](value E, names map[int32]string) bool {
	_, ok := names[int32(value)]
	return ok
}

func (w *Worker) proxy(c *content, m *controlplanev1.Proxy, received int64) (*Proxy, error) {
	switch {
	case m.GetProxyId() == "":
		return nil, errors.New("proxy_id is empty")
	case m.GetProtocol() == 0 || !known(m.GetProtocol(), controlplanev1.Proxy_Protocol_name):
		return nil, fmt.Errorf("protocol is %d: allowed are PROTOCOL_HTTP, PROTOCOL_HTTPS and PROTOCOL_SOCKS5", m.GetProtocol())
	case !known(m.GetHealth(), controlplanev1.Health_name):
		return nil, fmt.Errorf("health is %d, which this worker does not know", m.GetHealth())
	}
	until := never
	if t := m.GetUsableUntil(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, fmt.Errorf("usable_until: %w", err)
		}
		until = received + int64(t.AsTime().Sub(c.generated))
	}
	var credential *controlplanev1.Credential
	if m.GetSecretRef() != "" {
		id := digest.CredentialID(m.GetSecretRef(), m.GetCredentialVersion())
		if credential = c.credentials[id]; credential == nil {
			return nil, fmt.Errorf("proxy %.64q: %w: its credential %.64q is not in the snapshot", m.GetProxyId(), errSkip, id)
		}
	}
	via, err := upstream.Of(m, credential)
	if err != nil {
		return nil, fmt.Errorf("proxy %.64q: %w: %w", m.GetProxyId(), errSkip, err)
	}
	return &Proxy{
		ID: m.GetProxyId(), Upstream: m.GetUpstream(), CredentialVersion: m.GetCredentialVersion(), Via: via, Labels: m.GetLabels(),
		slot: w.slots.get(m.GetProxyId()), epoch: m.GetAssignmentEpoch(), capacity: m.GetCapacity(), until: until,
		health: m.GetHealth(), denied: m.GetDeniedRoutings(),
	}, nil
}

func (w *Worker) routing(m *controlplanev1.Routing, proxies []*Proxy) (*Routing, error) {
	r := &Routing{
		Name: m.GetName(), OnUnavailable: m.GetOnUnavailable(), WaitTimeout: m.GetWaitTimeout().AsDuration(), Resolve: m.GetResolve(), Stickiness: m.GetStickiness(),
		ports: m.GetMatch().GetPorts(), clients: m.GetMatch().GetClients(), methods: m.GetMatch().GetMethods(),
	}
	switch {
	case r.Name == "":
		return nil, errors.New("it has no name")
	case r.OnUnavailable == 0 || !known(r.OnUnavailable, controlplanev1.OnUnavailable_name):
		return nil, fmt.Errorf("on_unavailable is %d: allowed are FAIL, WAIT and DIRECT", r.OnUnavailable)
	case !known(r.Resolve, controlplanev1.Resolve_name):
		return nil, fmt.Errorf("resolve is %d: allowed are REMOTE and PINNED", r.Resolve)
	case !known(r.Stickiness.GetMode(), controlplanev1.Stickiness_Mode_name):
		return nil, fmt.Errorf("stickiness.mode is %d, which this worker does not know", r.Stickiness.GetMode())
	}
	if r.Resolve == 0 {
		r.Resolve = controlplanev1.Resolve_RESOLVE_REMOTE
	}
	var err error
	if r.Policy, err = target.Compile(m.GetTargetPolicy(), w.config.Own); err != nil {
		return nil, fmt.Errorf("target_policy: %w", err)
	}
	if r.hosts, err = target.NewHosts("match.hosts", m.GetMatch().GetHosts()); err != nil {
		return nil, err
	}
	p := m.GetPlan()
	if err := plan.Check(p); err != nil {
		return nil, err
	}
	if p == nil {
		p = byWeight(m.GetUpstreams())
	}
	if p.GetAlgorithm() == donav1.Algorithm_ALGORITHM_CONSISTENT_HASH {
		r.hash = p.GetHash()
	}
	for _, proxy := range proxies {
		if !slices.ContainsFunc(m.GetUpstreams(), func(u *controlplanev1.UpstreamRef) bool { return u.GetName() == proxy.Upstream }) ||
			slices.Contains(proxy.denied, r.Name) || !hasShare(p, proxy) {
			continue
		}
		switch proxy.health {
		case controlplanev1.Health_HEALTH_AVAILABLE:
			r.healthy.proxies = append(r.healthy.proxies, proxy)
		case controlplanev1.Health_HEALTH_SUSPECT:
			r.suspect.proxies = append(r.suspect.proxies, proxy)
		}
	}
	return r, errors.Join(r.healthy.build(p), r.suspect.build(p))
}

// byWeight is the plan of a routing that has none: in turn, by the weights of its
// upstreams if there are any.
func byWeight(upstreams []*controlplanev1.UpstreamRef) *donav1.Plan {
	p := &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}
	for _, u := range upstreams {
		if u.GetWeight() > 0 {
			if p.GroupWeights == nil {
				p.GroupWeights = map[string]uint32{}
			}
			p.GroupWeights[u.GetName()] = u.GetWeight()
		}
	}
	return p
}

// hasShare reports whether a plan lets a proxy be picked at all.
func hasShare(p *donav1.Plan, proxy *Proxy) bool {
	weight, named := p.GetWeights()[proxy.ID]
	if !named {
		weight = proxy.capacity
	}
	return weight > 0 && proxy.capacity > 0 && (len(p.GetGroupWeights()) == 0 || p.GetGroupWeights()[proxy.Upstream] > 0)
}

// maxPickers bounds the pickers of a tier.
const maxPickers = 8

// build makes the pickers. A plan that keeps a position has several of them, so that
// requests on several cores do not write to one line of memory.
func (t *tier) build(p *donav1.Plan) error {
	if len(t.proxies) == 0 {
		return nil
	}
	pickers := 1
	switch p.GetAlgorithm() {
	case donav1.Algorithm_ALGORITHM_ROUND_ROBIN:
		pickers = cursors()
	case donav1.Algorithm_ALGORITHM_TIERED:
		pickers, t.ordered = cursors(), true
		tiers := p.GetGroupTiers()
		slices.SortStableFunc(t.proxies, func(a, b *Proxy) int {
			if d := int64(tiers[a.Upstream]) - int64(tiers[b.Upstream]); d != 0 {
				return int(d)
			}
			return strings.Compare(a.ID, b.ID)
		})
	}
	candidates := make([]plan.Candidate, len(t.proxies))
	for i, proxy := range t.proxies {
		candidates[i] = plan.Candidate{ID: proxy.ID, Group: proxy.Upstream, Weight: proxy.capacity, Load: &proxy.slot.load}
	}
	for range pickers {
		k, err := plan.New(p, candidates, rand.Uint64())
		if err != nil {
			return err
		}
		t.pickers = append(t.pickers, k)
	}
	return nil
}

// cursors is the number of cores as a power of two, within maxPickers.
func cursors() int {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < maxPickers {
		n *= 2
	}
	return n
}
