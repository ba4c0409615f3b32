package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// fakeStore is the store of a fakeHost.
type fakeStore struct {
	host  donav1.HostStatus
	check donav1.CheckStoreReply
	cut   bool // a backup ends early
	lie   bool // a backup has another digest than it says
}

func (f *fakeHost) GetHost(context.Context, *donav1.GetHostRequest) (*donav1.HostStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proto.CloneOf(&f.store.host), nil
}

func (f *fakeHost) AdoptStore(context.Context, *donav1.AdoptStoreRequest) (*donav1.HostStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !strings.HasPrefix(f.store.host.StoreState, "foreign") {
		return nil, status.Error(codes.FailedPrecondition, "there is nothing to adopt")
	}
	f.store.host.StoreState = "ready"
	return proto.CloneOf(&f.store.host), nil
}

func (f *fakeHost) CheckStore(context.Context, *donav1.CheckStoreRequest) (*donav1.CheckStoreReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proto.CloneOf(&f.store.check), nil
}

func (f *fakeHost) BackupStore(_ *donav1.BackupStoreRequest, stream grpc.ServerStreamingServer[donav1.BackupChunk]) error {
	f.mu.Lock()
	cut, lie := f.store.cut, f.store.lie
	f.mu.Unlock()
	sum := sha256.New()
	for range 3 {
		data := bytes.Repeat([]byte("b"), 200_000)
		sum.Write(data)
		if err := stream.Send(&donav1.BackupChunk{Data: data}); err != nil {
			return err
		}
		if cut {
			return nil
		}
	}
	if lie {
		sum.Write([]byte("more"))
	}
	return stream.Send(&donav1.BackupChunk{Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil))})
}
