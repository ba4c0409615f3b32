package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/refusal"
)

// TestPluginsJudge: what a plugin refuses of a configuration, or cannot judge, is refused
// with its place in the document or request, and nothing is published.
func TestPluginsJudge(t *testing.T) {
	w := newWorld(t)
	judge := func(kind string) pool.PluginCheck {
		return func(_ context.Context, name string, config *structpb.Struct) error {
			switch {
			case name == "nope":
				return refusal.Field(kind, "is nope: there is no such plugin")
			case name == "away":
				return &refusal.Error{Kind: refusal.Unavailable, Reason: "plugin", Text: "away was never seen"}
			case config.GetFields()["bad"] != nil:
				return refusal.Field(kind+"_config.bad", "is not allowed")
			}
			return nil
		}
	}
	p := pool.New(pool.Options{Store: w.store, Audit: w.log, HostID: "judge", Strategy: judge("strategy"), Probe: judge("probe")})
	before, err := p.Config(w.ctx)
	w.must(err)
	publish := func(from, to string) error {
		_, err := p.Publish(w.ctx, operator, &controlplanev1.PublishConfigRequest{Yaml: strings.Replace(document, from, to, 1)})
		return err
	}
	set := func(strategy string, config map[string]any) error {
		s, err := structpb.NewStruct(config)
		w.must(err)
		_, err = p.SetRouting(w.ctx, operator, &controlplanev1.SetRoutingRequest{Routing: "all", Enabled: true, Strategy: strategy, StrategyConfig: s})
		return err
	}
	const routing, upstream = "  - name: all\n", "  - name: spare\n"
	for _, c := range []struct {
		name, field string
		kind        refusal.Kind
		err         error
	}{
		{"a strategy", "yaml routings[0].strategy", refusal.Invalid, publish(routing, routing+"    strategy: nope\n")},
		{"its config", "yaml routings[0].strategy_config.bad", refusal.Invalid, publish(routing, routing+"    strategy: random\n    strategyConfig: {bad: 1}\n")},
		{"a strategy that is away", "", refusal.Unavailable, publish(routing, routing+"    strategy: away\n")},
		{"a probe", "yaml upstreams[1].check.probe", refusal.Invalid, publish(upstream, upstream+"    check: {probe: nope}\n")},
		{"its config", "yaml upstreams[1].check.probe_config.bad", refusal.Invalid, publish(upstream, upstream+"    check: {probe: own, probeConfig: {bad: 1}}\n")},
		{"a routing's strategy", "strategy", refusal.Invalid, set("nope", nil)},
		{"its config", "strategy_config.bad", refusal.Invalid, set("random", map[string]any{"bad": true})},
		{"one that is away", "", refusal.Unavailable, set("away", nil)},
	} {
		refusedAs(t, c.name, c.err, c.kind)
		var no *refusal.Error
		if errors.As(c.err, &no) && no.Field != c.field {
			t.Errorf("%s: the field is %q, want %q", c.name, no.Field, c.field)
		}
	}
	after, err := p.Config(w.ctx)
	w.must(err)
	if after.Revision != before.Revision {
		t.Errorf("revision %d is in force, want %d", after.Revision, before.Revision)
	}
	w.must(publish(routing, routing+"    strategy: random\n"))
}
