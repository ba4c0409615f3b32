// Command grpc-service is an example: a gRPC service in two variants and a client
// that follows the control plane's decisions with a stock connection.
//
//	go run ./examples/grpc-service -variant v1
//	go run ./examples/grpc-service -variant v2
//	go run ./examples/grpc-service -call 1000
//
// The first two serve until they are interrupted. The third makes calls for many
// users and prints which variant answered how many; a rollout, a flag or a policy
// changes what it prints.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
)

func main() {
	host := flag.String("host", "127.0.0.1:7600", "the control plane, host:port")
	variant := flag.String("variant", "", "serve as this variant")
	region := flag.String("region", "eu-west", "where it is served")
	grace := flag.Duration("grace", time.Second, "how long it goes on to serve after it has left, for clients that have not heard")
	calls := flag.Int("call", 0, "make so many calls instead")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case (*variant == "") == (*calls == 0):
		err = fmt.Errorf("give -variant to serve or -call to call")
	case *variant != "":
		err = serve(ctx, *host, *variant, *region, *grace)
	default:
		err = call(ctx, *host, *calls)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpc-service:", err)
		os.Exit(1)
	}
}

// greeter is the service. Without generated code its description is written out:
// one method from a name to a greeting.
var greeter = grpc.ServiceDesc{
	ServiceName: "example.Greeter",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Greet", Handler: func(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		name := &wrapperspb.StringValue{}
		if err := decode(name); err != nil {
			return nil, err
		}
		return wrapperspb.String(server.(string)), nil // who serves
	}}},
}

func serve(ctx context.Context, host, variant, region string, grace time.Duration) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&greeter, variant)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()

	client, err := dona.Dial(ctx, host, dona.WithoutCache())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	// One call announces the endpoint; it comes back by itself when the host was away.
	address := listener.Addr().String()
	if _, err := client.Register(ctx, dona.OwnEndpoint{Service: "greeter", ID: variant + "-" + address, Address: address, Variant: variant, Region: region}); err != nil {
		return err
	}
	fmt.Println("serving", variant, "at", address)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// First it leaves, then clients hear of it, then it stops.
	if err := client.Close(); err != nil {
		return err
	}
	time.Sleep(grace)
	server.GracefulStop()
	return nil
}

func call(ctx context.Context, host string, calls int) error {
	client, err := dona.Dial(ctx, host, dona.WithoutCache())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	donagrpc.Use(client, donagrpc.Config{})
	conn, err := grpc.NewClient("dona:///greeter", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answered, failed := map[string]int{}, 0
	for i := range calls {
		ctx := dona.NewContext(ctx, dona.Request{Unit: fmt.Sprint("user-", i)})
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		variant := &wrapperspb.StringValue{}
		err := conn.Invoke(ctx, "/example.Greeter/Greet", wrapperspb.String("you"), variant, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		answered[variant.GetValue()]++
	}
	fmt.Println("answered", answered, "failed", failed)
	return nil
}
