package pool

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// errUnpublished is answered while there is no configuration: later there may be one.
var errUnpublished = refusal.New(refusal.Unavailable, "no configuration of the egress plane is published yet: dona pool config publish does it")

// inForce is the configuration in force; errUnpublished when there is none. A document
// is parsed once, also when an operator switches something of it: that of a long one
// takes longer than anything else a transaction does.
func (p *Pool) inForce(tx store.ReadTx) (*published, error) {
	have, err := p.lookUp(tx)
	if err == nil && have == nil {
		err = errUnpublished
	}
	return have, err
}

// lookUp is inForce, and nil when there is none. What was read last is known by its
// content: the version of a record that is not committed may become another's.
func (p *Pool) lookUp(tx store.ReadTx) (*published, error) {
	rec, err := tx.Get(configKey)
	if err != nil || !rec.Exists() {
		return nil, err
	}
	if last := p.published.Load(); last != nil && bytes.Equal(last.record, rec.Value) {
		return last, nil
	}
	// Every stream of a host gets here at once when something is published.
	p.reading.Lock()
	defer p.reading.Unlock()
	last := p.published.Load()
	if last != nil && bytes.Equal(last.record, rec.Value) {
		return last, nil
	}
	state := new(statev1.PoolConfig)
	if _, err := store.Load(tx, configKey, state); err != nil {
		return nil, err
	}
	next := &published{record: rec.Value, revision: state.Revision, document: state.Yaml}
	for _, known := range []*published{last, p.offered} {
		if known != nil && known.document == state.Yaml {
			next.written = known.written
		}
	}
	if next.written == nil {
		if next.written, err = poolconfig.Parse(documentName, state.Yaml); err != nil {
			return nil, fmt.Errorf("pool: the published configuration does not parse any more: %w", err)
		}
	}
	next.config, next.times = switched(next.written, state), timesOf(next.written)
	p.published.Store(next)
	return next, nil
}

// Environment is the one that the published configuration names, of workers and
// checkers; empty where it names none. It is as this host has last read it.
func (p *Pool) Environment(ctx context.Context) (string, error) {
	have := p.published.Load()
	if have == nil {
		c, err := p.InForce(ctx)
		if c == nil || err != nil {
			return "", err
		}
		return c.Cluster.Environment, nil
	}
	return have.config.Cluster.Environment, nil
}

// documentName is what a published document is called in messages.
const documentName = "config"

// switched is a configuration with what operators changed since.
func switched(written *poolconfig.Config, state *statev1.PoolConfig) *poolconfig.Config {
	c := written.Clone()
	for i := range c.Upstreams {
		if on, ok := state.Upstreams[c.Upstreams[i].Name]; ok {
			c.Upstreams[i].Enabled = on
		}
	}
	for i := range c.Routings {
		r := &c.Routings[i]
		s := state.Routings[r.Name]
		if s == nil {
			continue
		}
		r.Enabled = !s.Disabled
		if len(s.Upstreams) > 0 {
			r.Upstreams = nil
			for _, u := range s.Upstreams {
				r.Upstreams = append(r.Upstreams, poolconfig.Ref{Name: u.Name, Weight: u.Weight, Priority: u.Priority})
			}
		}
		if s.Strategy != "" {
			r.Strategy, r.StrategyConfig = s.Strategy, s.StrategyConfig.AsMap()
			if s.StrategyConfig == nil {
				r.StrategyConfig = nil
			}
		}
	}
	return c
}

