package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// DefaultStrategy is the strategy plugin of a service whose policy names none.
const DefaultStrategy = "least-connections"

// A PluginCheck says whether a plugin of a kind exists and takes a config. It
// answers with a refusal whose field is below "<kind>".
type PluginCheck func(ctx context.Context, name string, config *structpb.Struct) error

// SetPolicy changes a service's policy: what the request leaves out stays. The
// same policy again changes nothing and writes no entry. strategy and probe check
// those plugins and their configs. Refusals: Invalid, Unavailable (a plugin that
// never answered is restarting).
func (p *Plane) SetPolicy(ctx context.Context, actor string, req *donav1.SetServicePolicyRequest, strategy, probe PluginCheck) error {
	if err := checkPolicy(req); err != nil {
		return err
	}
	away, err := p.checkPlugins(ctx, req, strategy, probe)
	if err != nil {
		return err
	}
	return p.store.Update(ctx, store.Hard, func(tx store.Tx) error {
		old, err := p.Policy(tx, req.Service)
		if err != nil {
			return err
		}
		next := proto.Clone(old).(*donav1.ServicePolicy)
		merge(next, req)
		if next.Probe == "" && next.ProbeConfig != nil {
			return refusal.Field("probe_config", "is set without a probe: set probe too") // taken away meanwhile
		}
		changed := changedParts(old, next)
		if len(changed) == 0 {
			return nil
		}
		if err := store.Save(tx, policyKey(req.Service), &statev1.Policy{Policy: next}); err != nil {
			return err
		}
		if err := p.listProbed(tx, req.Service, next.Probe != ""); err != nil {
			return err
		}
		if err := p.touch(tx, req.Service, change{
			configured: true,
			urgent:     slices.Contains(changed, "residency"),
			bytes:      itemBytes(next.GetResidency()) - itemBytes(old.GetResidency()),
		}); err != nil {
			return err
		}
		if away != nil {
			return away // after what would be refused whether or not the plugin is there
		}
		return p.audit.Append(tx, req.Service, audit.Entry{Kind: "policy.set", Actor: actor, Detail: map[string]string{
			"changed":         audit.Value(changed),
			"allowed_regions": audit.Value(next.GetResidency().GetAllowedRegions()),
			"rule_id":         next.GetResidency().GetRuleId(),
			"strategy":        next.Strategy,
			"probe":           next.Probe,
		}})
	})
}

// noProbe asks for no checks.
const noProbe = "none"

// checkPlugins asks the plugins that a request is about whether they take their
// configs: the plugin and the config that the request names, else those in force.
// away is the answer for when nothing else refuses the request and a plugin could
// not say.
func (p *Plane) checkPlugins(ctx context.Context, req *donav1.SetServicePolicyRequest, strategy, probe PluginCheck) (away, err error) {
	ofProbe := req.Probe != "" && req.Probe != noProbe || req.ProbeConfig != nil
	ofStrategy := req.Strategy != "" || req.StrategyConfig != nil
	if !ofProbe && !ofStrategy {
		return nil, nil
	}
	var next *donav1.ServicePolicy
	if err := p.store.View(ctx, func(tx store.ReadTx) (err error) {
		next, err = p.Policy(tx, req.Service)
		return err
	}); err != nil {
		return nil, err
	}
	merge(next, req)
	if ofProbe && next.Probe == "" {
		return nil, refusal.Field("probe_config", "is set without a probe: set probe too")
	}
	var refused []error
	if ofProbe {
		refused = append(refused, probe(ctx, next.Probe, next.ProbeConfig))
	}
	if ofStrategy && (next.Strategy != "" || next.StrategyConfig != nil) {
		refused = append(refused, strategy(ctx, cmp.Or(next.Strategy, DefaultStrategy), next.StrategyConfig))
	}
	for _, err := range refused {
		if err != nil && !refusal.Is(err, refusal.Unavailable) {
			return nil, err
		}
		away = cmp.Or(away, err)
	}
	return away, nil
}

