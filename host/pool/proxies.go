package pool

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

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
		var page []*statev1.ProxyState
		if page, resp.NextPageToken, err = pageOf(tx, names, req.Upstream, state, at, size); err != nil {
			return err
		}
		resp.Proxies, err = p.statuses(tx, have, page)
		return err
	})
}

// pageOf reads up to size proxies in a state, or in any, that come after a place; next
// is empty when there are none behind them.
func pageOf(tx store.ReadTx, names []string, upstream string, state controlplanev1.ProxyStatus_State, at pagePlace, size int) (page []*statev1.ProxyState, next string, err error) {
	for _, name := range names {
		if upstream != "" && name != upstream || name < at.upstream {
			continue
		}
		from, after := uint64(0), ""
		if name == at.upstream {
			from, after = at.score, at.id
		}
		entries, err := tx.Scan(proxiesIndex(name), from, store.MaxScore, 0)
		if err != nil {
			return nil, "", err
		}
		entries = slices.DeleteFunc(slices.Clone(entries), func(e store.Entry) bool { return e.Score == from && e.Member <= after })
		entries = entries[:min(len(entries), limits.ProxyPage)]
		proxies, err := loadProxies(tx, entries)
		if err != nil {
			return nil, "", err
		}
		for _, s := range proxies {
			if state != controlplanev1.ProxyStatus_STATE_UNSPECIFIED && s.State != state {
				continue
			}
			if len(page) == size {
				return page, next, nil
			}
			page = append(page, s)
			next = pagePlace{s.Upstream, uint64(s.ExpiresMs), s.Id}.String()
		}
		if len(entries) == limits.ProxyPage {
			last := entries[len(entries)-1]
			return page, pagePlace{name, last.Score, last.Member}.String(), nil
		}
	}
	return page, "", nil
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

// statuses are proxies as operators see them.
func (p *Pool) statuses(tx store.ReadTx, have *published, proxies []*statev1.ProxyState) (all []*controlplanev1.ProxyStatus, err error) {
	var keys []string
	for _, s := range proxies {
		keys = append(keys, healthKey(s.Id))
		if s.SecretRef != "" {
			keys = append(keys, credentialKey(s.SecretRef))
		}
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return nil, err
	}
	crews, err := loadUsers(tx, proxies)
	if err != nil {
		return nil, err
	}
	for _, s := range proxies {
		status, err := status(tx, have, s, crews[usedBy(s)])
		if err != nil {
			return nil, err
		}
		all = append(all, status)
	}
	return all, nil
}

// status is one of them; c is who uses it, or nil.
func status(tx store.ReadTx, have *published, s *statev1.ProxyState, c *crew) (*controlplanev1.ProxyStatus, error) {
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
	if c != nil {
		counter := c.counter(s.Id)
		out.Active, out.Reserved = counter.Active, counter.Reserved
	}
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
		queries := make([]store.ScanQuery, len(crews))
		for i, c := range crews {
			queries[i] = store.ScanQuery{Index: ownedIndex(c.id)}
		}
		owned, err := store.ScanMany(tx, queries...)
		if err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		for i, c := range crews {
			resp.Workers = append(resp.Workers, &controlplanev1.WorkerStatus{
				WorkerId: c.id, InstanceId: c.worker.InstanceId, Zone: c.worker.Zone,
				AcknowledgedVersion: c.sent.GetAccepted().GetVersion(), OwnershipEpoch: c.sent.GetAccepted().GetOwnershipEpoch(),
				OwnedProxies: uint32(len(owned[i])), DrainingProxies: uint32(len(c.drains.Tickets)),
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
		if err := fetchSupply(tx, 0, names...); err != nil {
			return err
		}
		brakes := make([]bool, len(names))
		var first error
		for i, name := range names {
			if brakes[i], err = p.braked(tx, name); err != nil && first == nil {
				first = err // go on: the rest is fetched in the same round trip
			}
		}
		if first != nil {
			return first
		}
		now := tx.Now().UnixMilli()
		for i, name := range names {
			entries, err := tx.Scan(proxiesIndex(name), 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			proxies, err := loadProxies(tx, entries)
			if err != nil {
				return err
			}
			out := &controlplanev1.UpstreamAvailability{Upstream: name, ByState: map[string]uint32{}, Brake: brakes[i]}
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
			resp.Upstreams = append(resp.Upstreams, out)
		}
		return nil
	})
}
