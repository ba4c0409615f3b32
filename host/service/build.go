package service

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// Snapshot is one version of a service's snapshot and what the next build can
// use of it again. It is immutable.
type Snapshot struct {
	// Config is full, with version and checksum. It must not be changed.
	Config *donav1.ConfigSnapshot

	endpoints map[string]builtEndpoint
}

type builtEndpoint struct {
	version  uint64 // of its record
	endpoint *donav1.Endpoint
	item     [digest.Size]byte
}

// Build makes the snapshot of a service from what the store holds at one
// revision. previous may be nil; what did not change is taken from it, so a
// build costs what changed, and one look at each record's version. A service
// that does not exist has the empty snapshot, at version 0.
func (p *Plane) Build(tx store.ReadTx, service string, previous *Snapshot) (*Snapshot, error) {
	version, _, err := p.Head(tx, service)
	if err != nil {
		return nil, err
	}
	if previous != nil && previous.Config.Version == version {
		return previous, nil
	}
	next := &Snapshot{Config: &donav1.ConfigSnapshot{
		Service: service, Version: version, Form: donav1.ConfigSnapshot_FORM_FULL,
	}}
	if err := next.readEndpoints(tx, service, previous); err != nil {
		return nil, err
	}
	if err := p.readRest(tx, service, next.Config); err != nil {
		return nil, err
	}
	next.seal()
	return next, nil
}

func (s *Snapshot) readEndpoints(tx store.ReadTx, service string, previous *Snapshot) error {
	entries, err := tx.Scan(endpointIndex(service), 0, 0, 0)
	if err != nil {
		return err
	}
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = endpointKey(service, e.Member)
	}
	records, err := tx.GetMany(keys...)
	if err != nil {
		return err
	}
	s.endpoints = make(map[string]builtEndpoint, len(records))
	s.Config.Endpoints = make([]*donav1.Endpoint, 0, len(records))
	for i, rec := range records {
		if !rec.Exists() {
			continue
		}
		id := entries[i].Member
		var built builtEndpoint
		if previous != nil {
			built = previous.endpoints[id]
		}
		if built.version != rec.Version {
			var state statev1.EndpointState
			if err := proto.Unmarshal(rec.Value, &state); err != nil {
				return fmt.Errorf("service: endpoint %s of %s: %w", id, service, err)
			}
			built = builtEndpoint{version: rec.Version, endpoint: state.Endpoint, item: digest.EndpointItem(state.Endpoint)}
		}
		s.endpoints[id] = built
		s.Config.Endpoints = append(s.Config.Endpoints, built.endpoint)
	}
	return nil
}

func (p *Plane) readRest(tx store.ReadTx, service string, config *donav1.ConfigSnapshot) error {
	weights, _, err := p.Weights(tx, service)
	if err != nil {
		return err
	}
	config.Weights = weights.Weights
	if config.Flags, err = p.Flags(tx, service); err != nil {
		return err
	}
	policy, err := p.Policy(tx, service)
	if err != nil {
		return err
	}
	config.Residency = policy.Residency
	plan, err := p.Plan(tx, service)
	if err != nil {
		return err
	}
	config.Plan = plan.Plan
	quarantine, err := p.Quarantined(tx, service)
	if err != nil {
		return err
	}
	for _, q := range quarantine.Variants {
		config.QuarantinedVariants = append(config.QuarantinedVariants, q.Variant)
	}
	return nil
}

// seal adds the items that are not endpoints to the sum and writes the checksum.
func (s *Snapshot) seal() {
	rest := &donav1.ConfigSnapshot{
		Weights: s.Config.Weights, Flags: s.Config.Flags, Residency: s.Config.Residency,
		Plan: s.Config.Plan, QuarantinedVariants: s.Config.QuarantinedVariants,
	}
	// The others are few next to endpoints and cheap to hash again.
	total, count := digest.SumOfSnapshot(rest)
	for _, e := range s.endpoints {
		total.Add(e.item)
	}
	checksum := total.Checksum(count + uint64(len(s.endpoints)))
	s.Config.Checksum = checksum[:]
}

// Plan reads what the strategy compiled last, and why it is in force.
func (p *Plane) Plan(tx store.ReadTx, service string) (*statev1.PlanState, error) {
	var plan statev1.PlanState
	_, err := store.Load(tx, planKey(service), &plan)
	return &plan, err
}

// Source returns the plane's side of its snapshot feeds.
func (p *Plane) Source() snapshot.Source { return source{p} }

type source struct{ plane *Plane }

// Prefix is the head alone: every change of the snapshot writes it.
func (s source) Prefix(service string) string { return headKey(service) }

func (s source) Peek(tx store.ReadTx, service string) (version, urgent uint64, err error) {
	return s.plane.Head(tx, service)
}

func (s source) Build(tx store.ReadTx, service string, previous *snapshot.Built) (*snapshot.Built, error) {
	var before *Snapshot
	if previous != nil {
		before = previous.Carry.(*Snapshot)
	}
	next, err := s.plane.Build(tx, service, before)
	if err != nil {
		return nil, err
	}
	config := next.Config
	return &snapshot.Built{
		Version: config.Version, Checksum: config.Checksum, Full: config, Carry: next,
		Unchanged: &donav1.ConfigSnapshot{
			Service: service, Version: config.Version, Checksum: config.Checksum, Form: donav1.ConfigSnapshot_FORM_UNCHANGED,
		},
	}, nil
}

// Renew makes a new version of a service's snapshot, changed or not. A service
// that does not exist stays so.
func (p *Plane) Renew(ctx context.Context, service string) error {
	return p.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		if exists, err := p.Exists(tx, service); err != nil || !exists {
			return err
		}
		return p.touch(tx, service, change{urgent: true})
	})
}
