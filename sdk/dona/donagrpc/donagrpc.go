// Package donagrpc lets gRPC clients follow a service's decisions: with it a stock
// grpc.NewClient for dona:///checkout sends each call to the endpoint that the
// decision for that call gives, by flags, weights, residency and plan.
//
//	client, err := dona.Dial(ctx, "127.0.0.1:7600")
//	donagrpc.Use(client, donagrpc.Config{})
//	conn, err := grpc.NewClient("dona:///checkout", grpc.WithTransportCredentials(creds))
//	ctx = dona.NewContext(ctx, dona.Request{Unit: userID})
//	reply, err := pb.NewCheckoutClient(conn).Pay(ctx, order)
//
// The resolver gives gRPC the endpoints of the newest snapshot; the balancer keeps
// a connection to each and asks dona.Service.Pick for each call. An endpoint that
// is not connected is left out as long as its variant has another one. One that
// leaves the snapshot gets no new calls, and those that run on its connection end
// in peace. How a call went is reported with its latency.
//
// Retries are gRPC's own, by the retryPolicy of Config.ServiceConfig: the next
// attempt goes to an endpoint that the call has not tried; when all were tried, to
// any. The option grpc.WithDisableServiceConfig switches this package off.
package donagrpc

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/sdk/dona"
)

// Scheme is that of the targets: dona:///<service>.
const Scheme = "dona"

// Config says how calls are decided and judged. The zero value takes the request
// from the context, as dona.NewContext put it there.
type Config struct {
	// Request says what the decision for a call depends on; method is its full
	// name, like /shop.Checkout/Pay. It may read the metadata that goes out with
	// ctx. It is asked for each attempt and must not block. Tried endpoints are
	// added to its answer, on a copy. nil = dona.FromContext.
	Request func(ctx context.Context, method string) dona.Request
	// Failure reports whether an error that ended a call, never nil, counts against
	// its endpoint. nil = when its code is UNKNOWN, DEADLINE_EXCEEDED,
	// UNIMPLEMENTED, INTERNAL, UNAVAILABLE or DATA_LOSS. A call that its caller
	// cancelled counts neither way.
	Failure func(error) bool
	// ServiceConfig is a service config of gRPC as JSON, for retries and timeouts.
	// It takes the place of grpc.WithDefaultServiceConfig, which gRPC ignores for
	// these targets. It must not choose a balancer. Empty = none.
	ServiceConfig string
}

// shared is what targets of this process go through that name no other builder.
var shared atomic.Pointer[builder]

// Use makes client the one by which connections of this process to
// dona:///<service> decide. It counts for those that are made after it, and it is
// the caller who closes client, after those connections.
func Use(client *dona.Client, config Config) {
	shared.Store(newBuilder(client, config))
}

// Resolver is for programs with several clients: the option grpc.WithResolvers
// with it makes one connection decide by client, whatever Use said.
func Resolver(client *dona.Client, config Config) resolver.Builder {
	return newBuilder(client, config)
}

// gRPC finds balancers, and resolvers that no option names, in lists that may be
// written at the start of a program only.
func init() {
	resolver.Register(sharedBuilder{})
	balancer.Register(balancerBuilder{})
}

type sharedBuilder struct{}

func (sharedBuilder) Scheme() string { return Scheme }

func (sharedBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	b := shared.Load()
	if b == nil {
		return nil, fmt.Errorf("target %.200q: no client: call donagrpc.Use first, or give the connection the option grpc.WithResolvers(donagrpc.Resolver(client, …))", target.URL.String())
	}
	return b.Build(target, cc, opts)
}

type builder struct {
	client *dona.Client
	config Config
}

func newBuilder(client *dona.Client, config Config) *builder {
	if config.Request == nil {
		config.Request = func(ctx context.Context, _ string) dona.Request { return dona.FromContext(ctx) }
	}
	if config.Failure == nil {
		config.Failure = failure
	}
	return &builder{client: client, config: config}
}

// failure is the default of Config.Failure: the codes by which a server says that
// it is at fault.
func failure(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

func (b *builder) Scheme() string { return Scheme }

func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	if target.URL.Host != "" || target.Endpoint() == "" {
		return nil, fmt.Errorf("target %.200q: allowed is %s:///<service>; the hosts are those that the client was dialled with", target.URL.String(), Scheme)
	}
	text, err := serviceConfig(b.config.ServiceConfig)
	if err != nil {
		return nil, err
	}
	config := cc.ParseServiceConfig(text)
	if config.Err != nil {
		return nil, fmt.Errorf("Config.ServiceConfig: %w", config.Err)
	}
	r := &watcher{
		cc:     cc,
		route:  &route{service: b.client.Service(target.Endpoint()), config: b.config, failed: &failed{}},
		config: config,
		ended:  make(chan struct{}),
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go r.run(ctx)
	return r, nil
}

// serviceConfig adds the balancer to a service config.
func serviceConfig(text string) (string, error) {
	config := map[string]json.RawMessage{}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return "", fmt.Errorf("Config.ServiceConfig: allowed is a JSON object: %w", err)
		}
	}
	for _, name := range []string{"loadBalancingConfig", "loadBalancingPolicy"} {
		if _, there := config[name]; there {
			return "", fmt.Errorf("Config.ServiceConfig: %s: not allowed, the balancer is %s: take it out", name, Scheme)
		}
	}
	config["loadBalancingConfig"] = json.RawMessage(`[{"` + Scheme + `":{}}]`)
	out, err := json.Marshal(config)
	return string(out), err
}
