// Package consistenthash is the built-in strategy that sends what belongs together
// (a user, a cart, a target host) to the same candidate, for caches and sessions
// that live there. A candidate that leaves gives away its own keys only, and none
// gets much more than its share of the calls in flight: V. Mirrokni, M. Thorup,
// M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.
package consistenthash

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "consistent-hash"

// Config is what an operator can set.
type Config struct {
	// Source is what requests are told apart by; empty is the unit. Services know
	// unit and attribute, routings all.
	Source string `json:"source,omitempty" jsonschema:"enum=unit,enum=attribute,enum=header,enum=client_ip,enum=client_id,enum=target_host,default=unit,description=what requests are told apart by"`
	// Name is the attribute's or header's.
	Name string `json:"name,omitempty" jsonschema:"maxLength=128,description=name of the attribute or header"`
	// MaxLoadPercent is how much of the average load, for its weight, one candidate
	// takes before a key goes elsewhere.
	MaxLoadPercent uint32 `json:"max_load_percent,omitempty" jsonschema:"minimum=101,maximum=10000,default=125,description=most of the average calls in flight that one candidate takes"`
}

// sources are the words of a configuration. named ones need a name.
var sources = map[string]struct {
	source donav1.HashPolicy_Source
	named  bool
}{
	"":            {donav1.HashPolicy_SOURCE_UNIT, false},
	"unit":        {donav1.HashPolicy_SOURCE_UNIT, false},
	"attribute":   {donav1.HashPolicy_SOURCE_ATTRIBUTE, true},
	"header":      {donav1.HashPolicy_SOURCE_HEADER, true},
	"client_ip":   {donav1.HashPolicy_SOURCE_CLIENT_IP, false},
	"client_id":   {donav1.HashPolicy_SOURCE_CLIENT_ID, false},
	"target_host": {donav1.HashPolicy_SOURCE_TARGET_HOST, false},
}

// maxName is the most bytes of a name; the schema counts characters.
const maxName = 128

// Strategy implements the plugin.
type Strategy struct{}

// Configure refuses a source without the name it needs, and a name without such
// a source.
func (Strategy) Configure(_ context.Context, c Config) error {
	switch s := sources[c.Source]; {
	case len(c.Name) > maxName:
		return fmt.Errorf("name has %d bytes: allowed are at most %d", len(c.Name), maxName)
	case s.named && c.Name == "":
		return fmt.Errorf("name is empty: set it to the name of the %s to hash by", c.Source)
	case !s.named && c.Name != "":
		return fmt.Errorf("name is set, which is for the sources attribute and header: set source to one of them, or leave name out")
	}
	return nil
}

// Compile returns a consistent hash. Candidates keep their weights, so that one
// that is busy or has just started has fewer keys.
func (Strategy) Compile(ctx context.Context, _ *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:       Name,
		Algorithm:      donav1.Algorithm_ALGORITHM_CONSISTENT_HASH,
		Hash:           &donav1.HashPolicy{Source: sources[config.Source].source, Name: config.Name},
		MaxLoadPercent: config.MaxLoadPercent,
	}}, nil
}
