package cli_test

import (
	"context"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// fakePool is the egress plane of a fakeHost: a configuration that can be published,
// and answers that a script gave.
type fakePool struct {
	yaml     string
	revision uint64
	warnings []string

	proxies      controlplanev1.ListProxiesResponse
	workers      controlplanev1.ListWorkersResponse
	availability controlplanev1.GetAvailabilityResponse
	drain        controlplanev1.DrainTicket
	imported     controlplanev1.ImportProxiesResponse
	extracted    controlplanev1.ExtractResponse
}

// answer is the message that a script calls by a name.
func (p *fakePool) answer(name string) proto.Message {
	return map[string]proto.Message{
		"proxies": &p.proxies, "workers": &p.workers, "availability": &p.availability,
		"drain": &p.drain, "import": &p.imported, "extract": &p.extracted,
	}[name]
}

func (f *fakeHost) PublishConfig(_ context.Context, r *controlplanev1.PublishConfigRequest) (*controlplanev1.PublishConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := r.GetExpectedRevision(); e != 0 && e != f.pool.revision {
		return nil, status.Errorf(codes.FailedPrecondition, "expected_revision is %d, the current one is %d", e, f.pool.revision)
	}
	if !r.GetDryRun() {
		f.pool.yaml = r.GetYaml()
		f.pool.revision++
	}
	return &controlplanev1.PublishConfigResponse{Revision: f.pool.revision, Warnings: f.pool.warnings}, nil
}

func (f *fakeHost) GetConfig(context.Context, *controlplanev1.GetConfigRequest) (*controlplanev1.GetConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &controlplanev1.GetConfigResponse{Revision: f.pool.revision, Yaml: f.pool.yaml}, nil
}

func (f *fakeHost) SetUpstreamEnabled(context.Context, *controlplanev1.SetUpstreamEnabledRequest) (*controlplanev1.PoolRevision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool.revision++
	return &controlplanev1.PoolRevision{Revision: f.pool.revision}, nil
}

func (f *fakeHost) SetRouting(context.Context, *controlplanev1.SetRoutingRequest) (*controlplanev1.PoolRevision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool.revision++
	return &controlplanev1.PoolRevision{Revision: f.pool.revision}, nil
}

func (f *fakeHost) ImportProxies(context.Context, *controlplanev1.ImportProxiesRequest) (*controlplanev1.ImportProxiesResponse, error) {
	return &f.pool.imported, nil
}

// ListProxies gives pages out; a token is where the next one begins.
func (f *fakeHost) ListProxies(_ context.Context, r *controlplanev1.ListProxiesRequest) (*controlplanev1.ListProxiesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, _ := strconv.Atoi(r.GetPageToken())
	all := f.pool.proxies.GetProxies()
	to := min(from+int(r.GetPageSize()), len(all))
	page := &controlplanev1.ListProxiesResponse{Proxies: all[from:to]}
	if to < len(all) {
		page.NextPageToken = strconv.Itoa(to)
	}
	return page, nil
}

func (f *fakeHost) ListWorkers(context.Context, *controlplanev1.ListWorkersRequest) (*controlplanev1.ListWorkersResponse, error) {
	return &f.pool.workers, nil
}

func (f *fakeHost) BeginDrain(context.Context, *controlplanev1.BeginDrainRequest) (*controlplanev1.DrainTicket, error) {
	return &f.pool.drain, nil
}

func (f *fakeHost) Extract(context.Context, *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error) {
	return &f.pool.extracted, nil
}

func (f *fakeHost) GetAvailability(context.Context, *controlplanev1.GetAvailabilityRequest) (*controlplanev1.GetAvailabilityResponse, error) {
	return &f.pool.availability, nil
}
