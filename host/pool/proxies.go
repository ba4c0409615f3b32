package pool

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/proxylist"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

const upstreamsIndex = "pool/upstreams" // those that ever had a proxy

// Listed is a proxy of a list.
type Listed struct {
	ID        string // empty = [ProxyID]; of one with a username, which the id must not tell, secret.Key.ProxyID
	Protocol  controlplanev1.Proxy_Protocol
	Host      string
	Port      uint16
	SecretRef string // empty = it takes no credentials
}

// ProxyID names a proxy of an upstream: the same one of every list and on every host.
func ProxyID(upstream string, l Listed) string {
	if l.ID != "" {
		return l.ID
	}
	h := sha256.New()
	for _, part := range []string{upstream, strconv.Itoa(int(l.Protocol)), l.Host, strconv.Itoa(int(l.Port))} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Import adds the proxies of a list to an upstream, or makes those that are there last
// longer. Lines that do not hold are told by number, and the others are imported.
// Refusals: Invalid, NotFound, Exhausted, Unavailable.
func (p *Pool) Import(ctx context.Context, actor string, req *controlplanev1.ImportProxiesRequest) (*controlplanev1.ImportProxiesResponse, error) {
	if err := refusal.Check("upstream", limits.Name(req.Upstream)); err != nil {
		return nil, err
	}
	if n := len(req.List); n == 0 || n > limits.ProxyListLen {
		return nil, refusal.Field("list", "has %d bytes: allowed are 1 to %d", n, limits.ProxyListLen)
	}
	ttl, err := duration("ttl", req.Ttl.AsDuration(), req.Ttl != nil, req.Ttl.IsValid())
	if err != nil {
		return nil, err
	}
	var u *poolconfig.Upstream
	if err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		have, err := p.inForce(tx)
		if err != nil {
			return err
		}
		var ok bool
		if u, ok = have.config.Upstream(req.Upstream); !ok {
			return refusal.New(refusal.NotFound, "there is no upstream %s in the published configuration", req.Upstream)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	entries, rejected := proxylist.Parse(req.List, proxylist.Options{Protocol: u.Protocol, Allow: u.AllowAddresses})
	for _, r := range rejected {
		if strings.Contains(r.Reason, "secretRef") { // somebody's mistake, and not the list's
			return nil, refusal.Field("list", "line %d: %s", r.Line, r.Reason)
		}
	}
	if len(entries) > limits.ProxiesPerUpstream {
		return nil, refusal.New(refusal.Exhausted, "list has %d proxies: an upstream has at most %d", len(entries), limits.ProxiesPerUpstream)
	}
	listed := make([]Listed, len(entries))
	for i, e := range entries {
		listed[i] = Listed{Protocol: e.Protocol, Host: e.Host, Port: e.Port, SecretRef: u.SecretRef}
	}
	resp := &controlplanev1.ImportProxiesResponse{}
	for _, r := range rejected {
		if len(resp.Rejected) == limits.ListLen {
			break
		}
		resp.Rejected = append(resp.Rejected, r.String())
	}
	if len(listed) == 0 {
		return resp, nil
	}
	resp.Added, resp.Refreshed, err = p.List(ctx, req.Upstream, listed, ttl, func(tx store.Tx, added, refreshed uint32) error {
		return p.o.Audit.Append(tx, audit.PoolChain, audit.Entry{Kind: "pool.import", Actor: actor, Detail: map[string]string{
			"added": fmt.Sprint(added), "rejected": fmt.Sprint(len(rejected)),
		}})
	})
	return resp, err
}

// duration reads an optional duration between the bounds of the configuration; 0 when
// it is not given.
func duration(field string, d time.Duration, given, valid bool) (time.Duration, error) {
	if given && (!valid || d < poolconfig.Least || d > poolconfig.Most) {
		return 0, refusal.Field(field, "is %s: allowed are %s to %s, or none", d, poolconfig.Least, poolconfig.Most)
	}
	return d, nil
}

// List takes over what a list of an upstream says, in one transaction: what is new is
// added, what is there lasts ttl from now, or as long as it did if that is longer; 0 is
// the upstream's. record, which may be nil, is called in the transaction. What a list
// leaves out ends by itself.
func (p *Pool) List(ctx context.Context, upstream string, listed []Listed, ttl time.Duration, record func(tx store.Tx, added, refreshed uint32) error) (added, refreshed uint32, err error) {
	err = p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		added, refreshed = 0, 0
		have, err := p.inForce(tx)
		if err != nil {
			return err
		}
		u, ok := have.config.Upstream(upstream)
		if !ok {
			return refusal.New(refusal.NotFound, "there is no upstream %s in the published configuration", upstream)
		}
		if ttl == 0 {
			ttl = u.TTL
		}
		if added, refreshed, err = p.list(tx, have, upstream, listed, ttl); err != nil {
			return err
		}
		if record == nil {
			return nil
		}
		return record(tx, added, refreshed)
	})
	return added, refreshed, err
}

