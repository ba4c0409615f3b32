package pool

import (
	"bytes"
	"context"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/poolconfig"
)

// RefreshAfter is when a snapshot is sent again that has not changed.
var RefreshAfter = refreshAfter

// Document is what was parsed of what is published.
func (p *Pool) Document() *poolconfig.Config { return p.published.Load().written }

// OpenStream is the first step of Watch.
func (p *Pool) OpenStream(ctx context.Context, req *controlplanev1.WatchSnapshotsRequest) (string, error) {
	return p.openStream(ctx, req)
}

// View is what a worker should have, as of the moment when it was built.
type View = view

// BuildView is the first half of a turn of Watch's loop; nil when there is nothing to
// send after last.
func (p *Pool) BuildView(ctx context.Context, worker, session, stream string, last *controlplanev1.WorkerSnapshot) (*View, error) {
	v, err := p.build(ctx, worker, session, stream)
	if err != nil {
		return nil, err
	}
	due := last == nil || v.snapshot.GeneratedAt.AsTime().After(last.GeneratedAt.AsTime().Add(v.validity*2/5))
	if !v.pending && !due && bytes.Equal(last.Checksum, v.snapshot.Checksum) {
		return nil, nil
	}
	return v, nil
}

// IssueView is the other half: what it returns is sent.
func (p *Pool) IssueView(ctx context.Context, worker, session, stream string, v *View) (*controlplanev1.WorkerSnapshot, error) {
	if err := p.issue(ctx, worker, session, stream, v); err != nil {
		return nil, err
	}
	return proto.CloneOf(v.snapshot), nil
}

// Count reads what the gauges show.
func (p *Pool) Count(ctx context.Context) error { return p.count(ctx) }
