package pool

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

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
		if margin := have.times.SafetyMargin; ttl != 0 && ttl <= margin {
			return refusal.Field("ttl", "is %s, during which none of them is used: allowed is more than allocation.safetyMargin, %s", ttl, margin)
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
	if err := p.room(ctx, req.Upstream, listed); err != nil {
		return nil, err
	}
	bad := len(rejected)
	resp.Added, resp.Refreshed, err = p.List(ctx, req.Upstream, listed, ttl, func(tx store.Tx, first bool, added uint32) error {
		if !first {
			bad = 0
		}
		return p.o.Audit.Append(tx, audit.PoolChain, audit.Entry{Kind: "pool.import", Actor: actor, Detail: map[string]string{
			"added": fmt.Sprint(added), "rejected": fmt.Sprint(bad),
		}})
	})
	if n := resp.Added + resp.Refreshed; err != nil && n > 0 {
		err = halfDone(err, fmt.Sprintf("%d of the %d proxies of the list are imported; import the same list again for the others", n, len(listed)))
	}
	return resp, err
}

// halfDone adds to what ended a request that some of it is done, and what to do.
func halfDone(err error, text string) error {
	var r *refusal.Error
	if !errors.As(err, &r) {
		return fmt.Errorf("%w; %s", err, text)
	}
	next := *r
	next.Text += "; " + text
	return &next
}

// room refuses a list with which an upstream would have too many proxies.
func (p *Pool) room(ctx context.Context, upstream string, listed []Listed) error {
	return p.o.Store.View(ctx, func(tx store.ReadTx) error {
		there, err := tx.Scan(proxiesIndex(upstream), 0, store.MaxScore, 0)
		if err != nil {
			return err
		}
		known := make(map[string]bool, len(there))
		for _, e := range there {
			known[e.Member] = true
		}
		n := len(there)
		for _, l := range listed {
			if !known[ProxyID(upstream, l)] {
				n++
			}
		}
		return tooMany(upstream, n)
	})
}

// tooMany refuses that an upstream would have n proxies.
func tooMany(upstream string, n int) error {
	if n <= limits.ProxiesPerUpstream {
		return nil
	}
	return refusal.New(refusal.Exhausted, "upstream %s would have %d proxies: allowed are at most %d; those that have expired are forgotten after a while", upstream, n, limits.ProxiesPerUpstream)
}

// duration reads an optional duration between the bounds of the configuration; 0 when
// it is not given.
func duration(field string, d time.Duration, given, valid bool) (time.Duration, error) {
	if given && (!valid || d < poolconfig.Least || d > poolconfig.Most) {
		return 0, refusal.Field(field, "is %s: allowed are %s to %s, or none", d, poolconfig.Least, poolconfig.Most)
	}
	return d, nil
}

// listAtOnce is how many proxies one transaction lists. All of a long list at once
// would hold up whatever else the store is to do, and be more than a slow one can make
// durable in the time that a control action has.
const listAtOnce = 500

// List takes over what a list of an upstream says: what is new is added, what is there
// lasts ttl from now, or as long as it did if that is longer; 0 is the upstream's. What
// a list leaves out ends by itself. A long list takes several transactions, and the
// counts are of those that went well: after an error, or a crash, the same list again
// does what is left. record, which may be nil, is called in each; first says in which.
func (p *Pool) List(ctx context.Context, upstream string, listed []Listed, ttl time.Duration, record func(tx store.Tx, first bool, added uint32) error) (added, refreshed uint32, err error) {
	first := true
	for some := range slices.Chunk(listed, listAtOnce) {
		var more, again uint32
		if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) (err error) {
			if more, again, err = p.list(tx, upstream, some, ttl); err != nil || record == nil {
				return err
			}
			return record(tx, first, more)
		}); err != nil {
			return added, refreshed, err
		}
		added, refreshed, first = added+more, refreshed+again, false
	}
	return added, refreshed, nil
}

// list is one transaction of List.
func (p *Pool) list(tx store.Tx, upstream string, listed []Listed, ttl time.Duration) (added, refreshed uint32, err error) {
	have, err := p.inForce(tx)
	if err != nil {
		return 0, 0, err
	}
	u, ok := have.config.Upstream(upstream)
	if !ok {
		return 0, 0, refusal.New(refusal.NotFound, "there is no upstream %s in the published configuration", upstream)
	}
	if ttl == 0 {
		ttl = u.TTL
	}
	now := tx.Now()
	expires := now.Add(ttl)
	usable := expires.Add(-have.times.SafetyMargin)
	keys := make([]string, len(listed))
	for i, l := range listed {
		keys[i] = proxyKey(ProxyID(upstream, l))
	}
	records, err := tx.GetMany(keys...)
	if err != nil {
		return 0, 0, err
	}
	unknown := 0
	for _, r := range records {
		if !r.Exists() {
			unknown++
		}
	}
	if unknown > 0 {
		there, err := tx.Scan(proxiesIndex(upstream), 0, store.MaxScore, 0)
		if err == nil {
			err = tooMany(upstream, len(there)+unknown)
		}
		if err == nil {
			err = tx.IndexPut(upstreamsIndex, upstream, 0)
		}
		if err != nil {
			return 0, 0, err
		}
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
