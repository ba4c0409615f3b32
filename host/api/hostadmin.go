package api

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

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
	Sessions *session.Registry
	Plugins  func() []*donav1.PluginStatus
	Alarms   func() []string // what people should know of, besides frozen removals
}

// ListPlugins shows every plugin the host knows.
func (s *HostAdmin) ListPlugins(context.Context, *donav1.ListPluginsRequest) (*donav1.ListPluginsReply, error) {
	return &donav1.ListPluginsReply{Plugins: s.Plugins()}, nil
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
