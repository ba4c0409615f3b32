package api

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/delivery"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
)

// ControlPlane serves dona.v1.ControlPlane. Its fields are set once, before the
// server starts.
type ControlPlane struct {
	donav1.UnimplementedControlPlaneServer

	Store    store.Store
	Audit    *audit.Log
	Plane    *service.Plane
	Reports  *service.Reports
	Sessions *session.Registry
	Feeds    *snapshot.Feeds
	Rollouts *rollout.Controller
	Delivery *delivery.Controller
	Attester *audit.Attester
	Checks   Checks
	Strategy service.PluginCheck // judges a strategy plugin's name and config
	Probe    service.PluginCheck // judges a probe plugin's name and config
	Wall     Clock
	Stopping <-chan struct{} // closed when streams have to move to another host

	watches  watches
	sharings sharings
}

// Checks knows the health of what is checked.
type Checks interface {
	// Status is nil when nothing of the scope is checked.
	Status(tx store.ReadTx, plane, scope string) (*donav1.CheckStatus, error)
}

// WatchConfig streams a service's snapshots.
func (s *ControlPlane) WatchConfig(req *donav1.WatchConfigRequest, stream donav1.ControlPlane_WatchConfigServer) error {
	if err := checkWatch(req); err != nil {
		return err
	}
	ctx, leave, err := s.admitWatch(stream.Context(), req)
	if err != nil {
		return err
	}
	defer leave()
	sub, err := s.Feeds.Subscribe(req.Service, snapshot.Watcher{
		Client: reporter(ctx).Name(req.ClientId), LastVersion: req.LastVersion, LastChecksum: req.LastChecksum, AcceptDelta: req.AcceptDelta,
	})
	if err != nil {
		return err
	}
	return shutOut(ctx, s.Feeds.Serve(ctx, stream, sub))
}

func checkWatch(req *donav1.WatchConfigRequest) error {
	if err := refusal.Check("service", limits.Service(req.Service)); err != nil {
		return err
	}
	if req.ClientId != "" {
		if err := refusal.Check("client_id", limits.ID(req.ClientId)); err != nil {
			return err
		}
	}
	if n := len(req.LastChecksum); n != 0 && n != 32 {
		return refusal.Field("last_checksum", "has %d bytes: allowed are 32, or none", n)
	}
	if req.CallerService != "" {
		if err := refusal.Check("caller_service", limits.Service(req.CallerService)); err != nil {
			return err
		}
	}
	return refusal.Check("caller_region", limits.OptionalName(req.CallerRegion))
}

// ReportStats counts a batch once and answers when its audits are durable. A workload
// reports as a caller for its own service alone.
func (s *ControlPlane) ReportStats(ctx context.Context, batch *donav1.StatsBatch) (*donav1.ReportAck, error) {
	if err := service.CheckBatch(batch); err != nil {
		return nil, err
	}
	by := reporter(ctx)
	for i, c := range batch.Calls {
		if c.GetCallerService() == "" {
			continue
		}
		if err := who(ctx).is(identity.Service, fmt.Sprintf("calls[%d].caller_service", i), c.CallerService); err != nil {
			return nil, err
		}
	}
	ack, applied, err := s.Reports.Take(ctx, by, batch)
	if err != nil {
		return nil, err
	}
	for _, a := range applied {
		s.Feeds.Applied(a.Service, by.Name(batch.ReporterId), a.Version, a.RejectedReason)
	}
	return ack, nil
}

// reporter is the caller as one that watches and reports.
func reporter(ctx context.Context) service.Reporter {
	return service.Reporter{Actor: actor(ctx), Service: who(ctx).service()}
}

// GetAttestation returns a signed report of a service's audit chain, or of the
// host's own.
func (s *ControlPlane) GetAttestation(ctx context.Context, req *donav1.AttestationRequest) (*donav1.AttestationReply, error) {
	report, signature, err := s.Attester.Report(ctx, actor(ctx), audit.Question{
		Chain: req.Service, FromUnix: req.FromUnix, ToUnix: req.ToUnix, FromSeq: req.FromSeq, Nonce: req.Nonce, MaxEntries: req.MaxEntries,
	})
	if err != nil {
		return nil, err
	}
	return &donav1.AttestationReply{ReportJson: report, Signature: signature, SignerPublicKeyPem: s.Attester.Signer.PublicPEM()}, nil
}

// SetFlag sets or deletes a flag.
func (s *ControlPlane) SetFlag(ctx context.Context, req *donav1.SetFlagRequest) (*donav1.Empty, error) {
	return &donav1.Empty{}, s.Plane.SetFlag(ctx, actor(ctx), req)
}

// SetServicePolicy changes residency, strategy and probe.
func (s *ControlPlane) SetServicePolicy(ctx context.Context, req *donav1.SetServicePolicyRequest) (*donav1.Empty, error) {
	return &donav1.Empty{}, s.Plane.SetPolicy(ctx, actor(ctx), req, s.Strategy, s.Probe)
}

// StartRollout starts a canary.
func (s *ControlPlane) StartRollout(ctx context.Context, req *donav1.StartRolloutRequest) (*donav1.Empty, error) {
	return &donav1.Empty{}, s.Rollouts.Start(ctx, actor(ctx), req)
}

// ControlRollout pauses, resumes, promotes or aborts a rollout, or lifts a
// quarantine.
func (s *ControlPlane) ControlRollout(ctx context.Context, req *donav1.ControlRolloutRequest) (*donav1.RolloutStatus, error) {
	return s.Rollouts.Control(ctx, actor(ctx), req)
}
