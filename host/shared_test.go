package host_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Two hosts on one Redis are one control plane: what is told to one is seen at the
// other. When the server has lost its data, both refuse actions, say why, and leave
// their watchers what they have, until somebody adopts the server at either of them.
func TestTwoHostsOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	flags := map[string]string{"store": "redis://" + server.Addr, "redis-cluster": "pair", "heartbeat": "500ms", "restart-grace": "3s"}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var clients []donav1.ControlPlaneClient
	var admins []donav1.HostAdminClient
	var hosts []*running
	for range 2 {
		r := start(t, flags)
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		until(t, "/readyz", func() bool { code, _ := r.get("/readyz"); return code == 200 })
		hosts = append(hosts, r)
		clients = append(clients, donav1.NewControlPlaneClient(conn))
		admins = append(admins, donav1.NewHostAdminClient(conn))
	}
	reg, err := clients[0].RegisterEndpoint(ctx)
	check(t, err)
	check(t, reg.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: "a", Address: "127.0.0.1:80", Variant: "v1", Region: "eu"}))
	_, err = reg.Header()
	check(t, err)
	watch, err := clients[1].WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web"})
	check(t, err)
	last := uint64(0)
	snapshot := func(what string, ok func(f *donav1.ConfigSnapshot) bool) {
		for {
			f, err := watch.Recv()
			if err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			last = f.Version
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
	received := make(chan *donav1.ConfigSnapshot, 10)
	go func() {
		defer close(received)
		for {
			f, err := watch.Recv()
			if err != nil { // at the latest when the test ends
				return
			}
			received <- f
		}
	}()
	select {
	case f := <-received:
		t.Errorf("a watcher is sent %v", f)
	case <-time.After(time.Second): // nothing is what is waited for
	}

	for i, admin := range admins {
		h, err := admin.GetHost(ctx, &donav1.GetHostRequest{})
		if err != nil || !strings.HasPrefix(h.StoreState, "foreign: it is empty") {
			t.Errorf("host %d says of itself %v, %v", i, h, err)
		}
	}
	if _, err := admins[1].AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: " "}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("adopted without a reason: %v", err)
	}
	h, err := admins[1].AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: "somebody flushed it"})
	check(t, err)
	// A host that a busy machine held up keeps what it would remove, and says so.
	alarms := slices.DeleteFunc(h.Alarms, func(a string) bool { return strings.Contains(a, "are frozen until") })
	if h.StoreState != "ready" || len(alarms) > 0 {
		t.Fatalf("adopting: %v", h)
	}
	until(t, "/readyz of the other host", func() bool { code, _ := hosts[0].get("/readyz"); return code == 200 })
	if _, err := admins[0].AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: "again"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nothing to adopt") {
		t.Errorf("a good store is adopted: %v", err)
	}
	// The endpoint learns that its lease is gone and comes back; nobody is shown less
	// than it before the restart grace is over, and nothing older ever.
	ended := make(chan error, 1)
	go func() { ended <- reg.RecvMsg(&donav1.RegisterAck{}) }()
	until(t, "the lease to be refused", func() bool {
		_ = reg.Send(&donav1.EndpointHeartbeat{})
		select {
		case err := <-ended:
			return status.Code(err) == codes.Aborted
		default:
			return false
		}
	})
	again, err := clients[1].RegisterEndpoint(ctx)
	check(t, err)
	check(t, again.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: "a", Address: "127.0.0.1:80", Variant: "v1", Region: "eu"}))
	_, err = again.Header()
	check(t, err)
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		for again.Send(&donav1.EndpointHeartbeat{}) == nil {
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	for f := range received {
		if f.Version <= last {
			t.Errorf("version %d after %d", f.Version, last)
		}
		last = f.Version
		if len(f.Endpoints) == 1 {
			break
		}
	}
	if adoptions := entries(t, server, "pair", audit.HostChain, "store.adopt"); len(adoptions) != 1 || !strings.Contains(adoptions[0], "somebody flushed it") || !strings.Contains(adoptions[0], "local:dev") {
		t.Errorf("the audit log tells of the adoption %q", adoptions)
	}
	for i, admin := range admins {
		until(t, "the other host", func() bool {
			h, err := admin.GetHost(ctx, &donav1.GetHostRequest{})
			return err == nil && len(h.OtherHosts) == 1 && strings.Contains(h.OtherHosts[0], hosts[1-i].grpc)
		})
		r, err := admin.CheckStore(ctx, &donav1.CheckStoreRequest{})
		if err != nil || len(r.Problems) > 0 || r.Services != 1 || len(r.Chains) != 2 {
			t.Errorf("a check by host %d finds %v, %v", i, r, err)
		}
		backup, err := admin.BackupStore(ctx, &donav1.BackupStoreRequest{})
		check(t, err)
		if _, err := backup.Recv(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Redis") {
			t.Errorf("a backup of a store on Redis: %v", err)
		}
	}
	cancel()
	for range received { // until the stream has ended
	}
	<-beats
	check(t, hosts[0].stop())
	h, err = admins[1].GetHost(context.Background(), &donav1.GetHostRequest{})
	if err != nil || len(h.OtherHosts) > 0 {
		t.Errorf("a host that stopped is still there: %v, %v", h, err)
	}
}

