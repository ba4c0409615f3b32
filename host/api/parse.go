package api

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// parsing reads what comes in. Fields that are not of the contract are dropped
// here, so that nothing of them is stored, compared or sent on to clients.
//
// A message that does not parse is answered with INVALID_ARGUMENT. gRPC itself
// sends INTERNAL, as if the host had failed, from within RecvMsg, where no
// interceptor can change it. So the codec only notes what is wrong, and the guard
// asks when it knows who calls what. It asks in the same way how long the message
// was: with what was dropped, it may have been longer on the wire than it is now.
type parsing struct {
	encoding.CodecV2
	noted *sync.Map // message -> note, from Unmarshal until it is asked for
}

// note is what there is to say of a message that was received; of most, nothing.
type note struct {
	bytes int // on the wire, uncompressed
	err   error
}

func newParsing(codec encoding.CodecV2) parsing { return parsing{codec, new(sync.Map)} }

func (p parsing) Unmarshal(data mem.BufferSlice, v any) error {
	n := note{bytes: data.Len()}
	if m, ok := v.(proto.Message); ok {
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		n.err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(buf.ReadOnlyData(), m)
		buf.Free()
	} else {
		n.err = p.CodecV2.Unmarshal(data, v)
	}
	if n.err != nil || n.bytes > smallMessage { // no rule allows less
		p.noted.Store(v, n)
	}
	return nil
}

// take returns what was noted of the message v, once.
func (p parsing) take(v any) note {
	found, noted := p.noted.LoadAndDelete(v)
	if !noted {
		return note{}
	}
	return found.(note)
}

// judge says what is wrong with a message of which most bytes are allowed.
func (n note) judge(most int) error {
	switch {
	case n.bytes > most:
		return status.Errorf(codes.ResourceExhausted, "the message has %d bytes: allowed are at most %d", n.bytes, most)
	case n.err != nil:
		return status.Error(codes.InvalidArgument, clip("the message does not parse: "+n.err.Error()))
	}
	return nil
}
