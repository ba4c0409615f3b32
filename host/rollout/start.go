package rollout

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Start begins a rollout: PENDING, with all traffic on the stable variant, in
// one durable transaction. The request of a rollout that lives already, asked
// again, changes nothing and is no error.
//
// Refusals: Invalid; Precondition when the stable variant has no endpoint or not
// all of the traffic, when another rollout lives and supersede is not set, or
// when the canary is quarantined and retry is not set; Unavailable when a
// provider that was never seen cannot say whether it takes the config.
func (c *Controller) Start(ctx context.Context, actor string, req *donav1.StartRolloutRequest) error {
	p, err := c.Prepare(ctx, req)
	if err != nil {
		return err
	}
	err = c.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		_, err := p.Start(tx, actor)
		return err
	})
	if err == nil {
		p.Committed()
	}
	return err
}

// Prepared is a request to start a rollout of which everything is checked but
// what the state allows. Whoever starts a rollout as a part of something larger
// starts it inside his own transaction.
type Prepared struct {
	c    *Controller
	id   string
	req  *donav1.StartRolloutRequest
	away error // a plugin could not say whether it takes its query

	replaced, begun *statev1.Rollout // what the last Start wrote; nil = nothing
}

// CheckQueries asks the plugins of the request's queries whether they take them,
// and returns the refusal Invalid of one that does not. One that cannot say is no
// error.
func (c *Controller) CheckQueries(ctx context.Context, req *donav1.StartRolloutRequest) error {
	_, err := c.checkProviders(ctx, req)
	return err
}

