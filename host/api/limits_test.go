package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

// explosive is a store in which every hard update panics.
type explosive struct{ store.Store }

func (s explosive) Update(c context.Context, d store.Durability, fn func(store.Tx) error) error {
	if d == store.Hard {
		panic("a secret of the host")
	}
	return s.Store.Update(c, d, fn)
}

// TestPanic: a call that panics fails alone, and its answer tells nothing of the
// host's inside.
func TestPanic(t *testing.T) {
	e := newEdge(t, withStore(func(s store.Store) store.Store { return explosive{s} }))
	e.register(endpoint(nil))
	_, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	refused(t, "a call that panics", err, codes.Internal, "")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the answer is %v", err)
	}
	if list, err := e.client.ListServices(ctx(t), &donav1.ListServicesRequest{}); err != nil || len(list.Services) != 1 {
		t.Errorf("the next call gives %v, %v", list, err)
	}
}

// TestAtTheLimit: what is exactly as large as allowed is taken; TestBadInput has
// one more of each.
func TestAtTheLimit(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	name := strings.Repeat("x", limits.NameLen)
	e.register(endpoint(func(b *donav1.EndpointHeartbeat) {
		b.Service, b.EndpointId, b.Variant, b.Region, b.Zone = strings.Repeat("s", limits.ServiceNameLen), name, name, name, name
		b.Address, b.Utilization, b.Labels = strings.Repeat("h", limits.HostLen)+":65535", 1, labels(limits.Labels-1)
		b.Labels[strings.Repeat("k", limits.LabelKeyLen)] = strings.Repeat("v", limits.LabelValueLen)
	}))
	_, err := e.client.SetFlag(ctx(t), targeting(func(r *donav1.TargetingRule) {
		r.Attribute, r.Variant = strings.Repeat("a", limits.AttributeLen), name
		r.Values = []string{strings.Repeat("v", limits.ValueLen)}
	}))
	fatal(t, err)
	_, err = e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) {
		r.Flag, r.RolloutPercent, r.Targeting = name, 100, make([]*donav1.TargetingRule, limits.TargetingRules)
		fill(r.Targeting)
	}))
	fatal(t, err)
	items := make4097()[:limits.StatsItems]
	ack, err := e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: name, Sequence: 1, Calls: items})
	if err != nil || ack.Dropped != limits.StatsItems {
		t.Errorf("a batch of as many as allowed, of no service: %v, %v", ack, err)
	}
	_, err = e.client.StartRollout(ctx(t), start(func(r *donav1.StartRolloutRequest) {
		r.StepSeconds, r.MaxErrorPercent, r.MinRequests, r.Steps = limits.MaxStepSeconds, 100, limits.MaxMinRequests, nil
		for i := range uint32(limits.RolloutSteps) {
			r.Steps = append(r.Steps, 100-limits.RolloutSteps+1+i)
		}
	}))
	fatal(t, err)
	_, err = e.client.ControlRollout(ctx(t), &donav1.ControlRolloutRequest{Service: "web",
		Action: donav1.ControlRolloutRequest_ACTION_PAUSE, Reason: strings.Repeat("r", limits.ReasonLen)})
	fatal(t, err)
}

// TestBadItems: each bad item of a batch is dropped and counted, the good one
// beside it counts.
func TestBadItems(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	c, now := ctx(t), time.Now()
	call := func(change func(*donav1.CallOutcome)) *donav1.CallOutcome {
		o := &donav1.CallOutcome{Service: "web", Variant: "v1", EndpointId: "a", Success: true, UnixMs: now.UnixMilli()}
		change(o)
		return o
	}
	bad := map[string]*donav1.CallOutcome{
		"empty":           {},
		"unknown service": call(func(o *donav1.CallOutcome) { o.Service = "nope" }),
		"unknown variant": call(func(o *donav1.CallOutcome) { o.Variant = "nope" }),
		"the future":      call(func(o *donav1.CallOutcome) { o.UnixMs = now.Add(time.Hour).UnixMilli() }),
		"the past":        call(func(o *donav1.CallOutcome) { o.UnixMs = now.Add(-time.Hour).UnixMilli() }),
		"latency":         call(func(o *donav1.CallOutcome) { o.LatencyUs = limits.LatencyUs + 1 }),
		"a long code":     call(func(o *donav1.CallOutcome) { o.Code = strings.Repeat("c", limits.CodeLen+1) }),
		"count":           call(func(o *donav1.CallOutcome) { o.Count = limits.CountPerItem + 1 }),
		"caller":          call(func(o *donav1.CallOutcome) { o.CallerService = "../x" }),
		"endpoint":        call(func(o *donav1.CallOutcome) { o.EndpointId = "a b" }),
	}
	sequence := uint64(0)
	for name, item := range bad {
		sequence++
		ack, err := e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: "r", Sequence: sequence,
			Calls: []*donav1.CallOutcome{item, call(func(*donav1.CallOutcome) {})}})
		if err != nil || ack.Dropped != 1 {
			t.Errorf("%s: %v, %v, want one dropped", name, ack, err)
		}
	}
	s, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	requests := uint64(0)
	for _, v := range s.Stats {
		requests += v.Requests
	}
	if requests != uint64(len(bad)) {
		t.Errorf("%d calls count, want the %d good ones", requests, len(bad))
	}
}

// TestPolicyMerge: what a request leaves out stays, and the same again stores
// nothing.
func TestPolicyMerge(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	set := func(req *donav1.SetServicePolicyRequest) *donav1.ServicePolicy {
		t.Helper()
		req.Service = "web"
		_, err := e.client.SetServicePolicy(c, req)
		fatal(t, err)
		s, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "web"})
		fatal(t, err)
		return s.Policy
	}
	eu := &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"}
	set(&donav1.SetServicePolicyRequest{Residency: eu})
	p := set(&donav1.SetServicePolicyRequest{Strategy: "round-robin"})
	if !proto.Equal(p.Residency, eu) || p.Strategy != "round-robin" {
		t.Errorf("after both requests the policy is %v", p)
	}
	before := e.written()
	set(&donav1.SetServicePolicyRequest{Strategy: "round-robin", Residency: eu})
	if e.written() != before {
		t.Error("the same policy again stored something")
	}
	if p = set(&donav1.SetServicePolicyRequest{ClearResidency: true}); p.Residency != nil || p.Strategy != "round-robin" {
		t.Errorf("without residency the policy is %v", p)
	}
}
