package poolconfig

import (
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Message is the routing as workers are sent it, without its plan.
func (r *Routing) Message() *controlplanev1.Routing {
	m := &controlplanev1.Routing{
		Name:          r.Name,
		Match:         &controlplanev1.RoutingMatch{Hosts: r.Match.Hosts, Ports: r.Match.Ports, Clients: r.Match.Clients, Methods: r.Match.Methods},
		OnUnavailable: r.OnUnavailable,
		Resolve:       r.Resolve,
		TargetPolicy:  r.TargetPolicy.Message(),
	}
	for _, ref := range r.Upstreams {
		m.Upstreams = append(m.Upstreams, &controlplanev1.UpstreamRef{Name: ref.Name, Weight: ref.Weight, Priority: ref.Priority})
	}
	if r.WaitTimeout > 0 {
		m.WaitTimeout = durationpb.New(r.WaitTimeout)
	}
	if s := r.Stickiness; s.Mode != controlplanev1.Stickiness_MODE_UNSPECIFIED {
		m.Stickiness = &controlplanev1.Stickiness{Mode: s.Mode}
		if s.TTL > 0 {
			m.Stickiness.Ttl = durationpb.New(s.TTL)
		}
		if s.Idle > 0 {
			m.Stickiness.Idle = durationpb.New(s.Idle)
		}
	}
	for _, t := range r.Targets {
		m.CheckTargets = append(m.CheckTargets, t.URL)
	}
	return m
}

// Message is the policy as workers are sent it.
func (t TargetPolicy) Message() *controlplanev1.TargetPolicy {
	return &controlplanev1.TargetPolicy{
		AllowHosts: t.AllowHosts, DenyHosts: t.DenyHosts, AllowPorts: t.AllowPorts,
		AllowCidrs: t.AllowCIDRs, DenyCidrs: t.DenyCIDRs, AllowPrivate: t.AllowPrivate,
	}
}
