package host_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// A store with the data of one trust domain is refused by a host of another: the audit
// chains of both in one store would read as tampered with.
func TestOtherTrustDomain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	dir := filepath.Join(t.TempDir(), "data")
	for _, tt := range []struct {
		name, store, first, second string // data directories
		stop                       bool   // the first before the second starts
	}{
		{"Redis", "redis://" + server.Addr, filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "data"), false},
		{"embedded", "embedded", dir, dir, true},
	} {
		first := start(t, map[string]string{"store": tt.store, "data-dir": tt.first})
		if tt.stop {
			check(t, first.stop())
		}
		c, err := config.Load("", nil, map[string]string{
			"dev": "true", "store": tt.store, "data-dir": tt.second,
			"grpc-listen": "127.0.0.1:0", "http-listen": "127.0.0.1:0", "trust-domain": "other.example",
		})
		check(t, err)
		_, err = host.New(c, hclog.NewNullLogger())
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), `"dona.local"`) || !strings.Contains(err.Error(), `"other.example"`) {
			t.Errorf("%s: a host of another trust domain: %v", tt.name, err)
		}
		check(t, first.stop())
		check(t, start(t, map[string]string{"store": tt.store, "data-dir": tt.second}).stop())
	}
}

// With a replica down hard writes are refused and the rest goes on, also at a host that
// starts then. Hosts that wait for different numbers of replicas say so.
func TestStartWithAReplicaDown(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, redistest.Safe...)
	replica := redistest.Start(t, append([]string{"replicaof", "127.0.0.1 " + master.Port()}, redistest.Safe...)...)
	(&redistest.Group{}).AwaitReplicas(t, master, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	flags := func(replicas string) map[string]string {
		return map[string]string{"store": "redis://" + master.Addr, "redis-replicas": replicas, "data-dir": filepath.Join(t.TempDir(), "data"), "heartbeat": "1s"}
	}
	dial := func(r *running) (donav1.HostAdminClient, donav1.ControlPlaneClient) {
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return donav1.NewHostAdminClient(conn), donav1.NewControlPlaneClient(conn)
	}
	first := start(t, flags("1"))
	until(t, "/readyz at first", func() bool { code, _ := first.get("/readyz"); return code == 200 })
	admin, client := dial(first)
	setFlag := func(client donav1.ControlPlaneClient, name string) error {
		_, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: name}}, grpc.WaitForReady(true))
		return err
	}
	// A hard write that is on its way when the replica goes would hide all from then on.
	until(t, "what the host writes at its start", func() bool {
		c, err := admin.CheckStore(ctx, &donav1.CheckStoreRequest{}, grpc.WaitForReady(true))
		return err == nil && len(c.Chains) > 0 && c.Chains[0].Entries > 0
	})
	check(t, setFlag(client, "f"))
	alarms := func() string {
		h, err := admin.GetHost(ctx, &donav1.GetHostRequest{})
		check(t, err)
		return strings.Join(h.Alarms, "; ")
	}

	replica.Kill()
	until(t, "hard writes to be refused", func() bool {
		h, err := admin.GetHost(ctx, &donav1.GetHostRequest{}, grpc.WaitForReady(true))
		return err == nil && strings.HasPrefix(h.StoreState, "hard writes are refused")
	})
	_, second := dial(start(t, flags("1")))
	watch, err := second.WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web"}, grpc.WaitForReady(true))
	check(t, err)
	if f, err := watch.Recv(); err != nil || len(f.Flags) != 1 {
		t.Errorf("a host that starts meanwhile shows %v, %v", f, err)
	}
	if err := setFlag(second, "g"); status.Code(err) != codes.Unavailable {
		t.Errorf("a hard write at it: %v", err)
	}
	if a := alarms(); strings.Contains(a, "hard writes of this host") {
		t.Errorf("hosts with the same number of replicas: %s", a)
	}
	_, third := dial(start(t, flags("0"))) // lowered on purpose, and not at all hosts yet
	check(t, setFlag(third, "h"))
	until(t, "the other host to say that the numbers differ", func() bool { return strings.Contains(alarms(), "hard writes of this host wait for 1 replicas") })
}