// Publish checks a configuration and puts it in force on all workers, unless it is a
// dry run. What operators switched stays switched, as long as what it is of is there.
// Refusals: Invalid; Precondition when expected_revision is not the current one, or
// the document is of another cluster; Unavailable when a plugin cannot judge its part.
func (p *Pool) Publish(ctx context.Context, actor string, req *controlplanev1.PublishConfigRequest) (*controlplanev1.PublishConfigResponse, error) {
	if n := len(req.Yaml); n == 0 || n > limits.PoolConfigLen {
		return nil, refusal.Field("yaml", "has %d bytes: allowed are 1 to %d", n, limits.PoolConfigLen)
	}
	next, err := poolconfig.Parse(documentName, req.Yaml)
	if err != nil {
		return nil, &refusal.Error{Kind: refusal.Invalid, Field: "yaml", Text: "does not hold: " + err.Error()}
	}
	if err := p.judge(ctx, next); err != nil {
		return nil, err
	}
	resp := &controlplanev1.PublishConfigResponse{}
	run := func(tx store.ReadTx, write func(*statev1.PoolConfig) error) error {
		state := new(statev1.PoolConfig)
		if _, err := store.Load(tx, configKey, state); err != nil {
			return err
		}
		if err := expected(req.ExpectedRevision, state.Revision); err != nil {
			return err
		}
		before, err := p.lookUp(tx)
		if err != nil {
			return err
		}
		if before != nil && before.written.Cluster.ID != next.Cluster.ID {
			return refusal.New(refusal.Precondition, "yaml is of cluster %s, this one is %s: every worker would refuse its snapshots", limits.Brief(next.Cluster.ID), limits.Brief(before.written.Cluster.ID))
		}
		state.Revision++
		state.Yaml, state.PublishedMs = req.Yaml, tx.Now().UnixMilli()
		resp.Warnings = append(next.Warnings(), keepSwitches(state, next)...)
		resp.Revision = state.Revision
		return write(state)
	}
	if req.DryRun {
		err = p.o.Store.View(ctx, func(tx store.ReadTx) error {
			return run(tx, func(state *statev1.PoolConfig) error { resp.Revision = state.Revision - 1; return nil })
		})
		return resp, err
	}
	p.reading.Lock()
	p.offered = &published{document: req.Yaml, written: next}
	p.reading.Unlock()
	if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		return run(tx, func(state *statev1.PoolConfig) error {
			if err := store.Save(tx, configKey, state); err != nil {
				return err
			}
			return p.o.Audit.Append(tx, audit.PoolChain, audit.Entry{Kind: "pool.config", Actor: actor, Detail: map[string]string{"revision": strconv.FormatUint(state.Revision, 10)}})
		})
	}); err != nil {
		return nil, err
	}
	_, err = p.InForce(ctx) // so that Environment has it from here on
	p.report("read what was published", err)
	return resp, nil
}

func expected(want, have uint64) error {
	if want != 0 && want != have {
		return refusal.New(refusal.Precondition, "expected_revision is %d, the current one is %d: look at what changed, then publish on top of that", want, have)
	}
	return nil
}

// keepSwitches drops the switches of what is gone, and says which go on to differ from
// the document.
func keepSwitches(state *statev1.PoolConfig, next *poolconfig.Config) (warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(state.Upstreams)) {
		u, ok := next.Upstream(name)
		if !ok || u.Enabled == state.Upstreams[name] {
			delete(state.Upstreams, name)
			continue
		}
		warnings = append(warnings, fmt.Sprintf("upstream %s stays %s, as an operator switched it", name, onOff(state.Upstreams[name])))
	}
	for _, name := range slices.Sorted(maps.Keys(state.Routings)) {
		if _, ok := next.Routing(name); !ok || !refsExist(state.Routings[name], next) {
			delete(state.Routings, name)
			continue
		}
		warnings = append(warnings, fmt.Sprintf("routing %s stays as an operator set it", name))
	}
	return warnings
}

func refsExist(s *statev1.RoutingSwitch, c *poolconfig.Config) bool {
	return !slices.ContainsFunc(s.Upstreams, func(u *controlplanev1.UpstreamRef) bool { _, ok := c.Upstream(u.Name); return !ok })
}

func onOff(enabled bool) string {
	if enabled {
		return "enabled"
	}
	return "disabled"
}

// judge has the plugins that a configuration names judge their part of it.
func (p *Pool) judge(ctx context.Context, c *poolconfig.Config) error {
	for i, r := range c.Routings {
		if err := judged(ctx, p.o.Strategy, fmt.Sprintf("yaml routings[%d].", i), r.Strategy, r.StrategyConfig); err != nil {
			return err
		}
	}
	for i, u := range c.Upstreams {
		if err := judged(ctx, p.o.Probe, fmt.Sprintf("yaml upstreams[%d].check.", i), u.Check.Probe, u.Check.ProbeConfig); err != nil {
			return err
		}
	}
	return nil
}

