package dona_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// An application asks for an endpoint for each request, calls it itself, and says
// how it went.
func Example_pick() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := dona.Dial(ctx, "127.0.0.1:7600", dona.WithTrustDomain("example.org"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	checkout := client.Service("checkout")
	if err := checkout.Ready(ctx); err != nil {
		log.Fatal(err)
	}

	pick, err := checkout.Pick(ctx, dona.Request{
		Unit:       "user-42",
		Attributes: []dona.Attribute{dona.String("country", "CH")},
		Regions:    []string{"eu-west"},
	})
	if denied := (*dona.DeniedError)(nil); errors.As(err, &denied) {
		log.Fatal("may not leave the region: ", denied)
	} else if err != nil {
		log.Fatal(err)
	}
	began := time.Now()
	// … call pick.Endpoint.Address …
	pick.Done(dona.Outcome{Success: true, Latency: time.Since(began), Code: "200"})
}

// A service announces its own endpoint.
func ExampleClient_Register() {
	ctx := context.Background()
	client, err := dona.Dial(ctx, "127.0.0.1:7600")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	own, err := client.Register(ctx, dona.OwnEndpoint{
		Service: "checkout", ID: "checkout-7f9c", Address: "10.0.0.7:8080", Variant: "v2", Region: "eu-west", Capacity: 100,
	})
	if err != nil {
		log.Fatal(err)
	}
	own.SetLoad(0.4, 40)
	// … at the end:
	own.Drain()
	if err := own.Close(ctx); err != nil {
		log.Print(err)
	}
}

// Why a request goes where it goes.
func ExampleExplain() {
	snapshot := &donav1.ConfigSnapshot{Service: "checkout", Version: 7,
		Endpoints: []*donav1.Endpoint{
			{Id: "a", Address: "10.0.0.1:80", Variant: "v1", Region: "eu", LbWeight: 100},
			{Id: "b", Address: "10.0.0.2:80", Variant: "v2", Region: "eu", LbWeight: 100}},
		Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: 10}, {Variant: "v1", Weight: 90}},
		Flags:   []*donav1.FlagRule{{Flag: "use-v2", RolloutPercent: 20, RolloutVariant: "v2"}}}
	trace, err := dona.Explain(snapshot, dona.Request{Unit: "user-2", Regions: []string{"eu"}})
	if err != nil {
		log.Fatal(err)
	}
	for _, stage := range trace.Stages {
		fmt.Println(stage.Name+":", stage.Result)
		for _, d := range stage.Detail {
			fmt.Println("   ", d)
		}
	}
	fmt.Println(trace.Result.Kind, trace.Result.Variant)
	// Output:
	// residency: 2 of 2 endpoints may serve
	//     request allows eu
	//     v1: 1
	//     v2: 1
	// flag use-v2: does not take the request: REASON_DEFAULT
	//     unit has bucket 2027; cohort of 20 % is below 2000
	// weights: gives v1
	//     v2 10
	//     v1 90
	//     place 2906 of 10000, by bucket of @weights/checkout
	// pick: a at 10.0.0.1:80
	//     ROUND_ROBIN among 1 of 1
	// weight v1
}

// A server at the edge routes requests from outside by the ingress rules.
func ExampleClient_Ingress() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := dona.Dial(ctx, "127.0.0.1:7600", dona.WithCaller("edge", "eu-west"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	edge, err := client.Ingress(dona.IngressConfig{Request: func(r *http.Request) dona.Request {
		return dona.Request{Attributes: []dona.Attribute{dona.String("language", r.Header.Get("Accept-Language"))}}
	}})
	if err != nil {
		log.Fatal(err)
	}
	if err := edge.Ready(ctx); err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: ":8080", Handler: edge, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
