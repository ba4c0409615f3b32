package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Extract gives proxies away for good: only ones that are available, nobody's and
// usable for long enough. The same key with the same request has the same answer for a
// day; the key is the caller's own, actor's. An answer without a proxy is not
// remembered, and what is short is taken from workers meanwhile. Refusals: Invalid;
// NotFound; Precondition for what is switched off; AlreadyExists for a key that came
// with another request; Exhausted when there is nothing.
func (p *Pool) Extract(ctx context.Context, actor string, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error) {
	resp, err := p.extract(ctx, actor, req)
	p.metrics.extracted(resp, err)
	return resp, err
}

func (p *Pool) extract(ctx context.Context, actor string, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error) {
	if err := checkExtract(req); err != nil {
		return nil, err
	}
	key := sha256.Sum256([]byte(actor + "\x00" + req.IdempotencyKey))
	body := proto.CloneOf(req)
	body.IdempotencyKey = ""
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(text)
	x := &extraction{Pool: p, actor: actor, req: req, key: key[:], digest: digest[:], id: drawn()}
	err = p.o.Store.Update(ctx, store.Hard, x.run)
	if x.short > 0 && (err == nil || refusal.Is(err, refusal.Exhausted)) {
		p.report("take proxies from workers for extraction", p.o.Store.Update(ctx, store.Soft, x.takeMore))
		p.wake()
	}
	if err != nil {
		return nil, err
	}
	return p.answer(ctx, x.answer, x.replayed)
}

// extraction is one run of Extract.
type extraction struct {
	*Pool
	actor, id   string
	req         *controlplanev1.ExtractRequest
	key, digest []byte

	answer   *statev1.Extraction
	replayed bool
	locked   int      // proxies whose credential this host does not have
	short    int      // proxies that there were none of
	searched []string // upstreams, the preferred one first
}

func checkExtract(req *controlplanev1.ExtractRequest) error {
	if err := CheckIdempotencyKey(req.IdempotencyKey); err != nil {
		return refusal.Check("idempotency_key", err)
	}
	if (req.Upstream == "") == (req.Routing == "") {
		return refusal.Field("upstream", "and routing: exactly one of them has to be set")
	}
	if err := refusal.Check("upstream", limits.OptionalName(req.Upstream)); err != nil {
		return err
	}
	if err := refusal.Check("routing", limits.OptionalName(req.Routing)); err != nil {
		return err
	}
	if req.Count == 0 || req.Count > limits.ExtractedAtOnce {
		return refusal.Field("count", "is %d: allowed are 1 to %d", req.Count, limits.ExtractedAtOnce)
	}
	if _, known := controlplanev1.Proxy_Protocol_name[int32(req.Protocol)]; !known {
		return refusal.Field("protocol", "is %d: allowed are HTTP, HTTPS and SOCKS5, or none for any", req.Protocol)
	}
	if d := req.MinRemaining; d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > poolconfig.Most) {
		return refusal.Field("min_remaining", "is %s: allowed are 0 to %s", d.AsDuration(), poolconfig.Most)
	}
	if n := len(req.Labels); n > limits.Labels {
		return refusal.Field("labels", "has %d items: allowed are at most %d", n, limits.Labels)
	}
	for _, k := range slices.Sorted(maps.Keys(req.Labels)) {
		if err := refusal.Check("labels", limits.Label(k, req.Labels[k])); err != nil {
			return err
		}
	}
	return nil
}

// CheckIdempotencyKey checks a key: 1 to 128 printable ASCII characters.
func CheckIdempotencyKey(key string) error {
	ok := len(key) >= 1 && len(key) <= limits.IdempotencyKeyLen
	for i := 0; ok && i < len(key); i++ {
		ok = key[i] > ' ' && key[i] < 0x7f || key[i] == ' '
	}
	if !ok {
		return fmt.Errorf("is %s: allowed are 1 to %d printable ASCII characters", limits.QuoteOrEmpty(key), limits.IdempotencyKeyLen)
	}
	return nil
}

