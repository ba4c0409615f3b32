package service

import (
	"context"
	"fmt"
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// SharedPrefix is the store prefix below which a change may move who watches.
const SharedPrefix = "shared/"

func sharedKey(service string) string { return SharedPrefix + service }

// everyone stands for every workload of the trust domain.
const everyone = "*"

// MayWatch reports whether a caller in a region may watch a service that is
// shared so. Without sharing, nil, everyone may.
func MayWatch(shared *donav1.SharedService, caller, region string) bool {
	if shared == nil {
		return true
	}
	return consumes(shared, caller) && (len(shared.GetAllowedRegions()) == 0 || region != "" && slices.Contains(shared.GetAllowedRegions(), region))
}

// consumes reports whether a service is shared with the caller, wherever it is.
func consumes(shared *donav1.SharedService, caller string) bool {
	return shared == nil || slices.Contains(shared.GetConsumers(), everyone) || caller != "" && slices.Contains(shared.GetConsumers(), caller)
}

func checkShared(req *donav1.SetSharedServiceRequest) error {
	if err := refusal.Check("service", limits.Service(req.GetService())); err != nil {
		return err
	}
	if req.GetDelete() {
		return nil
	}
	consumers := req.GetConsumers()
	switch n := len(consumers); {
	case n == 0:
		return refusal.Field("consumers", "is empty: allowed are names of services, or * for all; delete lets everyone watch again")
	case n > limits.ConsumersPerService:
		return refusal.Field("consumers", "has %d names: allowed are at most %d", n, limits.ConsumersPerService)
	}
	seen := make(map[string]bool, len(consumers))
	for i, c := range consumers {
		at := fmt.Sprintf("consumers[%d]", i)
		if c != everyone {
			if err := refusal.Check(at, limits.Service(c)); err != nil {
				return err
			}
		}
		if seen[c] {
			return refusal.Field(at, "is %s a second time", limits.Quote(c))
		}
		seen[c] = true
	}
	return CheckRegions("allowed_regions", req.GetAllowedRegions())
}

// SetShared says who may watch a service, whole, or deletes that, so that
// everyone may again. It makes the service when it is new. The same again changes
// nothing and writes no entry. Refusals: Invalid; NotFound when nothing is set
// that could be deleted; Exhausted at the limit of services.
func (p *Plane) SetShared(ctx context.Context, actor string, req *donav1.SetSharedServiceRequest) error {
	if err := checkShared(req); err != nil {
		return err
	}
	service := req.GetService()
	next := &donav1.SharedService{Service: service, Consumers: req.GetConsumers(), AllowedRegions: req.GetAllowedRegions()}
	return p.store.Update(ctx, store.Hard, func(tx store.Tx) error {
		old, err := p.Shared(tx, service)
		if err != nil {
			return err
		}
		if req.GetDelete() {
			if old == nil {
				return refusal.New(refusal.NotFound, "service %s is not shared with anyone by name: there is nothing to delete", service)
			}
			if err := tx.Delete(sharedKey(service)); err != nil {
				return err
			}
			return p.audit.Append(tx, service, audit.Entry{Kind: "shared.delete", Actor: actor, Detail: sharedDetail(old)})
		}
		if old != nil && proto.Equal(old, next) {
			return nil
		}
		if err := p.Ensure(tx, service); err != nil {
			return err
		}
		if err := store.Save(tx, sharedKey(service), &statev1.SharedState{Shared: next}); err != nil {
			return err
		}
		return p.audit.Append(tx, service, audit.Entry{Kind: "shared.set", Actor: actor, Detail: sharedDetail(next)})
	})
}

func sharedDetail(s *donav1.SharedService) map[string]string {
	return map[string]string{"consumers": audit.Value(s.GetConsumers()), "allowed_regions": audit.Value(s.GetAllowedRegions())}
}

// FetchShared reads who may watch each of the services in one round trip, so that
// Shared finds it there.
func (p *Plane) FetchShared(tx store.ReadTx, services []string) error {
	keys := make([]string, len(services))
	for i, service := range services {
		keys[i] = sharedKey(service)
	}
	_, err := tx.GetMany(keys...)
	return err
}

// Shared reads who may watch a service; nil when everyone may.
func (p *Plane) Shared(tx store.ReadTx, service string) (*donav1.SharedService, error) {
	var rec statev1.SharedState
	version, err := load(tx, sharedKey(service), &rec)
	if err != nil || version == 0 {
		return nil, err
	}
	return rec.GetShared(), nil
}