// entries are the lines of one kind in an audit chain, as the server has them.
func entries(t *testing.T, server *redistest.Server, cluster, chain, kind string) (lines []string) {
	t.Helper()
	c := server.Client()
	defer func() { _ = c.Close() }()
	all, err := c.XRange(context.Background(), "{dona:"+cluster+"}:l:audit/"+chain, "-", "+").Result()
	check(t, err)
	for _, m := range all {
		if line, _ := m.Values["p"].(string); strings.Contains(line, `"kind":"`+kind+`"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A host that is started while the server is away, or holds other data than the host
// knows, serves what needs no store, says what it waits for, and goes on by itself;
// also when no other host runs it can adopt what is there.
func TestStartWithoutTheStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	flags := map[string]string{"store": "redis://" + server.Addr, "redis-cluster": "alone", "data-dir": filepath.Join(t.TempDir(), "data")}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dial := func(r *running) (donav1.HostAdminClient, donav1.ControlPlaneClient) {
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return donav1.NewHostAdminClient(conn), donav1.NewControlPlaneClient(conn)
	}
	first := start(t, flags)
	until(t, "/readyz at first", func() bool { code, _ := first.get("/readyz"); return code == 200 })
	_, client := dial(first)
	_, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
	check(t, err)
	check(t, first.stop())

	server.Kill()
	r := start(t, flags)
	admin, client := dial(r)
	h, err := admin.GetHost(ctx, &donav1.GetHostRequest{})
	if err != nil || !strings.Contains(h.StoreState, "not available") {
		t.Errorf("without the server the host says of itself %v, %v", h, err)
	}
	if code, body := r.get("/readyz"); code != 503 || !strings.Contains(body, "not available") {
		t.Errorf("/readyz is %d: %s", code, body)
	}
	if _, err := client.ListServices(ctx, &donav1.ListServicesRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a call that needs the store: %v", err)
	}
	if _, err := admin.CheckStore(ctx, &donav1.CheckStoreRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a check without the store: %v", err)
	}
	if _, err := admin.AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: "it is away"}); status.Code(err) != codes.Unavailable {
		t.Errorf("a server that is away is adopted: %v", err)
	}
	server.Restart()
	until(t, "/readyz", func() bool { code, _ := r.get("/readyz"); return code == 200 })
	list, err := client.ListServices(ctx, &donav1.ListServicesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.Services) != 1 {
		t.Errorf("with the server back the services are %v, %v", list, err)
	}
	check(t, r.stop())

	server.Do("FLUSHALL")
	r = start(t, flags)
	admin, _ = dial(r)
	h, err = admin.GetHost(ctx, &donav1.GetHostRequest{})
	if err != nil || !strings.HasPrefix(h.StoreState, "foreign: it is empty") {
		t.Errorf("before adoption the host says of itself %v, %v", h, err)
	}
	h, err = admin.AdoptStore(ctx, &donav1.AdoptStoreRequest{Reason: "nothing to bring back"})
	if err != nil || h.StoreState != "ready" {
		t.Errorf("adopting: %v, %v", h, err)
	}
	until(t, "/readyz after the adoption", func() bool { code, _ := r.get("/readyz"); return code == 200 })
	until(t, "the audit entry", func() bool { return len(entries(t, server, "alone", audit.HostChain, "store.adopt")) == 1 })
}