func (x *extraction) run(tx store.Tx) error {
	x.answer, x.replayed, x.locked, x.short, x.searched = nil, false, 0, 0, nil
	if done, err := x.replay(tx); done || err != nil {
		return err
	}
	have, err := x.inForce(tx)
	if err != nil {
		return err
	}
	upstreams, err := x.sources(have)
	if err != nil {
		return err
	}
	now := tx.Now()
	out := &statev1.Extraction{Id: x.id, Actor: x.actor, Request: x.digest, Key: x.key, CreatedMs: now.UnixMilli()}
	for _, u := range upstreams {
		if err := x.search(tx, u, now, out); err != nil {
			return err
		}
	}
	out.Shortfall = uint32(int(x.req.Count) - len(out.Proxies))
	x.short = max(int(out.Shortfall)-x.locked, 0)
	switch {
	case len(out.Proxies) > 0:
	case len(x.searched) == 0:
		return &refusal.Error{Kind: refusal.Exhausted, Reason: "no_proxy", Text: "no upstream that this could be from has these labels"}
	case x.locked > 0:
		return refusal.New(refusal.Unavailable, "this host does not have the credentials of the proxies that are free: another host may; its log says why")
	default:
		return &refusal.Error{Kind: refusal.Exhausted, Reason: "no_proxy", Text: "no proxy is free that is available and lasts long enough: some are taken from workers, try again"}
	}
	x.answer = out
	return x.save(tx, out)
}

// replay finds the answer that the key had before.
func (x *extraction) replay(tx store.Tx) (done bool, err error) {
	k := new(statev1.ExtractionKey)
	version, err := store.Load(tx, answerKey(x.key), k)
	if err != nil || version == 0 {
		return false, err
	}
	before := new(statev1.Extraction)
	version, err = store.Load(tx, extractionKey(k.ExtractionId), before)
	if err != nil {
		return false, err
	}
	if version == 0 || before.CreatedMs <= tx.Now().Add(-keepAnswers).UnixMilli() {
		return false, nil
	}
	if string(before.Request) != string(x.digest) {
		return false, refusal.New(refusal.AlreadyExists, "idempotency_key was sent before with another request: a retry must repeat it exactly, and a new request needs a new key")
	}
	x.answer, x.replayed = before, true
	return true, nil
}

// sources are the upstreams that a request may be served from, the preferred one
// first.
func (x *extraction) sources(have *published) ([]*poolconfig.Upstream, error) {
	var names []string
	if x.req.Routing == "" {
		names = []string{x.req.Upstream}
	} else {
		r, ok := have.config.Routing(x.req.Routing)
		switch {
		case !ok:
			return nil, refusal.New(refusal.NotFound, "there is no routing %s in the published configuration", x.req.Routing)
		case !r.Enabled:
			return nil, refusal.New(refusal.Precondition, "routing %s is switched off", x.req.Routing)
		}
		refs := slices.Clone(r.Upstreams)
		slices.SortStableFunc(refs, func(a, b poolconfig.Ref) int {
			return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Weight, a.Weight))
		})
		for _, ref := range refs {
			names = append(names, ref.Name)
		}
	}
	var out []*poolconfig.Upstream
	for _, name := range names {
		u, ok := have.config.Upstream(name)
		if !ok {
			return nil, refusal.New(refusal.NotFound, "there is no upstream %s in the published configuration", name)
		}
		if u.Enabled {
			out = append(out, u)
		}
	}
	if len(out) == 0 {
		return nil, refusal.New(refusal.Precondition, "every upstream that this could be from is switched off")
	}
	return out, nil
}

