package pool

import (
	"bytes"
	"context"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"
)

// OpenStream is the first step of Watch.
func (p *Pool) OpenStream(ctx context.Context, req *controlplanev1.WatchSnapshotsRequest) (string, error) {
	return p.openStream(ctx, req)
}

// StepStream is one turn of Watch's loop; nil when there is nothing to send.

func (p *Pool) StepStream(ctx context.Context, worker, session, stream string, last *controlplanev1.WorkerSnapshot) (*controlplanev1.WorkerSnapshot, error) {
	v, err := p.build(ctx, worker, session, stream)
	if err != nil {
		return nil, err
	}
	due := last == nil || v.snapshot.GeneratedAt.AsTime().After(last.GeneratedAt.AsTime().Add(v.validity*2/5))
	if !v.pending && !due && bytes.Equal(last.Checksum, v.snapshot.Checksum) {
		return nil, nil
	}
	if err := p.issue(ctx, worker, session, stream, v); err != nil {
		return nil, err
	}
	return proto.CloneOf(v.snapshot), nil
}
