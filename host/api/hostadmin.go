package api

import (
	"context"
	"errors"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

// HostAdmin serves dona.v1.HostAdmin: the host itself. Its fields are set once,
// before the server starts.
type HostAdmin struct {
	donav1.UnimplementedHostAdminServer

	HostID   string
	Version  string
	Store    store.Store
	Actions  store.Store // the same, guarded: what acts writes here
	Audit    *audit.Log
	Sessions *session.Registry // nil while the host waits for its store
	Plugins  Plugins
	Alarms   func() []string // what people should know of, besides frozen removals
	Stopping <-chan struct{} // closed when streams have to end

	Operate    StoreOperations
	Identities *identity.Issuer // nil: this host issues none, or waits for its store
}

// GetHost shows what this host is and how it is. It answers while the store does not.
func (s *HostAdmin) GetHost(ctx context.Context, _ *donav1.GetHostRequest) (*donav1.HostStatus, error) {
	info := s.Store.Info()
	h := &donav1.HostStatus{
		HostId: s.HostID, Version: s.Version, Store: info.Backend, Durability: info.Durability, StoreState: info.State,
		Alarms: s.Alarms(),
	}
	if err := s.fromStore(ctx, h); err != nil && !away(err) {
		return nil, err
	}
	return h, nil
}

// fromStore adds what only the store knows.
func (s *HostAdmin) fromStore(ctx context.Context, h *donav1.HostStatus) (err error) {
	if s.Operate.Others != nil {
		if h.OtherHosts, err = s.Operate.Others(ctx); err != nil {
			return err
		}
	}
	if s.Identities != nil {
		a, err := s.Identities.Status(ctx)
		if err != nil {
			return err
		}
		h.Ca = caStatus(a)
	}
	if s.Sessions == nil {
		return nil
	}
	frozen, err := s.Sessions.Alarms(ctx)
	for _, a := range frozen {
		h.Alarms = append(h.Alarms, fmt.Sprintf("removals of %s are frozen until %s: %s, %d endpoints held",
			a.Scope, a.Until.UTC().Format("15:04:05"), a.Reason, a.Held))
	}
	return err
}

// away reports whether an error says that the store cannot be used now, which its
// state says, too.
func away(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrForeign) || errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrClosed)
}
