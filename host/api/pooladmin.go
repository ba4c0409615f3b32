package api

import (
	"context"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// Reserve is what operators of the egress plane talk to; a *pool.Pool is one.
type Reserve interface {
	Publish(ctx context.Context, actor string, req *controlplanev1.PublishConfigRequest) (*controlplanev1.PublishConfigResponse, error)
	Config(ctx context.Context) (*controlplanev1.GetConfigResponse, error)
	SetUpstream(ctx context.Context, actor string, req *controlplanev1.SetUpstreamEnabledRequest) (*controlplanev1.PoolRevision, error)
	SetRouting(ctx context.Context, actor string, req *controlplanev1.SetRoutingRequest) (*controlplanev1.PoolRevision, error)
	Import(ctx context.Context, actor string, req *controlplanev1.ImportProxiesRequest) (*controlplanev1.ImportProxiesResponse, error)
	ListProxies(ctx context.Context, req *controlplanev1.ListProxiesRequest) (*controlplanev1.ListProxiesResponse, error)
	Workers(ctx context.Context) (*controlplanev1.ListWorkersResponse, error)
	BeginDrain(ctx context.Context, actor string, req *controlplanev1.BeginDrainRequest) (*controlplanev1.DrainTicket, error)
	Extract(ctx context.Context, actor string, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error)
	Availability(ctx context.Context) (*controlplanev1.GetAvailabilityResponse, error)
}

// PoolAdmin serves controlplane.v1.PoolAdmin. Its fields are set once, before the
// server starts.
type PoolAdmin struct {
	controlplanev1.UnimplementedPoolAdminServer

	Pool Reserve
}

// PublishConfig checks a configuration and puts it in force.
func (s *PoolAdmin) PublishConfig(ctx context.Context, req *controlplanev1.PublishConfigRequest) (*controlplanev1.PublishConfigResponse, error) {
	return s.Pool.Publish(ctx, actor(ctx), req)
}

// GetConfig returns the document that is in force.
func (s *PoolAdmin) GetConfig(ctx context.Context, _ *controlplanev1.GetConfigRequest) (*controlplanev1.GetConfigResponse, error) {
	return s.Pool.Config(ctx)
}

// SetUpstreamEnabled switches an upstream on or off.
func (s *PoolAdmin) SetUpstreamEnabled(ctx context.Context, req *controlplanev1.SetUpstreamEnabledRequest) (*controlplanev1.PoolRevision, error) {
	return s.Pool.SetUpstream(ctx, actor(ctx), req)
}

// SetRouting switches a routing, and may change its upstreams and strategy.
func (s *PoolAdmin) SetRouting(ctx context.Context, req *controlplanev1.SetRoutingRequest) (*controlplanev1.PoolRevision, error) {
	return s.Pool.SetRouting(ctx, actor(ctx), req)
}

// ImportProxies adds the proxies of a list to an upstream.
func (s *PoolAdmin) ImportProxies(ctx context.Context, req *controlplanev1.ImportProxiesRequest) (*controlplanev1.ImportProxiesResponse, error) {
	return s.Pool.Import(ctx, actor(ctx), req)
}

// ListProxies lists what there is, page by page.
func (s *PoolAdmin) ListProxies(ctx context.Context, req *controlplanev1.ListProxiesRequest) (*controlplanev1.ListProxiesResponse, error) {
	return s.Pool.ListProxies(ctx, req)
}

// ListWorkers lists the workers.
func (s *PoolAdmin) ListWorkers(ctx context.Context, _ *controlplanev1.ListWorkersRequest) (*controlplanev1.ListWorkersResponse, error) {
	return s.Pool.Workers(ctx)
}

// BeginDrain has a proxy taken from its owner.
func (s *PoolAdmin) BeginDrain(ctx context.Context, req *controlplanev1.BeginDrainRequest) (*controlplanev1.DrainTicket, error) {
	return s.Pool.BeginDrain(ctx, actor(ctx), req)
}

// Extract gives proxies away for good.
func (s *PoolAdmin) Extract(ctx context.Context, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error) {
	return s.Pool.Extract(ctx, actor(ctx), req)
}

// GetAvailability counts the proxies of each upstream.
func (s *PoolAdmin) GetAvailability(ctx context.Context, _ *controlplanev1.GetAvailabilityRequest) (*controlplanev1.GetAvailabilityResponse, error) {
	return s.Pool.Availability(ctx)
}