// Prepare checks the request alone, and asks the plugins of its queries. Its
// refusals are those of Start that no state decides. req must not change until
// Start.
func (c *Controller) Prepare(ctx context.Context, req *donav1.StartRolloutRequest) (*Prepared, error) {
	if err := CheckStart(req); err != nil {
		return nil, err
	}
	away, err := c.checkProviders(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Prepared{c: c, id: NewID("r", c.o.WallClock()), req: req, away: away}, nil
}

// Check says why Start would refuse at this revision; nil when it would not.
func (p *Prepared) Check(tx store.ReadTx) error {
	s, same, err := p.look(tx)
	if err != nil || same {
		return err
	}
	if _, err := p.c.allowed(tx, s, p.req); err != nil {
		return err
	}
	return p.away
}

// Start begins the rollout inside tx, which has to be a hard transaction, and
// returns its id: that of the live rollout when it is the same one.
// Whoever calls it calls Committed once tx is.
func (p *Prepared) Start(tx store.Tx, actor string) (id string, err error) {
	p.replaced, p.begun = nil, nil
	s, same, err := p.look(tx)
	if err != nil {
		return "", err
	}
	if same {
		return s.state.ID, nil
	}
	return p.id, p.start(tx, actor, s)
}

// Committed counts and logs what the last Start wrote, and has the rollout looked
// at now.
func (p *Prepared) Committed() {
	if p.replaced != nil {
		p.c.took(p.req.GetService(), Replaced, p.replaced)
	}
	if p.begun != nil {
		p.c.took(p.req.GetService(), Started, p.begun)
	}
	p.c.again()
}

// look reads the service's rollout, and whether it lives and is the one asked
// for.
func (p *Prepared) look(tx store.ReadTx) (s *scene, same bool, err error) {
	if s, err = p.c.scene(tx, p.req.GetService()); err != nil || s == nil {
		return nil, false, err
	}
	return s, s.state.Phase.Live() && proto.Equal(s.record.GetSpec(), specOf(p.req)), nil
}

// specOf is what a rollout keeps of its request: all that makes it the same.
func specOf(req *donav1.StartRolloutRequest) *donav1.StartRolloutRequest {
	spec := proto.CloneOf(req)
	spec.Supersede, spec.Retry = false, false
	return spec
}

// checkProviders asks each query's plugin whether it takes the query. away is
// the answer for when the state allows the request and a plugin could not say.
func (c *Controller) checkProviders(ctx context.Context, req *donav1.StartRolloutRequest) (away, err error) {
	for i, q := range req.GetAnalysis() {
		at := fmt.Sprintf("analysis[%d]", i)
		own, err := c.o.Analyzer.Validate(ctx, providerOf(q), asked(req, i).GetConfig())
		var bad *ConfigError
		switch {
		case errors.Is(err, ErrUnknownProvider):
			return nil, refusal.Field(at+".provider", "is %s: no analysis plugin has that name", limits.Quote(providerOf(q)))
		case errors.As(err, &bad):
			return nil, refusal.Field(at+".config", "is not what %s accepts: %s", limits.Quote(providerOf(q)), violations(bad))
		case err != nil:
			away = &refusal.Error{Kind: refusal.Unavailable, Field: at + ".provider", Reason: "plugin", Cause: err,
				Text: fmt.Sprintf("is %s: it is not running and cannot check the query; try again", limits.Quote(providerOf(q)))}
		case !own && q.GetNoMaxValue() && !q.GetHasMinValue():
			return nil, refusal.Field(at+".no_max_value", "leaves the query without a bound, and %s gives no verdict of its own: set max_value or min_value", limits.Quote(providerOf(q)))
		}
	}
	return away, nil
}

// violations lists the first few, short enough for an answer.
func violations(e *ConfigError) string {
	var parts []string
	for i, v := range e.Violations {
		if i == 5 {
			parts = append(parts, fmt.Sprintf("and %d more", len(e.Violations)-i))
			break
		}
		part := limits.Quote(v.Message)
		if v.Path != "" { // empty is the whole of it
			part = limits.Quote(v.Path) + " " + part
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func (p *Prepared) start(tx store.Tx, actor string, s *scene) error {
	c, req := p.c, p.req
	service := req.GetService()
	lift, err := c.allowed(tx, s, req)
	if err != nil {
		return err
	}
	if s != nil && s.state.Phase.Live() {
		s.evidence.Op, s.evidence.OpReason = Supersede, "replaced by rollout "+p.id
		if p.replaced, err = c.commit(tx, service, s, Step(s.state, s.evidence, s.now), actor); err != nil {
			return err
		}
	}
	if lift {
		if err := c.lift(tx, actor, service, req.GetCanaryVariant(), "retried by rollout "+p.id); err != nil {
			return err
		}
	}
	if p.begun, err = c.begin(tx, actor, p.id, specOf(req), req); err != nil {
		return err
	}
	return p.away // last: what else is refused is refused whether or not the plugin is there
}

// allowed says whether the state allows the request, and whether the canary's
// quarantine has to be lifted for it.
func (c *Controller) allowed(tx store.ReadTx, s *scene, req *donav1.StartRolloutRequest) (lift bool, err error) {
	service, canary, stable := req.GetService(), req.GetCanaryVariant(), req.GetStableVariant()
	refuse := func(field, format string, args ...any) error {
		return &refusal.Error{Kind: refusal.Precondition, Field: field, Text: fmt.Sprintf(format, args...)}
	}
	endpoints, err := c.o.Service.Endpoints(tx, service, stable)
	if err != nil {
		return false, err
	}
	if endpoints == 0 {
		return false, refuse("stable_variant", "is %s, which has no endpoint in service %s: it would get all traffic", limits.Quote(stable), service)
	}
	if s != nil && s.state.Phase.Live() {
		p := s.state.Plan
		if !req.GetSupersede() {
			return false, refuse("service", "%s has the live rollout %s (%s to %s, %s): ABORT it, or set supersede", service, s.state.ID, limits.Brief(p.Stable), limits.Brief(p.Canary), s.state.Phase)
		}
		if p.Stable != stable {
			return false, refuse("stable_variant", "is %s, but the rollout to be superseded goes back to %s", limits.Brief(stable), limits.Brief(p.Stable))
		}
	} else if err := c.holdsAll(tx, service, stable, refuse); err != nil {
		return false, err
	}
	q, err := c.o.Service.Quarantined(tx, service)
	if err != nil {
		return false, err
	}
	for _, v := range q.GetVariants() {
		switch v.GetVariant() {
		case stable:
			return false, refuse("stable_variant", "is %s, which is quarantined: nothing would pick it", limits.Quote(stable))
		case canary:
			if !req.GetRetry() {
				return false, refuse("canary_variant", "is %s, which was rolled back and is quarantined: set retry, or lift the quarantine first", limits.Quote(canary))
			}
			lift = true
		}
	}
	return lift, nil
}

func (c *Controller) holdsAll(tx store.ReadTx, service, stable string, refuse func(field, format string, args ...any) error) error {
	w, _, err := c.o.Service.Weights(tx, service)
	if err != nil {
		return err
	}
	if len(w.GetWeights()) == 0 {
		return nil
	}
	at := slices.IndexFunc(w.GetWeights(), func(v *donav1.VariantWeight) bool { return v.GetVariant() == stable })
	if at < 0 || w.GetWeights()[at].GetWeight() != 100 {
		return refuse("stable_variant", "is %s, which does not hold 100 %% of the traffic of service %s", limits.Quote(stable), service)
	}
	return nil
}

func (c *Controller) begin(tx store.Tx, actor, id string, spec, req *donav1.StartRolloutRequest) (*statev1.Rollout, error) {
	service := spec.GetService()
	now := toMS(tx.Now())
	r := &statev1.Rollout{
		Id: id, Spec: spec, State: Pending.proto(), CreatedMs: now, LastTickMs: now, Transitions: 1,
		Reason: "waits for a legal endpoint of " + spec.GetCanaryVariant(),
	}
	s, err := stateOf(r)
	if err != nil {
		return nil, err
	}
	if err := c.o.Service.PutWeights(tx, service, split(s), id); err != nil {
		return nil, err
	}
	if err := store.Save(tx, recordKey(service), r); err != nil {
		return nil, err
	}
	if err := tx.IndexPut(liveIndex, service, uint64(now)); err != nil {
		return nil, err
	}
	return r, c.o.Audit.Append(tx, service, startEntry(id, req, actor))
}

// lift lifts a quarantine and says so in the chain.
func (c *Controller) lift(tx store.Tx, actor, service, variant, reason string) error {
	lifted, err := c.o.Service.LiftQuarantine(tx, service, variant)
	if err != nil {
		return err
	}
	if !lifted {
		return &refusal.Error{Kind: refusal.Precondition, Field: "variant",
			Text: fmt.Sprintf("is %s, which is not quarantined in service %s", limits.Quote(variant), service)}
	}
	return c.o.Audit.Append(tx, service, audit.Entry{Kind: "quarantine.lift", Actor: actor,
		Detail: map[string]string{"variant": variant, "reason": reason}})
}

func startEntry(id string, req *donav1.StartRolloutRequest, actor string) audit.Entry {
	steps := make([]string, len(req.GetSteps()))
	for i, p := range req.GetSteps() {
		steps[i] = strconv.FormatUint(uint64(p), 10)
	}
	queries := make([]string, len(req.GetAnalysis()))
	for i, q := range req.GetAnalysis() {
		queries[i] = q.GetName()
	}
	detail := map[string]string{
		"id": id, "canary": req.GetCanaryVariant(), "stable": req.GetStableVariant(),
		"steps": audit.Value(steps), "step_seconds": fmt.Sprint(req.GetStepSeconds()),
		"max_error_percent": fmt.Sprint(req.GetMaxErrorPercent()), "min_requests": fmt.Sprint(req.GetMinRequests()),
		"queries": audit.Value(queries),
	}
	return audit.Entry{Kind: "rollout.start", Actor: actor, Detail: detail}
}

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// newest is what the last id of this process was made of. Ids of one millisecond
// count up from its first, as those of ULID do, so that what was started later
// sorts later.
var newest struct {
	sync.Mutex
	millis uint64
	hi     byte // of 72 bits the first 8
	low    uint64
}

// NewID makes an id that sorts by time, and by the order of the calls within a
// millisecond of one process: a letter for what it names, then 48 bits of
// milliseconds and 72 bits that began at random, in base 32. Safe for concurrent
// use.
func NewID(letter string, now time.Time) string {
	newest.Lock()
	defer newest.Unlock()
	var b [15]byte
	if at := uint64(now.UnixMilli()); at != newest.millis {
		rand.Read(b[6:])
		b[6] &= 0x7f // room to count
		newest.millis, newest.hi, newest.low = at, b[6], binary.BigEndian.Uint64(b[7:])
	} else if newest.low++; newest.low == 0 {
		newest.hi++
	}
	binary.BigEndian.PutUint64(b[:8], newest.millis<<16)
	b[6] = newest.hi
	binary.BigEndian.PutUint64(b[7:], newest.low)
	return letter + idEncoding.EncodeToString(b[:])
}