func (p *Pool) list(tx store.Tx, have *published, upstream string, listed []Listed, ttl time.Duration) (added, refreshed uint32, err error) {
	now := tx.Now()
	expires := now.Add(ttl)
	usable := expires.Add(-have.times.SafetyMargin)
	there, err := tx.Scan(proxiesIndex(upstream), 0, store.MaxScore, 0)
	if err != nil {
		return 0, 0, err
	}
	keys := make([]string, len(listed))
	for i, l := range listed {
		keys[i] = proxyKey(ProxyID(upstream, l))
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return 0, 0, err
	}
	var owing []*statev1.ProxyState
	for i, l := range listed {
		id := keys[i][len(proxyPrefix):]
		proxy, err := loadProxy(tx, id)
		if err != nil {
			return 0, 0, err
		}
		if proxy == nil {
			added++
			if n := len(there) + int(added); n > limits.ProxiesPerUpstream {
				return 0, 0, refusal.New(refusal.Exhausted, "upstream %s would have %d proxies: allowed are at most %d; those that have expired are forgotten after a while", upstream, n, limits.ProxiesPerUpstream)
			}
			if err := saveProxy(tx, nil, &statev1.ProxyState{
				Id: id, Upstream: upstream, Protocol: l.Protocol, Host: l.Host, Port: uint32(l.Port), SecretRef: l.SecretRef,
				ExpiresMs: expires.UnixMilli(), UsableMs: usable.UnixMilli(), State: ownership.New,
			}); err != nil {
				return 0, 0, err
			}
			continue
		}
		if proxy.State == ownership.Extracted {
			continue // it is somebody else's until it ends
		}
		refreshed++
		old := clone(proxy)
		owes := ownership.Refresh(proxy, expires.UnixMilli(), usable.UnixMilli())
		proxy.SecretRef = l.SecretRef
		if err := saveProxy(tx, old, proxy); err != nil {
			return 0, 0, err
		}
		switch {
		case owes:
			owing = append(owing, proxy)
		case proxy.Owner != "":
			if err := touch(tx, proxy.Owner); err != nil {
				return 0, 0, err
			}
		}
	}
	if added > 0 {
		if err := tx.IndexPut(upstreamsIndex, upstream, 0); err != nil {
			return 0, 0, err
		}
	}
	return added, refreshed, p.drainBack(tx, owing)
}

// drainBack begins the drains of proxies that were listed again while the worker that
// owned them before they expired may still be using them.
func (p *Pool) drainBack(tx store.Tx, owing []*statev1.ProxyState) error {
	slices.SortStableFunc(owing, func(a, b *statev1.ProxyState) int { return strings.Compare(a.Owner, b.Owner) })
	for len(owing) > 0 {
		n := 1
		for n < len(owing) && owing[n].Owner == owing[0].Owner {
			n++
		}
		c, err := loadCrew(tx, owing[0].Owner)
		if err != nil {
			return err
		}
		if _, err := p.drain(tx, c, owing[:n], "listed again after it expired", p.actor); err != nil {
			return err
		}
		owing = owing[n:]
	}
	return nil
}

// message is a proxy as workers and callers see it. u is its upstream, nil when that
// is not configured any more.
func message(s *statev1.ProxyState, u *poolconfig.Upstream, credentialVersion uint32) *controlplanev1.Proxy {
	m := &controlplanev1.Proxy{
		ProxyId: s.Id, Upstream: s.Upstream, Protocol: s.Protocol, Host: s.Host, Port: s.Port, SecretRef: s.SecretRef, CredentialVersion: credentialVersion,
		ExpiresAt: timestamppb.New(time.UnixMilli(s.ExpiresMs)), UsableUntil: timestamppb.New(time.UnixMilli(s.UsableMs)),
		AssignmentEpoch: s.AssignmentEpoch, Health: ownership.Health(s.State), DeniedRoutings: s.DeniedRoutings, Capacity: 1,
	}
	if u != nil {
		m.Capacity, m.Labels = u.CapacityPerProxy, u.Labels
	}
	return m
}

