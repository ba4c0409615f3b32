package api

import (
	"context"
	"encoding/hex"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// Clock tells the wall clock's time, by which clients' times are judged.
type Clock func() time.Time

// GetStatus shows one service as it is at one revision.
func (s *ControlPlane) GetStatus(ctx context.Context, req *donav1.GetStatusRequest) (*donav1.StatusReply, error) {
	if err := refusal.Check("service", limits.Service(req.Service)); err != nil {
		return nil, err
	}
	reply, _, err := s.status(ctx, req.Service, nil)
	return reply, err
}

// status reads a service at one revision. What did not change is taken from the
// snapshot of an earlier call.
func (s *ControlPlane) status(ctx context.Context, name string, before *service.Snapshot) (reply *donav1.StatusReply, built *service.Snapshot, err error) {
	err = s.Store.View(ctx, func(tx store.ReadTx) error {
		reply = &donav1.StatusReply{}
		exists, err := s.Plane.Exists(tx, name)
		if err != nil {
			return err
		}
		if !exists {
			return refusal.New(refusal.NotFound, "there is no service %s: a flag, a policy or an endpoint creates it", name)
		}
		if reply.Rollout, err = s.Rollouts.Status(tx, name); err != nil && !refusal.Is(err, refusal.NotFound) {
			return err
		}
		if reply.Stats, err = s.Rollouts.Stats(tx, name, s.Wall()); err != nil {
			return err
		}
		if reply.Exposures, err = s.Plane.Exposures(tx, name, s.Wall()); err != nil {
			return err
		}
		if reply.Policy, err = s.Plane.Policy(tx, name); err != nil {
			return err
		}
		if err := s.delivered(tx, name, reply); err != nil {
			return err
		}
		plan, err := s.Plane.Plan(tx, name)
		if err != nil {
			return err
		}
		reply.PlanNote = plan.Note
		seq, hash, err := s.Audit.Head(tx, name)
		if err != nil {
			return err
		}
		reply.AuditSequence, reply.AuditHead = seq, hex.EncodeToString(hash[:])
		// What is most comes last: on a shared store each round trip reads, and decodes,
		// what came before once more.
		if reply.Checks, err = s.Checks.Status(tx, service.CheckPlane, name); err != nil {
			return err
		}
		if built, err = s.Plane.Build(tx, name, before); err != nil {
			return err
		}
		reply.Config = built.Config
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	reply.Watchers = s.watchers(name)
	return reply, built, nil
}

func (s *ControlPlane) watchers(service string) *donav1.WatcherSummary {
	sum := s.Feeds.Summary(service)
	w := &donav1.WatcherSummary{
		Connected: uint32(sum.Connected), OnCurrentVersion: uint32(sum.OnCurrentVersion), RejectedClients: uint32(sum.RejectedClients),
	}
	for _, r := range sum.Rejected {
		w.Rejected = append(w.Rejected, &donav1.AppliedConfig{Service: service, Version: r.Version, RejectedReason: r.Reason})
	}
	return w
}

var errStopping = refusal.New(refusal.Unavailable, "this host is stopping: go on at another one, or again")

// statusPause is the least time between two looks for one watcher of a status.
const statusPause = 250 * time.Millisecond

// WatchStatus sends the status now and whenever it changed, at most four times a
// second.
func (s *ControlPlane) WatchStatus(req *donav1.GetStatusRequest, stream donav1.ControlPlane_WatchStatusServer) error {
	if err := refusal.Check("service", limits.Service(req.Service)); err != nil {
		return err
	}
	ctx := stream.Context()
	notice := s.Store.Watch(ctx, "svc/"+req.Service+"/")
	// Windows slide and dwell is served without any notice.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	pause := time.NewTicker(statusPause)
	defer pause.Stop()
	var last *donav1.StatusReply
	var built *service.Snapshot
	for {
		var reply *donav1.StatusReply
		var err error
		if reply, built, err = s.status(ctx, req.Service, built); err != nil {
			return err
		}
		if !proto.Equal(last, reply) {
			if err := stream.Send(reply); err != nil {
				return err
			}
			last = reply
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Stopping:
			return errStopping
		case <-tick.C:
		case _, open := <-notice:
			if !open {
				return errStopping
			}
			select {
			case <-pause.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// ListServices names every service.
func (s *ControlPlane) ListServices(ctx context.Context, _ *donav1.ListServicesRequest) (reply *donav1.ListServicesReply, err error) {
	err = s.Store.View(ctx, func(tx store.ReadTx) error {
		services, err := s.Plane.Services(tx)
		reply = &donav1.ListServicesReply{Services: services}
		return err
	})
	return reply, err
}
