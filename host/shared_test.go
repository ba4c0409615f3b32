package host_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Two hosts on one Redis are one control plane: what is told to one is seen at the
// other. When the server has lost its data, both refuse actions, say why, and leave
// their watchers what they have.
func TestTwoHostsOnRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	flags := map[string]string{"store": "redis://" + server.Addr, "redis-cluster": "pair"}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var clients []donav1.ControlPlaneClient
	var hosts []*running
	for range 2 {
		r := start(t, flags)
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		until(t, "/readyz", func() bool { code, _ := r.get("/readyz"); return code == 200 })
		hosts = append(hosts, r)
		clients = append(clients, donav1.NewControlPlaneClient(conn))
	}
	reg, err := clients[0].RegisterEndpoint(ctx)
	check(t, err)
	check(t, reg.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: "a", Address: "127.0.0.1:80", Variant: "v1", Region: "eu"}))
	_, err = reg.Header()
	check(t, err)
	watch, err := clients[1].WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web"})
	check(t, err)
	snapshot := func(what string, ok func(f *donav1.ConfigSnapshot) bool) {
		for {
			f, err := watch.Recv()
			if err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			if ok(f) {
				return
			}
		}
	}
	snapshot("the other host's endpoint", func(f *donav1.ConfigSnapshot) bool { return len(f.GetEndpoints()) == 1 })
	_, err = clients[0].SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
	check(t, err)
	snapshot("the other host's flag", func(f *donav1.ConfigSnapshot) bool { return len(f.GetFlags()) == 1 })

	server.Do("FLUSHALL")
	for i, r := range hosts {
		until(t, "/readyz says what is wrong", func() bool {
			code, body := r.get("/readyz")
			return code == 503 && strings.Contains(body, "foreign: it is empty")
		})
		_, err := clients[i].SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "g"}})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("host %d takes an action on a server that has lost its data: %v", i, err)
		}
	}
	received := make(chan *donav1.ConfigSnapshot, 1)
	go func() {
		f, _ := watch.Recv() // until the test ends
		received <- f
	}()
	select {
	case f := <-received:
		t.Errorf("a watcher is sent %v", f)
	case <-time.After(time.Second): // nothing is what is waited for
	}
	cancel()
	<-received
}
