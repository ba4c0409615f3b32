package api

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/audit"
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
	Sessions *session.Registry
	Plugins  Plugins
	Alarms   func() []string // what people should know of, besides frozen removals
	Stopping <-chan struct{} // closed when streams have to end
}

// GetHost shows what this host is and how it is.
func (s *HostAdmin) GetHost(ctx context.Context, _ *donav1.GetHostRequest) (*donav1.HostStatus, error) {
	info := s.Store.Info()
	h := &donav1.HostStatus{
		HostId: s.HostID, Version: s.Version, Store: info.Backend, Durability: info.Durability, StoreState: info.State,
		Alarms: s.Alarms(),
	}
	frozen, err := s.Sessions.Alarms(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range frozen {
		h.Alarms = append(h.Alarms, fmt.Sprintf("removals of %s are frozen until %s: %s, %d endpoints held",
			a.Scope, a.Until.UTC().Format("15:04:05"), a.Reason, a.Held))
	}
	return h, nil
}
