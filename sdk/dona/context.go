package dona

import "context"

type requestKey struct{}

// NewContext returns a context that carries what decisions for calls under it
// depend on. The adapters that pick for each call read it there: donagrpc and
// Transport. Unlike those of a Request given to Pick, its slices must not be
// changed any more.
func NewContext(ctx context.Context, req Request) context.Context {
	return context.WithValue(ctx, requestKey{}, req)
}

// FromContext returns the request that ctx carries, or an empty one.
func FromContext(ctx context.Context) Request {
	req, _ := ctx.Value(requestKey{}).(Request)
	return req
}
