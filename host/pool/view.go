package pool

import (
	"context"
	"slices"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// view is what a worker should have, as of one revision.
type view struct {
	snapshot *controlplanev1.WorkerSnapshot // without its version
	validMs  int64
	validity time.Duration
	pending  bool // drains wait for a snapshot
	lacking  bool // proxies are left out whose credentials this host does not have
}

// build reads what a worker should have. Refusals: Precondition when the session is
// not the worker's current one, Aborted when the stream is not that session's.
func (p *Pool) build(ctx context.Context, worker, session, stream string) (v *view, err error) {
	err = p.o.Store.View(ctx, func(tx store.ReadTx) error {
		c, have, err := p.current(tx, worker, session)
		if err != nil {
			return err
		}
		if err := ownership.Streams(c.sent, stream); err != nil {
			return err
		}
		v, err = p.viewOf(tx, c, have)
		return err
	})
	return v, err
}

func (p *Pool) viewOf(tx store.ReadTx, c *crew, have *published) (*view, error) {
	epoch, err := readEpoch(tx)
	if err != nil {
		return nil, err
	}
	now := tx.Now()
	valid := now.Add(have.times.Validity)
	v := &view{validMs: valid.UnixMilli(), validity: have.times.Validity, snapshot: &controlplanev1.WorkerSnapshot{
		OwnershipEpoch: epoch, ClusterId: have.config.Cluster.ID,
		GeneratedAt: timestamppb.New(now), ValidUntil: timestamppb.New(valid),
	}}
	draining := map[string]bool{}
	for _, t := range c.drains.Tickets {
		draining[t.ProxyId] = true
		v.pending = v.pending || ownership.StateOf(t) == ownership.Pending
	}
	entries, err := tx.Scan(ownedIndex(c.id), 0, 0, 0)
	if err != nil {
		return nil, err
	}
	proxies, err := loadProxies(tx, entries)
	if err != nil {
		return nil, err
	}
	proxies = slices.DeleteFunc(proxies, func(s *statev1.ProxyState) bool {
		return !ownership.Visible(s, c.id, draining[s.Id], now.UnixMilli())
	})
	if err := p.fill(tx, v, have, proxies); err != nil {
		return nil, err
	}
	if v.snapshot.Routings, err = p.routings(tx, have, v.snapshot.Proxies); err != nil {
		return nil, err
	}
	sum := digest.OfSnapshot(v.snapshot)
	v.snapshot.Checksum = sum[:]
	return v, nil
}

// fill adds proxies and their credentials to a view. Proxies whose credentials this
// host does not have are left out: nobody could use them.
func (p *Pool) fill(tx store.ReadTx, v *view, have *published, proxies []*statev1.ProxyState) error {
	snapshot := v.snapshot
	keys := map[string]bool{}
	for _, s := range proxies {
		if s.SecretRef != "" {
			keys[credentialKey(s.SecretRef)] = true
		}
	}
	var all []string
	for key := range keys {
		all = append(all, key)
	}
	if _, err := tx.GetMany(all...); err != nil {
		return err
	}
	type held struct {
		message *controlplanev1.Credential
		version uint32
		lacking bool
	}
	known := map[string]held{}
	for _, s := range proxies {
		h, seen := known[s.SecretRef]
		if !seen {
			version, err := credentialVersion(tx, s.SecretRef)
			if err != nil {
				return err
			}
			c, ok := p.credential(s.SecretRef, version)
			h = held{version: version, lacking: !ok}
			if ok && s.SecretRef != "" {
				h.message = &controlplanev1.Credential{SecretRef: s.SecretRef, CredentialVersion: version, Username: c.Username(), Password: c.Password()}
				snapshot.Credentials = append(snapshot.Credentials, h.message)
			}
			known[s.SecretRef] = h
		}
		if h.lacking {
			v.lacking = true
			continue
		}
		u, _ := have.config.Upstream(s.Upstream)
		snapshot.Proxies = append(snapshot.Proxies, message(s, u, h.version))
	}
	slices.SortFunc(snapshot.Proxies, func(a, b *controlplanev1.Proxy) int { return strings.Compare(a.ProxyId, b.ProxyId) })
	slices.SortFunc(snapshot.Credentials, func(a, b *controlplanev1.Credential) int { return strings.Compare(a.SecretRef, b.SecretRef) })
	return nil
}

// routings are those that are switched on, in their order, with the upstreams that
// are and their plans.
func (p *Pool) routings(tx store.ReadTx, have *published, proxies []*controlplanev1.Proxy) ([]*controlplanev1.Routing, error) {
	var keys []string
	for i := range have.config.Routings {
		keys = append(keys, planKey(have.config.Routings[i].Name))
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return nil, err
	}
	var out []*controlplanev1.Routing
	for i := range have.config.Routings {
		r := &have.config.Routings[i]
		if !r.Enabled {
			continue
		}
		m := r.Message()
		m.Upstreams = slices.DeleteFunc(m.Upstreams, func(ref *controlplanev1.UpstreamRef) bool {
			u, ok := have.config.Upstream(ref.Name)
			return !ok || !u.Enabled
		})
		state := new(statev1.PlanState)
		if err := loadSoft(tx, planKey(r.Name), state); err != nil {
			return nil, err
		}
		m.Plan = planFor(r, state.Plan, m.Upstreams, proxies)
		out = append(out, m)
	}
	return out, nil
}

// planFor is a routing's plan as one worker executes it: of what it says only what is
// about this worker's proxies, and the shares of the upstreams, where the strategy
// gave none. Without a plan of its strategy a routing has round robin.
func planFor(r *poolconfig.Routing, plan *donav1.Plan, refs []*controlplanev1.UpstreamRef, proxies []*controlplanev1.Proxy) *donav1.Plan {
	if plan == nil || plan.Strategy != r.Strategy {
		plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}
	}
	plan = proto.CloneOf(plan)
	groups := map[string]bool{}
	for _, ref := range refs {
		groups[ref.Name] = true
	}
	mine, present := map[string]bool{}, map[string]bool{}
	for _, x := range proxies {
		if groups[x.Upstream] {
			mine[x.ProxyId], present[x.Upstream] = true, true
		}
	}
	any := false
	for id, w := range plan.Weights {
		if !mine[id] {
			delete(plan.Weights, id)
		}
		any = any || mine[id] && w > 0
	}
	if !any && len(plan.Weights) == len(mine) {
		plan.Weights = nil // it left this worker nobody
	}
	absent := func(group string, _ uint32) bool { return !present[group] }
	deleteFunc(plan.GroupTiers, absent)
	if len(plan.GroupWeights) == 0 {
		plan.GroupWeights = shares(refs)
	}
	deleteFunc(plan.GroupWeights, absent)
	if !slices.ContainsFunc(values(plan.GroupWeights), func(w uint32) bool { return w > 0 }) {
		plan.GroupWeights = nil
	}
	return plan
}

// shares are the upstreams' parts of a routing; none where they are all alike.
func shares(refs []*controlplanev1.UpstreamRef) map[string]uint32 {
	alike := true
	out := map[string]uint32{}
	for _, ref := range refs {
		out[ref.Name] = ref.Weight
		alike = alike && ref.Weight == refs[0].Weight
	}
	if alike {
		return nil
	}
	return out
}

func deleteFunc(m map[string]uint32, del func(string, uint32) bool) {
	for k, v := range m {
		if del(k, v) {
			delete(m, k)
		}
	}
}

func values(m map[string]uint32) (out []uint32) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}