// ListProxies is one page of what there is, by upstream and end. A page may be short,
// or empty, and not be the last.
func (p *Pool) ListProxies(ctx context.Context, req *controlplanev1.ListProxiesRequest) (*controlplanev1.ListProxiesResponse, error) {
	state, err := checkList(req)
	if err != nil {
		return nil, err
	}
	at, err := readPlace(req.PageToken)
	if err != nil {
		return nil, err
	}
	size := int(req.PageSize)
	if size == 0 {
		size = 100
	}
	resp := &controlplanev1.ListProxiesResponse{}
	return resp, p.o.Store.View(ctx, func(tx store.ReadTx) error {
		resp.Proxies, resp.NextPageToken = nil, ""
		have, err := p.lookUp(tx)
		if err != nil {
			return err
		}
		names, err := upstreamNames(tx, have)
		if err != nil {
			return err
		}
		crews := map[string]*crew{}
		for _, name := range names {
			if req.Upstream != "" && name != req.Upstream || name < at.upstream {
				continue
			}
			from, after := uint64(0), ""
			if name == at.upstream {
				from, after = at.score, at.id
			}
			entries, err := tx.Scan(proxiesIndex(name), from, store.MaxScore, 0)
			if err != nil {
				return err
			}
			entries = slices.DeleteFunc(entries, func(e store.Entry) bool { return e.Score == from && e.Member <= after })
			entries = entries[:min(len(entries), limits.ProxyPage)]
			proxies, err := loadProxies(tx, entries)
			if err != nil {
				return err
			}
			for _, s := range proxies {
				if state != controlplanev1.ProxyStatus_STATE_UNSPECIFIED && s.State != state {
					continue
				}
				if len(resp.Proxies) == size {
					return nil
				}
				status, err := p.status(tx, have, s, crews)
				if err != nil {
					return err
				}
				resp.Proxies = append(resp.Proxies, status)
				resp.NextPageToken = pagePlace{s.Upstream, uint64(s.ExpiresMs), s.Id}.String()
			}
			if len(entries) == limits.ProxyPage {
				last := entries[len(entries)-1]
				resp.NextPageToken = pagePlace{name, last.Score, last.Member}.String()
				return nil
			}
		}
		resp.NextPageToken = ""
		return nil
	})
}

func checkList(req *controlplanev1.ListProxiesRequest) (state controlplanev1.ProxyStatus_State, err error) {
	if err := refusal.Check("upstream", limits.OptionalName(req.Upstream)); err != nil {
		return 0, err
	}
	if req.PageSize > limits.ProxyPage {
		return 0, refusal.Field("page_size", "is %d: allowed are 1 to %d, and 0 for 100", req.PageSize, limits.ProxyPage)
	}
	if req.State == "" {
		return 0, nil
	}
	n, ok := controlplanev1.ProxyStatus_State_value["STATE_"+strings.ToUpper(req.State)]
	if !ok || n == 0 {
		return 0, refusal.Field("state", "is %s: allowed are NEW, AVAILABLE, SUSPECT, UNHEALTHY, EXTRACTED and EXPIRED", limits.Quote(req.State))
	}
	return controlplanev1.ProxyStatus_State(n), nil
}

// pagePlace is the proxy that a page ended with.
type pagePlace struct {
	upstream string
	score    uint64
	id       string
}

func (a pagePlace) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprintf("%s/%d/%s", a.upstream, a.score, a.id)))
}

func readPlace(token string) (a pagePlace, err error) {
	if token == "" {
		return a, nil
	}
	refuse := refusal.Field("page_token", "is not one that this call gave out: begin without one")
	raw, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(raw), "/")
	if err != nil || len(parts) != 3 || limits.Name(parts[0]) != nil || limits.ID(parts[2]) != nil {
		return a, refuse
	}
	score, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil || score > store.MaxScore {
		return a, refuse
	}
	return pagePlace{parts[0], score, parts[2]}, nil
}

