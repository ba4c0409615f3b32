package snapshot

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Encoded is a message that has its bytes ready. They are sent as they are, are
// shared with other streams, and never change.
type Encoded interface {
	EncodedMessage() []byte
}

// ServerOptions are the settings that a server needs to push to many watchers at
// the cost this package promises: the codec; static windows, so that no pings
// measure the bandwidth; a small read buffer for each connection; and a write
// buffer that a connection borrows while it writes, large enough that a snapshot
// does not leave in crumbs of one system call each.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.StaticStreamWindowSize(1 << 20),
		grpc.StaticConnWindowSize(1 << 20),
		grpc.ReadBufferSize(4 << 10),
		grpc.WriteBufferSize(32 << 10),
	}
}

// Codec is the server codec that sends an [Encoded] message without marshalling
// or copying it, and leaves every other message to gRPC's own protobuf codec. Use
// it with grpc.ForceServerCodecV2. Clients need nothing of the kind.
func Codec() encoding.CodecV2 {
	return codec{encoding.GetCodecV2(protocodec.Name)}
}

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(Encoded); ok {
		// A SliceBuffer belongs to no pool: freeing it is a no-op, so many
		// streams may hold the same bytes.
		return mem.BufferSlice{mem.SliceBuffer(e.EncodedMessage())}, nil
	}
	return c.CodecV2.Marshal(v)
}
