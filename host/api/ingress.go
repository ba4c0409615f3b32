package api

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// SetIngress sets or deletes the rule of a host and path prefix.
func (s *ControlPlane) SetIngress(ctx context.Context, req *donav1.SetIngressRequest) (*donav1.Empty, error) {
	return &donav1.Empty{}, s.Plane.SetIngress(ctx, actor(ctx), req)
}
