package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// outcomesJob measures what it costs to report how one call went: the CPU time of
// this process, which is client and host.
func outcomesJob() ([]row, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	donav1.RegisterControlPlaneServer(server, &oneSnapshot{snapshot: snapshotOf(100)})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	unary := donav1.NewControlPlaneClient(conn)
	client, err := dona.Dial(ctx, listener.Addr().String(), dona.WithoutCache())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	svc := client.Service("checkout")
	if err := svc.Ready(ctx); err != nil {
		return nil, err
	}
	each := func(n int, run func() error) func() (float64, error) {
		return func() (float64, error) {
			before := cpu()
			err := run()
			return float64((cpu() - before).Nanoseconds()) / float64(n), err
		}
	}
	const rounds, burst, calls = 50, 1000, 2000
	sequence := uint64(0)
	m, err := turns(repeats,
		each(rounds*burst, func() error {
			lost := client.Stats().Dropped
			for range rounds {
				for range burst {
					// Without a unit there is no exposure, only the outcome.
					pick, err := svc.Pick(ctx, dona.Request{})
					if err != nil {
						return err
					}
					pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
				}
				time.Sleep(20 * time.Millisecond) // what is queued is folded meanwhile
			}
			if lost := client.Stats().Dropped - lost; lost != 0 {
				return fmt.Errorf("%d outcomes were lost: the measurement counts for nothing", lost)
			}
			return nil
		}),
		each(calls, func() error {
			for range calls {
				sequence++
				if _, err := unary.ReportStats(ctx, &donav1.StatsBatch{ReporterId: "bench", Sequence: sequence, Calls: []*donav1.CallOutcome{{
					Service: "checkout", Variant: "v1", EndpointId: "ep-00001", Success: true, LatencyUs: 1000, Code: "200",
					UnixMs: time.Now().UnixMilli(), Count: 1}}}); err != nil {
					return err
				}
			}
			return nil
		}))
	if err != nil {
		return nil, err
	}
	return []row{{"one outcome, with the pick that it is of", m[0], m[1], "ns CPU of client and host", "a unary call for each outcome", 0.01, false, nil}}, nil
}
