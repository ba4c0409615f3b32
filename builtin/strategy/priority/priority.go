// Package priority is the built-in strategy that uses groups of candidates (zones
// of a service, upstreams of a routing) in tiers: a lower tier gets everything
// while it has anybody left, and the next one what it cannot take.
package priority

import (
	"context"
	"fmt"
	"maps"
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "priority"

// Config is what an operator can set.
type Config struct {
	// Tiers are groups in order of preference, several to a tier. A group that is in
	// none comes after all of them, so that a new one is a reserve and not ignored.
	// Without tiers the candidates' configured priorities decide.
	Tiers [][]string `json:"tiers,omitempty" jsonschema:"maxItems=16,description=groups (zones or upstreams) in order of preference; the others come last"`
}

// maxGroups bounds the groups of one tier, maxName the bytes of a group's name.
const (
	maxGroups = 64
	maxName   = 128
)

// Strategy implements the plugin.
type Strategy struct{}

// Configure refuses tiers that are empty, too long or say a group twice.
func (Strategy) Configure(_ context.Context, c Config) error {
	at := map[string]string{}
	for i, tier := range c.Tiers {
		if len(tier) == 0 || len(tier) > maxGroups {
			return fmt.Errorf("tiers[%d] has %d groups: allowed are 1 to %d", i, len(tier), maxGroups)
		}
		for j, group := range tier {
			where := fmt.Sprintf("tiers[%d][%d]", i, j)
			if len(group) > maxName {
				return fmt.Errorf("%s has %d bytes: allowed are at most %d", where, len(group), maxName)
			}
			if first, twice := at[group]; twice {
				return fmt.Errorf("%s is %q, which is %s already: a group is in one tier", where, group, first)
			}
			at[group] = where
		}
	}
	return nil
}

// Compile returns the tiers of the groups there are. Candidates keep their
// weights, so the plan changes when a group comes or goes and not with each of
// its endpoints.
func (Strategy) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	config, _ := plugin.Config[Config](ctx)
	rank := byPriority(req.GetCandidates())
	if len(config.Tiers) > 0 {
		rank = byConfig(req.GetCandidates(), config.Tiers)
	}
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:   Name,
		Algorithm:  donav1.Algorithm_ALGORITHM_TIERED,
		GroupTiers: tiers(rank),
	}}, nil
}

// byConfig ranks each group by its place in the configuration.
func byConfig(candidates []*pluginv1.Candidate, listed [][]string) map[string]uint32 {
	place := map[string]uint32{}
	for i, tier := range listed {
		for _, group := range tier {
			place[group] = uint32(i)
		}
	}
	rank := map[string]uint32{}
	for _, c := range candidates {
		at, known := place[c.GetGroup()]
		if !known {
			at = uint32(len(listed))
		}
		rank[c.GetGroup()] = at
	}
	return rank
}

// byPriority ranks each group by the lowest priority of its candidates.
func byPriority(candidates []*pluginv1.Candidate) map[string]uint32 {
	rank := map[string]uint32{}
	for _, c := range candidates {
		if low, seen := rank[c.GetGroup()]; !seen || c.GetPriority() < low {
			rank[c.GetGroup()] = c.GetPriority()
		}
	}
	return rank
}

// tiers numbers the ranks there are from 0. Groups of tier 0 need not be named.
func tiers(rank map[string]uint32) map[string]uint32 {
	ranks := slices.Sorted(maps.Values(rank))
	ranks = slices.Compact(ranks)
	out := map[string]uint32{}
	for group, r := range rank {
		if tier, _ := slices.BinarySearch(ranks, r); tier > 0 {
			out[group] = uint32(tier)
		}
	}
	return out
}
