package donagrpc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

// known waits until the client has all instances.
func known(t *testing.T, c *dona.Client, all ...*instance) {
	t.Helper()
	donatest.Until(t, "the client knows all endpoints", func() bool {
		for _, i := range all {
			if !knows(c, i.id) {
				return false
			}
		}
		return true
	})
}

func TestRetriesElsewhere(t *testing.T) {
	h := donatest.Start(t)
	services, client := h.Dial(t), h.Dial(t)
	good, bad := start(t, services, "v1"), start(t, services, "v1")
	failure := status.Error(codes.Unavailable, "broken")
	bad.fail.Store(&failure)
	known(t, client, good, bad)
	api := connect(t, client, donagrpc.Config{ServiceConfig: retries})
	const calls = 100
	for range calls {
		if _, id, err := ask(t.Context(), api, grpc.WaitForReady(true)); err != nil || id != good.id {
			t.Fatalf("got %q, %v", id, err)
		}
	}
	if n := bad.calls.Load(); n == 0 || n > calls {
		t.Errorf("the endpoint that fails saw %d attempts of %d calls: want some, and no call twice", n, calls)
	}
	// Where no other is left, the same one is tried again.
	good.leave(t, client)
	before := bad.calls.Load()
	if _, _, err := ask(t.Context(), api); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "broken") {
		t.Errorf("the only endpoint fails: %v", err)
	}
	if n := bad.calls.Load() - before; n != 4 {
		t.Errorf("the only endpoint saw %d attempts: want all 4", n)
	}
}

