package service

import (
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/store"
)

// Plane implements check.Plane: a service whose policy has a probe has its
// endpoints checked.
var _ check.Plane = (*Plane)(nil)

// CheckPlane is the plane's name in host/check.
const CheckPlane = "service"

// listProbed keeps the list of services whose policy has a probe.
func (p *Plane) listProbed(tx store.Tx, service string, probed bool) error {
	if probed {
		return tx.IndexPut(probedIndex, service, 0)
	}
	return tx.IndexDelete(probedIndex, service)
}

// Scopes lists the services whose policy has a probe.
func (p *Plane) Scopes(tx store.ReadTx) ([]string, error) {
	entries, err := tx.Scan(probedIndex, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Member
	}
	// For Scope, which is asked about each.
	return names, store.Fetch(tx, entries, headKey, urgentKey, removedKey, policyKey)
}

// Scope says how a service's endpoints are checked. Its version moves with the
// head, which every change of an endpoint or of the policy writes.
func (p *Plane) Scope(tx store.ReadTx, service string) (check.Scope, error) {
	head, err := p.Head(tx, service)
	if err != nil {
		return check.Scope{}, err
	}
	policy, err := p.Policy(tx, service)
	return check.Scope{Version: head.Version, Probe: policy.GetProbe(), Config: policy.GetProbeConfig()}, err
}

// Targets lists a service's endpoints that do not drain: those that do are about
// to go by themselves.
func (p *Plane) Targets(tx store.ReadTx, service string) ([]check.Target, error) {
	entries, err := tx.Scan(endpointIndex(service), 0, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, func(id string) string { return endpointKey(service, id) }); err != nil {
		return nil, err
	}
	targets := make([]check.Target, 0, len(entries))
	for _, e := range entries {
		var ep statev1.EndpointState
		version, damaged, err := loadOld(tx, endpointKey(service, e.Member), &ep)
		if err != nil {
			return nil, err
		}
		if version == 0 || damaged || ep.Draining {
			continue
		}
		targets = append(targets, check.Target{
			ID: e.Member, Address: ep.Endpoint.Address, RegisteredMs: ep.RegisteredMs, Out: ep.Out,
			Variant: ep.Endpoint.Variant, Region: ep.Endpoint.Region,
		})
	}
	return targets, nil
}

// SetOut takes an endpoint out of the snapshot, or brings it back; one that
// registered anew since registeredMs stays as it is. The endpoint keeps its place
// within the limits while it is out, so that it can always come back.
func (p *Plane) SetOut(tx store.Tx, service, id string, registeredMs int64, out bool) error {
	key := endpointKey(service, id)
	var from statev1.EndpointState
	version, damaged, err := loadOld(tx, key, &from)
	if err != nil || version == 0 || damaged || from.Out == out || from.RegisteredMs != registeredMs {
		return err
	}
	to := proto.CloneOf(&from)
	to.Out = out
	if err := store.Save(tx, key, to); err != nil {
		return err
	}
	return p.touch(tx, service, endpointChange(&from, to))
}
