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
	// Config is full, with version and checksum; its endpoints and flags are sorted
	// by the bytes of their names. It must not be changed.
	Config *donav1.ConfigSnapshot

	endpoints []*item[*donav1.Endpoint] // in the order of Config
	flags     []*item[*donav1.FlagRule]
	fresh     int // encoded bytes that no earlier snapshot holds
	damage    []string
}

// item is an endpoint or a flag as it was read. Snapshots share those that did not
// change between them.
type item[M proto.Message] struct {
	id      string
	version uint64 // of its record
	message M
	hash    [digest.Size]byte
}

// Build makes the snapshot of a service from what the store holds at one
// revision. previous may be nil; what did not change is taken from it, so a
// build costs what changed, and one look at each record's version. A service
// that does not exist has the empty snapshot, at version 0.
//
// A flag or an endpoint whose record is damaged is as previous has it, and left out
// when it has none, so that a rollback or a removal still comes through. What else is
// damaged makes Build fail: without weights, residency or quarantine requests would go
// where they must not.
func (p *Plane) Build(tx store.ReadTx, service string, previous *Snapshot) (*Snapshot, error) {
	head, err := p.Head(tx, service)
	if err != nil {
		return nil, err
	}
	if previous != nil && previous.Config.Version == head.Version {
		return previous, nil
	}
	if previous == nil {
		previous = &Snapshot{}
	}
	next := &Snapshot{Config: &donav1.ConfigSnapshot{
		Service: service, Version: head.Version, Form: donav1.ConfigSnapshot_FORM_FULL,
	}}
	// What is most comes last: on a shared store each round trip reads, and decodes,
	// what came before once more.
	if err := p.readRest(tx, service, next.Config); err != nil {
		return nil, err
	}
	if err := next.readFlags(tx, service, previous); err != nil {
		return nil, err
	}
	if err := next.readEndpoints(tx, service, previous); err != nil {
		return nil, err
	}
	next.seal()
	return next, nil
}

func (s *Snapshot) readEndpoints(tx store.ReadTx, service string, previous *Snapshot) (err error) {
	decode := func(key string, rec store.Record) (*donav1.Endpoint, bool, error) {
		var state statev1.EndpointState
		err := parse(key, rec.Value, &state)
		return state.Endpoint, !state.Out, err
	}
	key := func(id string) string { return endpointKey(service, id) }
	s.endpoints, err = readItems(tx, endpointIndex(service), key, previous.endpoints, decode, digest.EndpointItem, s)
	if err != nil {
		return fmt.Errorf("service: endpoints of %s: %w", service, err)
	}
	s.Config.Endpoints = messages(s.endpoints)
	return nil
}

func (s *Snapshot) readFlags(tx store.ReadTx, service string, previous *Snapshot) (err error) {
	key := func(flag string) string { return flagKey(service, flag) }
	s.flags, err = readItems(tx, flagIndex(service), key, previous.flags, decodeFlag, digest.FlagItem, s)
	if err != nil {
		return fmt.Errorf("service: flags of %s: %w", service, err)
	}
	s.Config.Flags = messages(s.flags)
	return nil
}

// readItems reads what an index lists, in order of the names' bytes, and takes
// from before what did not change since. What decode does not show is left out. It
// adds what it read, and what is damaged, to those of s.
func readItems[M proto.Message](tx store.ReadTx, index string, key func(id string) string, before []*item[M],
	decode func(key string, rec store.Record) (m M, shown bool, err error), hash func(M) [digest.Size]byte, s *Snapshot) ([]*item[M], error) {
	entries, err := tx.Scan(index, 0, 0, 0) // sorts members of one score by bytes
	if err != nil {
		return nil, err
	}
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = key(e.Member)
	}
	records, err := tx.GetMany(keys...)
	if err != nil {
		return nil, err
	}
	items := make([]*item[M], 0, len(records))
	for i, rec := range records {
		if !rec.Exists() {
			continue
		}
		id := entries[i].Member
		for len(before) > 0 && before[0].id < id {
			before = before[1:]
		}
		had := len(before) > 0 && before[0].id == id
		if had && before[0].version == rec.Version {
			items = append(items, before[0])
			continue
		}
		m, shown, err := decode(keys[i], rec)
		if err != nil {
			if s.damage = append(s.damage, err.Error()); had {
				items = append(items, before[0])
			}
			continue
		}
		if !shown {
			continue
		}
		s.fresh += len(rec.Value)
		items = append(items, &item[M]{id: id, version: rec.Version, message: m, hash: hash(m)})
	}
	return items, nil
}

func messages[M proto.Message](items []*item[M]) []M {
	all := make([]M, len(items))
	for i := range items {
		all[i] = items[i].message
	}
	return all
}

func (p *Plane) readRest(tx store.ReadTx, service string, config *donav1.ConfigSnapshot) error {
	if _, err := tx.GetMany(weightsKey(service), policyKey(service), planKey(service), quarantineKey(service)); err != nil {
		return err // one round trip; what follows finds them read
	}
	weights, _, err := p.Weights(tx, service)
	if err != nil {
		return err
	}
	config.Weights = weights.Weights
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

// seal adds up the items and writes the checksum.
func (s *Snapshot) seal() {
	// What is neither endpoint nor flag is little and cheap to hash again.
	rest := &donav1.ConfigSnapshot{
		Weights: s.Config.Weights, Residency: s.Config.Residency,
		Plan: s.Config.Plan, QuarantinedVariants: s.Config.QuarantinedVariants,
	}
	s.fresh += proto.Size(rest)
	total, count := digest.SumOfSnapshot(rest)
	for i := range s.endpoints {
		total.Add(s.endpoints[i].hash)
	}
	for i := range s.flags {
		total.Add(s.flags[i].hash)
	}
	checksum := total.Checksum(count + uint64(len(s.endpoints)+len(s.flags)))
	s.Config.Checksum = checksum[:]
}

// weight is about how many bytes it takes to keep the snapshot beside a later one:
// its lists, and what was decoded for it, which takes about five times its encoded
// bytes.
func (s *Snapshot) weight() int {
	const listed = 16 // a pointer here and one in Config
	return listed*(len(s.endpoints)+len(s.flags)) + 5*s.fresh
}

// Plan reads what the strategy compiled last, and why it is in force. A damaged one is
// none, until a planner has written it anew.
func (p *Plane) Plan(tx store.ReadTx, service string) (*statev1.PlanState, error) {
	var plan statev1.PlanState
	_, err := loadDerived(tx, planKey(service), &plan)
	return &plan, err
}

// Source returns the plane's side of its snapshot feeds.
func (p *Plane) Source() snapshot.Source { return source{p} }

type source struct{ plane *Plane }

// Prefix is the head alone: every change of the snapshot writes it.
func (s source) Prefix(service string) string { return headKey(service) }

func (s source) Peek(tx store.ReadTx, service string) (snapshot.Head, error) {
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
		Version: config.Version, Checksum: config.Checksum, Full: config, Carry: next, Weight: next.weight(), Damage: next.damage,
		Unchanged: &donav1.ConfigSnapshot{
			Service: service, Version: config.Version, Checksum: config.Checksum, Form: donav1.ConfigSnapshot_FORM_UNCHANGED,
		},
	}, nil
}

func (s source) Delta(base, next *snapshot.Built) (proto.Message, error) {
	return Delta(base.Carry.(*Snapshot), next.Carry.(*Snapshot)), nil
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