// What callers do wrong, and calls that they give up, do not count against an
// endpoint; what it does wrong does.
func TestReportsOutcomes(t *testing.T) {
	h := donatest.Start(t)
	client := h.Dial(t)
	i := start(t, client, "v1")
	known(t, client, i)
	api := connect(t, client, donagrpc.Config{})
	for _, code := range []codes.Code{codes.OK, codes.OK, codes.OK, codes.NotFound, codes.Internal, codes.DataLoss} {
		failure := status.Error(code, "as asked")
		i.fail.Store(&failure)
		if code == codes.OK {
			i.fail.Store(nil)
		}
		if _, _, err := ask(t.Context(), api, grpc.WaitForReady(true)); status.Code(err) != code {
			t.Fatalf("%v: %v", code, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := api.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	i.fail.Store(nil)
	if _, _, err := ask(t.Context(), api); err != nil { // the report of it comes after the cancelled one
		t.Fatal(err)
	}
	var got *donav1.VariantStats
	donatest.Until(t, "the host has counted 7 calls", func() bool {
		if s := h.Status(t, "checkout").GetStats(); len(s) == 1 {
			got = s[0]
		}
		return got.GetRequests() >= 7
	})
	if got.GetRequests() != 7 || got.GetErrors() != 2 || got.GetP99Us() == 0 {
		t.Errorf("the host counts %v: want 7 requests, 2 errors and a latency", got)
	}
}

func TestDecidesByExtractor(t *testing.T) {
	h := donatest.Start(t)
	client := h.Dial(t)
	all := []*instance{start(t, client, "v1"), start(t, client, "v2")}
	if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Flag: "by-country", Service: "checkout",
		Targeting: []*donav1.TargetingRule{{Attribute: "country", Values: []string{"CH"}, Variant: "v2"},
			{Attribute: "method", Values: []string{"/grpc.testing.TestService/UnaryCall"}, Variant: "v1"}}}}); err != nil {
		t.Fatal(err)
	}
	known(t, client, all...)
	api := connect(t, client, donagrpc.Config{Request: func(ctx context.Context, method string) dona.Request {
		md, _ := metadata.FromOutgoingContext(ctx)
		return dona.Request{Attributes: []dona.Attribute{dona.String("country", strings.Join(md.Get("country"), "")), dona.String("method", method)}}
	}})
	for country, want := range map[string]string{"CH": "v2", "SE": "v1"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "country", country)
		donatest.Until(t, "the flag decides", func() bool { v, _, err := ask(ctx, api, grpc.WaitForReady(true)); return err == nil && v == want })
		for range 20 {
			if v, _, err := ask(ctx, api); err != nil || v != want {
				t.Fatalf("%s gets %q, %v", country, v, err)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	h := donatest.Start(t)
	client := h.Dial(t)
	i := start(t, client, "v1")
	known(t, client, i)
	api := connect(t, client, donagrpc.Config{})
	if _, _, err := ask(t.Context(), api, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		req  dona.Request
		code codes.Code
		text string
	}{
		{"residency", dona.Request{Regions: []string{"mars"}}, codes.PermissionDenied, "residency: no endpoint in mars"},
		{"a unit with a zero byte", dona.Request{Unit: "a\x00"}, codes.Internal, "unit"},
		{"all tried", dona.Request{Tried: []string{i.id}}, codes.Unavailable, "unavailable: service checkout"},
	} {
		_, _, err := ask(dona.NewContext(t.Context(), c.req), api)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v and %q", c.what, err, c.code, c.text)
		}
	}
}

// Calls that wait for readiness wait for the first endpoint; others hear at once
// that there is none.
func TestNoEndpointYet(t *testing.T) {
	h := donatest.Start(t)
	client := h.Dial(t)
	api := connect(t, client, donagrpc.Config{})
	if _, _, err := ask(t.Context(), api); status.Code(err) != codes.Unavailable {
		t.Errorf("without an endpoint: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, _, err := ask(t.Context(), api, grpc.WaitForReady(true))
		got <- err
	}()
	start(t, client, "v1")
	if err := <-got; err != nil {
		t.Errorf("waiting for an endpoint: %v", err)
	}
}

// Without any host, calls end with the reason instead of hanging.
func TestNoHost(t *testing.T) {
	client, err := dona.Dial(t.Context(), "127.0.0.1:1", dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	api := connect(t, client, donagrpc.Config{})
	_, _, err = ask(t.Context(), api)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no snapshot of service checkout") {
		t.Errorf("got %v", err)
	}
}

// A stream goes on when its endpoint leaves the snapshot; new calls go elsewhere.
func TestStreamOutlivesItsEndpoint(t *testing.T) {
	h := donatest.Start(t)
	services, client := h.Dial(t), h.Dial(t)
	i := start(t, services, "v1")
	known(t, client, i)
	api := connect(t, client, donagrpc.Config{})
	stream, err := api.FullDuplexCall(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	echo := func() {
		t.Helper()
		if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	next := start(t, services, "v1")
	known(t, client, next)
	if err := i.registration.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	donatest.Until(t, "the endpoint is gone", func() bool { return !knows(client, i.id) })
	for range 20 {
		if _, id, err := ask(t.Context(), api, grpc.WaitForReady(true)); err != nil || id != next.id {
			t.Fatalf("a new call: %q, %v", id, err)
		}
	}
	echo()
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func TestUseAndTargets(t *testing.T) {
	creds := grpc.WithTransportCredentials(insecure.NewCredentials())
	try := func(target string, opts ...grpc.DialOption) error {
		conn, err := grpc.NewClient(target, append(opts, creds)...)
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, _, err = ask(ctx, grpc_testing.NewTestServiceClient(conn))
		return err
	}
	donagrpc.Forget()
	if err := try("dona:///checkout"); err == nil || !strings.Contains(err.Error(), "call donagrpc.Use first") {
		t.Errorf("before Use: %v", err)
	}
	h := donatest.Start(t)
	client := h.Dial(t)
	known(t, client, start(t, client, "v1"))
	donagrpc.Use(client, donagrpc.Config{})
	if err := try("dona:///checkout"); err != nil {
		t.Errorf("a stock connection: %v", err)
	}
	for target, text := range map[string]string{
		"dona://127.0.0.1:7600/checkout": "allowed is dona:///<service>",
		"dona:///":                       "allowed is dona:///<service>",
		"dona:///Check Out":              "Check Out",
	} {
		if err := try(target); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", target, err, text)
		}
	}
	for config, text := range map[string]string{
		`{`: "allowed is a JSON object",
		`{"loadBalancingConfig":[{"round_robin":{}}]}`: "take it out",
		`{"methodConfig":7}`:                           "Config.ServiceConfig",
	} {
		err := try("dona:///checkout", grpc.WithResolvers(donagrpc.Resolver(client, donagrpc.Config{ServiceConfig: config})))
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("service config %s: %v, want %q", config, err, text)
		}
	}
	// The balancer alone has nothing to decide by.
	err := try(h.Address, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"dona":{}}]}`))
	if err == nil || !strings.Contains(err.Error(), "needs its own resolver") {
		t.Errorf("the balancer without its resolver: %v", err)
	}
}
