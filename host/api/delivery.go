package api

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/store"
)

// RegisterArtifact keeps a build of a service for good.
func (s *ControlPlane) RegisterArtifact(ctx context.Context, req *donav1.RegisterArtifactRequest) (*donav1.Artifact, error) {
	return s.Delivery.RegisterArtifact(ctx, actor(ctx), req)
}

// CreateRelease binds an artifact, a variant and a configuration.
func (s *ControlPlane) CreateRelease(ctx context.Context, req *donav1.CreateReleaseRequest) (*donav1.Release, error) {
	return s.Delivery.CreateRelease(ctx, actor(ctx), req)
}

// StartDeployment begins to bring a release to where requests are.
func (s *ControlPlane) StartDeployment(ctx context.Context, req *donav1.StartDeploymentRequest) (*donav1.Deployment, error) {
	return s.Delivery.Start(ctx, actor(ctx), req)
}

// ListArtifacts lists a service's artifacts, the newest first.
func (s *ControlPlane) ListArtifacts(ctx context.Context, req *donav1.ListArtifactsRequest) (reply *donav1.ListArtifactsReply, err error) {
	err = s.Store.View(ctx, func(tx store.ReadTx) error {
		artifacts, err := s.Delivery.Artifacts(tx, req.Service)
		reply = &donav1.ListArtifactsReply{Artifacts: artifacts}
		return err
	})
	return reply, err
}

// ListReleases lists a service's releases, the newest first.
func (s *ControlPlane) ListReleases(ctx context.Context, req *donav1.ListReleasesRequest) (reply *donav1.ListReleasesReply, err error) {
	err = s.Store.View(ctx, func(tx store.ReadTx) error {
		releases, err := s.Delivery.Releases(tx, req.Service)
		reply = &donav1.ListReleasesReply{Releases: releases}
		return err
	})
	return reply, err
}

// delivered adds to a status what brings a service's traffic to it, and who may
// watch it.
func (s *ControlPlane) delivered(tx store.ReadTx, name string, reply *donav1.StatusReply) (err error) {
	if reply.Deployments, err = s.Delivery.Deployments(tx, name); err != nil {
		return err
	}
	if reply.Ingresses, err = s.Plane.Ingresses(tx, name); err != nil {
		return err
	}
	reply.Shared, err = s.Plane.Shared(tx, name)
	return err
}