func judged(ctx context.Context, check PluginCheck, where, name string, config map[string]any) error {
	if check == nil {
		return nil
	}
	s, err := asStruct(config)
	if err != nil {
		return refusal.Field(where+"config", "is no JSON object: %v", err)
	}
	err = check(ctx, name, s)
	if e, ok := err.(*refusal.Error); ok && e.Kind == refusal.Invalid { //nolint:errorlint // it is made anew, not looked into
		return &refusal.Error{Kind: e.Kind, Field: where + e.Field, Text: e.Text, Reason: e.Reason, Cause: e.Cause}
	}
	return err
}

func asStruct(config map[string]any) (*structpb.Struct, error) {
	if config == nil {
		return nil, nil
	}
	return structpb.NewStruct(config)
}

// Config is the document that is published, and the revision of all that is in force.
func (p *Pool) Config(ctx context.Context) (*controlplanev1.GetConfigResponse, error) {
	resp := &controlplanev1.GetConfigResponse{}
	err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		state := new(statev1.PoolConfig)
		_, err := store.Load(tx, configKey, state)
		resp.Revision, resp.Yaml = state.Revision, state.Yaml
		return err
	})
	return resp, err
}

// SetUpstream switches an upstream on or off. Off, no routing sends anything to it and
// nothing of it is assigned or extracted; its proxies stay where they are. The same
// again changes nothing. Refusals: Invalid, NotFound, Unavailable.
func (p *Pool) SetUpstream(ctx context.Context, actor string, req *controlplanev1.SetUpstreamEnabledRequest) (*controlplanev1.PoolRevision, error) {
	if err := refusal.Check("upstream", limits.Name(req.Upstream)); err != nil {
		return nil, err
	}
	return p.change(ctx, func(state *statev1.PoolConfig, have *published) (*audit.Entry, error) {
		u, ok := have.config.Upstream(req.Upstream)
		if !ok {
			return nil, refusal.New(refusal.NotFound, "there is no upstream %s in the published configuration", req.Upstream)
		}
		if u.Enabled == req.Enabled {
			return nil, nil
		}
		delete(state.Upstreams, req.Upstream)
		if written, _ := have.written.Upstream(req.Upstream); written.Enabled != req.Enabled {
			if state.Upstreams == nil {
				state.Upstreams = map[string]bool{}
			}
			state.Upstreams[req.Upstream] = req.Enabled
		}
		return &audit.Entry{Kind: "pool.upstream", Actor: actor, Detail: map[string]string{"name": req.Upstream, "enabled": strconv.FormatBool(req.Enabled)}}, nil
	})
}

// SetRouting switches a routing on or off, and may give it other upstreams and another
// strategy. Refusals: Invalid, NotFound, Unavailable.
func (p *Pool) SetRouting(ctx context.Context, actor string, req *controlplanev1.SetRoutingRequest) (*controlplanev1.PoolRevision, error) {
	if err := p.checkRouting(ctx, req); err != nil {
		return nil, err
	}
	return p.change(ctx, func(state *statev1.PoolConfig, have *published) (*audit.Entry, error) {
		if _, ok := have.config.Routing(req.Routing); !ok {
			return nil, refusal.New(refusal.NotFound, "there is no routing %s in the published configuration", req.Routing)
		}
		for i, u := range req.Upstreams {
			if _, ok := have.config.Upstream(u.Name); !ok {
				return nil, refusal.Field(fmt.Sprintf("upstreams[%d].name", i), "is %s: there is no such upstream", limits.Quote(u.Name))
			}
		}
		next := &statev1.RoutingSwitch{}
		if old := state.Routings[req.Routing]; old != nil {
			next = proto.CloneOf(old)
		}
		old := switchedRouting(have.config, req.Routing)
		enabled := req.Enabled
		if req.KeepEnabled {
			enabled = old.enabled
		}
		next.Disabled = !enabled
		if len(req.Upstreams) > 0 {
			next.Upstreams = req.Upstreams
		}
		if req.Strategy != "" {
			next.Strategy, next.StrategyConfig = req.Strategy, req.StrategyConfig
		}
		if state.Routings == nil {
			state.Routings = map[string]*statev1.RoutingSwitch{}
		}
		state.Routings[req.Routing] = next
		if old.equal(switchedRouting(switched(have.written, state), req.Routing)) {
			return nil, nil
		}
		return &audit.Entry{Kind: "pool.routing", Actor: actor, Detail: map[string]string{"name": req.Routing, "enabled": strconv.FormatBool(enabled)}}, nil
	})
}