func checkPolicy(req *donav1.SetServicePolicyRequest) error {
	if err := refusal.Check("service", limits.Service(req.GetService())); err != nil {
		return err
	}
	if req.Residency == nil && req.Strategy == "" && req.StrategyConfig == nil && req.Probe == "" && req.ProbeConfig == nil && !req.ClearResidency {
		return refusal.Field("residency", "is absent, and so is everything else: say what to change")
	}
	if req.ClearResidency && req.Residency != nil {
		return refusal.Field("clear_residency", "is set together with residency: use one of them")
	}
	if r := req.Residency; r != nil {
		if err := CheckRegions("residency.allowed_regions", r.AllowedRegions); err != nil {
			return err
		}
		if len(r.AllowedRegions) == 0 {
			return refusal.Field("residency.allowed_regions", "is empty, which allows every region: to say so use clear_residency")
		}
		if r.RuleId != "" {
			if err := refusal.Check("residency.rule_id", limits.ID(r.RuleId)); err != nil {
				return err
			}
		}
	}
	if req.Strategy != "" {
		if err := refusal.Check("strategy", limits.Name(req.Strategy)); err != nil {
			return err
		}
	}
	if n := proto.Size(req.StrategyConfig); n > limits.PluginConfigLen {
		return refusal.Field("strategy_config", "has %d bytes: allowed are at most %d", n, limits.PluginConfigLen)
	}
	if req.Probe != "" {
		if err := refusal.Check("probe", limits.Name(req.Probe)); err != nil {
			return err
		}
	}
	if n := proto.Size(req.ProbeConfig); n > limits.PluginConfigLen {
		return refusal.Field("probe_config", "has %d bytes: allowed are at most %d", n, limits.PluginConfigLen)
	}
	if req.Probe == noProbe && req.ProbeConfig != nil {
		return refusal.Field("probe_config", "is set together with probe none: use one of them")
	}
	return nil
}

// CheckRegions checks a list of allowed regions.
func CheckRegions(field string, regions []string) error {
	if len(regions) > limits.RegionsPerRule {
		return refusal.Field(field, "has %d regions: allowed are at most %d", len(regions), limits.RegionsPerRule)
	}
	for i, r := range regions {
		if err := refusal.Check(fmt.Sprintf("%s[%d]", field, i), limits.Name(r)); err != nil {
			return err
		}
		if slices.Contains(regions[:i], r) {
			return refusal.Field(fmt.Sprintf("%s[%d]", field, i), "is %s a second time", limits.Quote(r))
		}
	}
	return nil
}

func merge(policy *donav1.ServicePolicy, req *donav1.SetServicePolicyRequest) {
	switch {
	case req.ClearResidency:
		policy.Residency = nil
	case req.Residency != nil:
		policy.Residency = req.Residency
	}
	switch {
	case req.Strategy == "default":
		policy.Strategy, policy.StrategyConfig = "", nil
	case req.Strategy != "" && req.Strategy != policy.Strategy:
		policy.Strategy, policy.StrategyConfig = req.Strategy, nil // another plugin's config says nothing to this one
	}
	if req.StrategyConfig != nil {
		policy.StrategyConfig = req.StrategyConfig
	}
	switch {
	case req.Probe == noProbe:
		policy.Probe, policy.ProbeConfig = "", nil
	case req.Probe != "" && req.Probe != policy.Probe:
		policy.Probe, policy.ProbeConfig = req.Probe, nil // as above
	}
	if req.ProbeConfig != nil {
		policy.ProbeConfig = req.ProbeConfig
	}
}

func changedParts(old, next *donav1.ServicePolicy) (parts []string) {
	if !proto.Equal(old.Residency, next.Residency) {
		parts = append(parts, "residency")
	}
	if old.Strategy != next.Strategy {
		parts = append(parts, "strategy")
	}
	if !proto.Equal(old.StrategyConfig, next.StrategyConfig) {
		parts = append(parts, "strategy_config")
	}
	if old.Probe != next.Probe {
		parts = append(parts, "probe")
	}
	if !proto.Equal(old.ProbeConfig, next.ProbeConfig) {
		parts = append(parts, "probe_config")
	}
	slices.SortFunc(parts, strings.Compare)
	return parts
}
