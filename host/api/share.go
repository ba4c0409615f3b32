package api

import (
	"context"
	"errors"
	"maps"
	"sync"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// SetSharedService says who may watch a service, or that everyone may again.
func (s *ControlPlane) SetSharedService(ctx context.Context, req *donav1.SetSharedServiceRequest) (*donav1.Empty, error) {
	return &donav1.Empty{}, s.Plane.SetShared(ctx, actor(ctx), req)
}

// errNotShared does not say whether the service exists.
var errNotShared = refusal.New(refusal.Denied, "this caller may not watch this service in its region: an operator shares it with dona share set")

// watches are the open watches of this host by service, so that those that lose
// their right can be ended. The zero value is ready.
type watches struct {
	mu   sync.Mutex
	open map[string]map[*watch]struct{}
}

// watch is one open watch and on whose behalf it is.
type watch struct {
	service, caller, region string
	end                     context.CancelCauseFunc
}

func (w *watches) add(a *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[string]map[*watch]struct{}{}
	}
	if w.open[a.service] == nil {
		w.open[a.service] = map[*watch]struct{}{}
	}
	w.open[a.service][a] = struct{}{}
}

func (w *watches) remove(a *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open[a.service], a)
	if len(w.open[a.service]) == 0 {
		delete(w.open, a.service)
	}
}

func (w *watches) services() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.open {
		names = append(names, name)
	}
	return names
}

// enforce ends the watches of a service that its sharing shuts out.
func (w *watches) enforce(name string, shared *donav1.SharedService) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a := range w.open[name] {
		if !service.MayWatch(shared, a.caller, a.region) {
			a.end(errNotShared)
		}
	}
}

// sharings are who may watch which service, as it was read last. They are for when
// the store cannot be read: a host that has a snapshot goes on giving it to whom it
// would have given it then. The zero value is ready.
type sharings struct {
	mu    sync.Mutex
	by    map[string]*donav1.SharedService
	since uint64 // revision of the newest read of all
}

// note keeps what was read at a revision, unless a newer read of all has been made.
func (k *sharings) note(name string, shared *donav1.SharedService, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, have := k.by[name]; revision < k.since || !have && len(k.by) >= limits.Services {
		return
	}
	if k.by == nil {
		k.by = map[string]*donav1.SharedService{}
	}
	k.by[name] = shared
}

// replace keeps all, and forgets what else there was: it may have changed.
func (k *sharings) replace(all map[string]*donav1.SharedService, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by, k.since = all, revision
}

func (k *sharings) get(name string) (shared *donav1.SharedService, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	shared, known = k.by[name]
	return shared, known
}

// admitWatch lets a caller in that may watch the service. The context that it
// returns ends when the caller loses that right; leave has to be called. A workload
// watches on behalf of its own service; of anyone else, the request says on whose.
func (s *ControlPlane) admitWatch(ctx context.Context, req *donav1.WatchConfigRequest) (_ context.Context, leave func(), err error) {
	behalf := req.CallerService
	if own := who(ctx).service(); own != "" && behalf == "" {
		behalf = own
	}
	if err := who(ctx).is(identity.Service, "caller_service", behalf); err != nil {
		return nil, nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	a := &watch{service: req.Service, caller: behalf, region: req.CallerRegion, end: end}
	// Known before the look: a change after the look finds it.
	s.watches.add(a)
	leave = func() { s.watches.remove(a); end(nil) }
	var shared *donav1.SharedService
	var revision uint64
	err = s.Store.View(ctx, func(tx store.ReadTx) (err error) {
		revision = tx.Revision()
		shared, err = s.Plane.Shared(tx, req.Service)
		return err
	})
	if err == nil {
		s.sharings.note(req.Service, shared, revision)
	} else if last, known := s.sharings.get(req.Service); known && (errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrForeign)) {
		shared, err = last, nil
	}
	if err == nil && !service.MayWatch(shared, a.caller, a.region) {
		err = errNotShared
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return ctx, leave, nil
}

// shutOut is why a watch ended: for want of the right, or err.
func shutOut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); refusal.Is(cause, refusal.Denied) {
		return cause
	}
	return err
}

// EndShutOut ends the watches of callers that lose their right to them, until ctx
// ends. It returns nil: what it cannot read now it reads at the next notice.
func (s *ControlPlane) EndShutOut(ctx context.Context) error {
	notice := s.Store.Watch(ctx, service.SharedPrefix)
	for {
		for name, shared := range s.sharing(ctx, s.watches.services()) {
			s.watches.enforce(name, shared)
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-notice:
			if !open {
				return nil
			}
		}
	}
}

// sharing reads who may watch each of the services, without those that it cannot
// read.
func (s *ControlPlane) sharing(ctx context.Context, services []string) map[string]*donav1.SharedService {
	all := map[string]*donav1.SharedService{}
	var revision uint64
	if err := s.Store.View(ctx, func(tx store.ReadTx) error {
		clear(all)
		revision = tx.Revision()
		if err := s.Plane.FetchShared(tx, services); err != nil {
			return err
		}
		for _, name := range services {
			if shared, err := s.Plane.Shared(tx, name); err == nil { // else a record that does not parse
				all[name] = shared
			}
		}
		return nil
	}); err != nil {
		return nil
	}
	s.sharings.replace(maps.Clone(all), revision)
	return all
}