// comparable of a routing: what an operator may set of it.
type settable struct {
	enabled  bool
	refs     []poolconfig.Ref
	strategy string
	config   *structpb.Struct
}

func switchedRouting(c *poolconfig.Config, name string) settable {
	r, _ := c.Routing(name)
	s, _ := asStruct(r.StrategyConfig)
	return settable{r.Enabled, r.Upstreams, r.Strategy, s}
}

func (s settable) equal(o settable) bool {
	return s.enabled == o.enabled && slices.Equal(s.refs, o.refs) && s.strategy == o.strategy && proto.Equal(s.config, o.config)
}

func (p *Pool) checkRouting(ctx context.Context, req *controlplanev1.SetRoutingRequest) error {
	if err := refusal.Check("routing", limits.Name(req.Routing)); err != nil {
		return err
	}
	if n := len(req.Upstreams); n > poolconfig.MaxRefs {
		return refusal.Field("upstreams", "has %d items: allowed are at most %d", n, poolconfig.MaxRefs)
	}
	seen := map[string]bool{}
	for i, u := range req.Upstreams {
		at := fmt.Sprintf("upstreams[%d]", i)
		switch err := refusal.Check(at+".name", limits.Name(u.GetName())); {
		case err != nil:
			return err
		case seen[u.Name]:
			return refusal.Field(at+".name", "is %s a second time", limits.Quote(u.Name))
		case u.Weight == 0 || u.Weight > poolconfig.MaxWeight:
			return refusal.Field(at+".weight", "is %d: allowed are 1 to %d", u.Weight, poolconfig.MaxWeight)
		case u.Priority > poolconfig.MaxPriority:
			return refusal.Field(at+".priority", "is %d: allowed are 0 to %d", u.Priority, poolconfig.MaxPriority)
		}
		seen[u.Name] = true
	}
	if req.Strategy == "" {
		if req.StrategyConfig != nil {
			return refusal.Field("strategy_config", "is set and strategy is not: say which strategy it is for")
		}
		return nil
	}
	if err := refusal.Check("strategy", limits.Name(req.Strategy)); err != nil {
		return err
	}
	if n := proto.Size(req.StrategyConfig); n > limits.PluginConfigLen {
		return refusal.Field("strategy_config", "has %d bytes: allowed are at most %d", n, limits.PluginConfigLen)
	}
	if p.o.Strategy == nil {
		return nil
	}
	return p.o.Strategy(ctx, req.Strategy, req.StrategyConfig)
}

// change writes what f makes of the configuration's record, with its audit entry, as
// the next revision; without an entry nothing is written.
func (p *Pool) change(ctx context.Context, f func(state *statev1.PoolConfig, have *published) (*audit.Entry, error)) (*controlplanev1.PoolRevision, error) {
	resp := &controlplanev1.PoolRevision{}
	return resp, p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		have, err := p.inForce(tx)
		if err != nil {
			return err
		}
		state := new(statev1.PoolConfig)
		if _, err := store.Load(tx, configKey, state); err != nil {
			return err
		}
		resp.Revision = state.Revision
		entry, err := f(state, have)
		if err != nil || entry == nil {
			return err
		}
		state.Revision++
		resp.Revision = state.Revision
		if err := store.Save(tx, configKey, state); err != nil {
			return err
		}
		return p.o.Audit.Append(tx, audit.PoolChain, *entry)
	})
}
