package cli_test

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// delivered is what the fake host keeps of a service besides its status.
type delivered struct {
	artifacts []*donav1.Artifact
	releases  []*donav1.Release
}

const fakeTime = 1_700_000_000

func (f *fakeHost) RegisterArtifact(_ context.Context, r *donav1.RegisterArtifactRequest) (*donav1.Artifact, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.service(r.GetService())
	d := f.delivered[r.GetService()]
	for _, a := range d.artifacts {
		if a.GetVersion() == r.GetVersion() {
			if a.GetDigest() != r.GetDigest() {
				return nil, status.Error(codes.AlreadyExists, "digest is another one")
			}
			return a, nil
		}
	}
	a := &donav1.Artifact{Service: r.GetService(), Version: r.GetVersion(), Uri: r.GetUri(), Digest: r.GetDigest(), Labels: r.GetLabels(),
		Id: r.GetService() + ":" + r.GetVersion(), CreatedUnix: fakeTime}
	d.artifacts = slices.Insert(d.artifacts, 0, a)
	f.delivered[r.GetService()] = d
	return a, nil
}

func (f *fakeHost) CreateRelease(_ context.Context, r *donav1.CreateReleaseRequest) (*donav1.Release, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.delivered[r.GetService()]
	if !slices.ContainsFunc(d.artifacts, func(a *donav1.Artifact) bool { return a.GetId() == r.GetArtifactId() }) {
		return nil, status.Errorf(codes.NotFound, "artifact_id is %q, which service %s does not have", r.GetArtifactId(), r.GetService())
	}
	n := uint64(len(d.releases) + 1)
	release := &donav1.Release{Service: r.GetService(), ArtifactId: r.GetArtifactId(), Variant: r.GetVariant(), Config: r.GetConfig(),
		Id: fmt.Sprintf("%s/%d", r.GetService(), n), Number: n, CreatedUnix: fakeTime}
	d.releases = slices.Insert(d.releases, 0, release)
	f.delivered[r.GetService()] = d
	return release, nil
}

func (f *fakeHost) ListArtifacts(_ context.Context, r *donav1.ListArtifactsRequest) (*donav1.ListArtifactsReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.known(r.GetService())
	return &donav1.ListArtifactsReply{Artifacts: f.delivered[r.GetService()].artifacts}, err
}

func (f *fakeHost) ListReleases(_ context.Context, r *donav1.ListReleasesRequest) (*donav1.ListReleasesReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.known(r.GetService())
	return &donav1.ListReleasesReply{Releases: f.delivered[r.GetService()].releases}, err
}

func (f *fakeHost) StartDeployment(_ context.Context, r *donav1.StartDeploymentRequest) (*donav1.Deployment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, d := range f.delivered {
		if slices.ContainsFunc(d.releases, func(x *donav1.Release) bool { return x.GetId() == r.GetReleaseId() }) {
			started := &donav1.Deployment{Id: fmt.Sprint("d-", len(f.services[name].Deployments)+1), ReleaseId: r.GetReleaseId(), Environment: r.GetEnvironment(),
				Regions: r.GetRegions(), Strategy: r.GetStrategy(), State: donav1.Deployment_STATE_WAITING, Reason: "waits: no endpoint (0 of 600 s)",
				CreatedUnix: fakeTime, UpdatedUnix: fakeTime}
			f.services[name].Deployments = slices.Insert(f.services[name].Deployments, 0, started)
			return proto.CloneOf(started), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "release_id is %q, and there is no such release", r.GetReleaseId())
}

func (f *fakeHost) SetIngress(_ context.Context, r *donav1.SetIngressRequest) (*donav1.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.known(r.GetService())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.Ingresses, func(x *donav1.Ingress) bool {
		return x.GetHost() == r.GetHost() && x.GetPathPrefix() == r.GetPathPrefix()
	})
	switch {
	case i >= 0:
		s.Ingresses = slices.Delete(s.Ingresses, i, i+1)
	case r.GetDelete():
		return nil, status.Error(codes.NotFound, "there is no such rule")
	}
	if !r.GetDelete() {
		s.Ingresses = append(s.Ingresses, &donav1.Ingress{Service: r.GetService(), Host: r.GetHost(), PathPrefix: r.GetPathPrefix(), AllowedRegions: r.GetAllowedRegions()})
	}
	return &donav1.Empty{}, nil
}

func (f *fakeHost) SetSharedService(_ context.Context, r *donav1.SetSharedServiceRequest) (*donav1.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.service(r.GetService())
	if s.Shared = nil; !r.GetDelete() {
		s.Shared = &donav1.SharedService{Service: r.GetService(), Consumers: r.GetConsumers(), AllowedRegions: r.GetAllowedRegions()}
	}
	return &donav1.Empty{}, nil
}