// search extracts what one upstream has of what is still to be found.
func (x *extraction) search(tx store.Tx, u *poolconfig.Upstream, now time.Time, out *statev1.Extraction) error {
	for k, v := range x.req.Labels {
		if u.Labels[k] != v {
			return nil
		}
	}
	x.searched = append(x.searched, u.Name)
	until := now.Add(x.req.MinRemaining.AsDuration()).UnixMilli() + 1
	// What lasts longest is left: the score is when it ends.
	for from, seen := uint64(until), 0; len(out.Proxies) < int(x.req.Count); {
		most := 2*(int(x.req.Count)-len(out.Proxies)) + seen
		entries, err := tx.Scan(freeIndex(u.Name), from, store.MaxScore, most)
		if err != nil {
			return err
		}
		last := len(entries) < most
		entries = entries[min(seen, len(entries)):]
		seen += len(entries)
		proxies, err := loadProxies(tx, entries)
		if err != nil {
			return err
		}
		for _, s := range proxies {
			if err := x.give(tx, u, s, until, out); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
	return nil
}

// give extracts one proxy, if it may.
func (x *extraction) give(tx store.Tx, u *poolconfig.Upstream, s *statev1.ProxyState, until int64, out *statev1.Extraction) error {
	if len(out.Proxies) == int(x.req.Count) || x.req.Protocol != controlplanev1.Proxy_PROTOCOL_UNSPECIFIED && s.Protocol != x.req.Protocol {
		return nil
	}
	version, err := credentialVersion(tx, s.SecretRef)
	if err != nil {
		return err
	}
	if _, ok := x.credential(s.SecretRef, version); !ok {
		x.locked++ // this host could not say how it is used
		return nil
	}
	old := clone(s)
	if !ownership.Extract(s, x.id, until) {
		return nil
	}
	if err := saveProxy(tx, old, s); err != nil {
		return err
	}
	m := message(s, u, version)
	m.Health = controlplanev1.Health_HEALTH_AVAILABLE // as it was
	out.Proxies = append(out.Proxies, &statev1.ExtractedState{Proxy: m})
	return nil
}

func (x *extraction) save(tx store.Tx, out *statev1.Extraction) error {
	if err := store.Save(tx, extractionKey(out.Id), out); err != nil {
		return err
	}
	if err := store.Save(tx, answerKey(out.Key), &statev1.ExtractionKey{ExtractionId: out.Id}); err != nil {
		return err
	}
	if err := tx.IndexPut(extractionsIndex, out.Id, uint64(out.CreatedMs)); err != nil {
		return err
	}
	var ids []string
	for _, e := range out.Proxies {
		ids = append(ids, e.Proxy.ProxyId)
	}
	return x.o.Audit.Append(tx, audit.PoolChain, audit.Entry{Kind: "pool.extract", Actor: x.actor, Detail: map[string]string{
		"extraction_id": out.Id, "count": fmt.Sprint(len(ids)), "proxy_ids": audit.Value(ids),
	}})
}

// Extraction is the answer of one of actor's extractions again, for as long as it is
// remembered. Refusals: Invalid, NotFound.
func (p *Pool) Extraction(ctx context.Context, actor, id string) (*controlplanev1.ExtractResponse, error) {
	if err := refusal.Check("extraction_id", limits.ID(id)); err != nil {
		return nil, err
	}
	x := new(statev1.Extraction)
	if err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		version, err := store.Load(tx, extractionKey(id), x)
		if err == nil && (version == 0 || x.Actor != actor) {
			err = refusal.New(refusal.NotFound, "this caller has no extraction %s, or it is older than %s", id, keepAnswers)
		}
		return err
	}); err != nil {
		return nil, err
	}
	return p.answer(ctx, x, true)
}

// answer is an extraction as its caller is told it: with the credentials as they are
// now.
func (p *Pool) answer(ctx context.Context, x *statev1.Extraction, replayed bool) (*controlplanev1.ExtractResponse, error) {
	resp := &controlplanev1.ExtractResponse{ExtractionId: x.Id, Shortfall: x.Shortfall, Replayed: replayed}
	newest := map[string]uint32{}
	if err := p.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		for _, e := range x.Proxies {
			if newest[e.Proxy.SecretRef], err = credentialVersion(tx, e.Proxy.SecretRef); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, e := range x.Proxies {
		m := proto.CloneOf(e.Proxy)
		out := &controlplanev1.ExtractedProxy{Proxy: m}
		if m.SecretRef != "" {
			m.CredentialVersion = newest[m.SecretRef]
			c, ok := p.credential(m.SecretRef, m.CredentialVersion)
			if !ok {
				return nil, refusal.New(refusal.Unavailable, "this host does not have the credentials of these proxies yet: send the same request again")
			}
			out.Credential = &controlplanev1.Credential{SecretRef: m.SecretRef, CredentialVersion: m.CredentialVersion, Username: c.Username(), Password: c.Password()}
		}
		resp.Proxies = append(resp.Proxies, out)
	}
	slices.SortFunc(resp.Proxies, func(a, b *controlplanev1.ExtractedProxy) int {
		return strings.Compare(a.Proxy.ProxyId, b.Proxy.ProxyId)
	})
	return resp, nil
}