// upstreamNames are the upstreams that are configured or ever had a proxy, sorted.
func upstreamNames(tx store.ReadTx, have *published) ([]string, error) {
	entries, err := tx.Scan(upstreamsIndex, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Member)
	}
	if have != nil {
		for _, u := range have.config.Upstreams {
			names = append(names, u.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (p *Pool) status(tx store.ReadTx, have *published, s *statev1.ProxyState, crews map[string]*crew) (*controlplanev1.ProxyStatus, error) {
	var u *poolconfig.Upstream
	if have != nil {
		u, _ = have.config.Upstream(s.Upstream)
	}
	version, err := credentialVersion(tx, s.SecretRef)
	if err != nil {
		return nil, err
	}
	out := &controlplanev1.ProxyStatus{Proxy: message(s, u, version), State: s.State, OwnerWorkerId: s.Owner, EgressIp: s.EgressIp, LastError: s.LastError}
	h := &statev1.ProxyHealth{CheckedMs: s.CheckedMs, LastError: s.LastError}
	if err := loadSoft(tx, healthKey(s.Id), h); err != nil {
		return nil, err
	}
	if h.CheckedMs > 0 {
		out.LastCheckedAt = timestamppb.New(time.UnixMilli(h.CheckedMs))
	}
	out.LastError = h.LastError
	by := s.Owner
	if by == "" {
		by = s.Holder
	}
	if by == "" {
		return out, nil
	}
	c := crews[by]
	if c == nil {
		if c, err = loadCrew(tx, by); err != nil {
			return nil, err
		}
		crews[by] = c
	}
	counter := c.counter(s.Id)
	out.Active, out.Reserved = counter.Active, counter.Reserved
	return out, nil
}

// Workers lists who has, or had, a session.
func (p *Pool) Workers(ctx context.Context) (*controlplanev1.ListWorkersResponse, error) {
	resp := &controlplanev1.ListWorkersResponse{}
	return resp, p.o.Store.View(ctx, func(tx store.ReadTx) error {
		resp.Workers = nil
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		crews, err := loadCrews(tx)
		if err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		for _, c := range crews {
			owned, err := tx.Scan(ownedIndex(c.id), 0, 0, 0)
			if err != nil {
				return err
			}
			resp.Workers = append(resp.Workers, &controlplanev1.WorkerStatus{
				WorkerId: c.id, InstanceId: c.worker.InstanceId, Zone: c.worker.Zone,
				AcknowledgedVersion: c.sent.GetAccepted().GetVersion(), OwnershipEpoch: c.sent.GetAccepted().GetOwnershipEpoch(),
				OwnedProxies: uint32(len(owned)), DrainingProxies: uint32(len(c.drains.Tickets)),
				Connected: ownership.Live(have.times, c.worker, c.runtime, now), Fenced: ownership.Shut(c.sent),
				SessionExpiresAt: timestamppb.New(time.UnixMilli(ownership.Renewed(c.worker, c.runtime)).Add(have.times.SessionTTL)),
			})
		}
		return nil
	})
}

// Availability counts the proxies of each upstream by state.
func (p *Pool) Availability(ctx context.Context) (*controlplanev1.GetAvailabilityResponse, error) {
	resp := &controlplanev1.GetAvailabilityResponse{}
	return resp, p.o.Store.View(ctx, func(tx store.ReadTx) error {
		resp.Upstreams = nil
		have, err := p.lookUp(tx)
		if err != nil {
			return err
		}
		names, err := upstreamNames(tx, have)
		if err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		for _, name := range names {
			entries, err := tx.Scan(proxiesIndex(name), 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			proxies, err := loadProxies(tx, entries)
			if err != nil {
				return err
			}
			out := &controlplanev1.UpstreamAvailability{Upstream: name, ByState: map[string]uint32{}}
			for _, s := range proxies {
				out.ByState[strings.TrimPrefix(s.State.String(), "STATE_")]++
				if ownership.Free(s) && now < s.UsableMs {
					out.UnownedAvailable++
				}
			}
			if have != nil {
				u, ok := have.config.Upstream(name)
				out.Enabled = ok && u.Enabled
			}
			if out.Brake, err = p.braked(tx, name); err != nil {
				return err
			}
			resp.Upstreams = append(resp.Upstreams, out)
		}
		return nil
	})
}
