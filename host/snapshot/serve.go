package snapshot

import (
	"context"
	"time"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/refusal"
)

// A Sender is the server's side of a watch: a grpc.ServerStream is one.
type Sender interface {
	SendMsg(m any) error
}

// firstSyncWait is how long one first frame may hold its slot: a reader that is
// slower no longer keeps others waiting.
const firstSyncWait = 250 * time.Millisecond

// Serve sends the frames of sub until ctx or the feeds end, and closes sub. ctx
// is the stream's, or one below it that the caller cancels to end the watch, for
// example because the watcher lost its right to it. A send that blocks for longer
// than the send timeout ends in the refusal Exhausted with reason "resume"; other
// errors are ctx's, the stream's, and the feeds' Unavailable.
//
// The handler must return at once when Serve does: only its return frees a send
// that is still blocked. Between two frames a watcher costs the handler's
// goroutine and no other.
func (f *Feeds) Serve(ctx context.Context, stream Sender, sub *Subscription) error {
	defer sub.Close()
	frame, err := sub.Next(ctx)
	if err != nil {
		return err
	}
	if err := f.sendFirst(ctx, stream, frame); err != nil {
		return err
	}
	for {
		if frame, err = sub.Next(ctx); err != nil {
			return err
		}
		if err := f.send(ctx, stream, frame); err != nil {
			return err
		}
	}
}

// sendFirst sends a first frame when a slot is free, so that thousands of clients
// that come back together do not all have a snapshot on its way at once.
func (f *Feeds) sendFirst(ctx context.Context, stream Sender, frame *Frame) error {
	if frame.Unchanged {
		return f.send(ctx, stream, frame)
	}
	select {
	case f.first <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-f.ctx.Done():
		return closed()
	}
	release := func() { <-f.first }
	early := time.AfterFunc(firstSyncWait, release)
	err := f.send(ctx, stream, frame)
	if early.Stop() {
		release()
	}
	return err
}

// send sends one frame, for at most the send timeout. The stream's own deadline
// for a send does not exist, so the send runs beside, and is left behind when it
// is late: the handler's return ends it.
func (f *Feeds) send(ctx context.Context, stream Sender, frame *Frame) error {
	sent := make(chan error, 1)
	go func() { sent <- stream.SendMsg(frame) }()
	crash.Point("snapshot.while-sending")
	late := time.NewTimer(f.o.SendTimeout)
	defer late.Stop()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-f.ctx.Done():
		return closed()
	case <-late.C:
		f.metrics.cut.Inc()
		return &refusal.Error{
			Kind: refusal.Exhausted, Reason: "resume",
			Text: "nothing was read from this stream for " + f.o.SendTimeout.String() + ": watch again with last_version to resume",
		}
	}
}
