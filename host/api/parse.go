package api

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// parsing answers a message that does not parse with INVALID_ARGUMENT. gRPC
// itself sends INTERNAL, as if the host had failed, from within RecvMsg, where no
// interceptor can change it. So the codec only notes what is wrong, and whoever
// received the message asks: the registrar for unary calls, the guarded stream
// for the others.
type parsing struct {
	encoding.CodecV2
	bad *sync.Map // message -> error, from Unmarshal until it is asked for
}

func newParsing(codec encoding.CodecV2) parsing { return parsing{codec, new(sync.Map)} }

func (p parsing) Unmarshal(data mem.BufferSlice, v any) error {
	if err := p.CodecV2.Unmarshal(data, v); err != nil {
		p.bad.Store(v, err)
	}
	return nil
}

// check returns what was wrong with the message v.
func (p parsing) check(v any) error {
	if err, bad := p.bad.LoadAndDelete(v); bad {
		return status.Error(codes.InvalidArgument, clip("the message does not parse: "+err.(error).Error()))
	}
	return nil
}

// registrar registers services whose unary methods check what was parsed.
type registrar struct {
	server  *grpc.Server
	parsing parsing
}

func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	wrapped := *desc
	wrapped.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		handle := m.Handler
		wrapped.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			return handle(srv, ctx, func(v any) error {
				if err := dec(v); err != nil {
					return err
				}
				return r.parsing.check(v)
			}, in)
		}}
	}
	r.server.RegisterService(&wrapped, impl)
}

// GetServiceInfo is for the reflection service.
func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo { return r.server.GetServiceInfo() }
