package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// A hard write that the replica does not confirm is unknown, and shown to nobody
// until it is confirmed; soft writes go on meanwhile.
func TestUnconfirmed(t *testing.T) {
	master := redistest.Start(t, redistest.Safe...)
	replica := redistest.Start(t, append([]string{"replicaof", "127.0.0.1 " + master.Port()}, redistest.Safe...)...)
	(&redistest.Group{}).AwaitReplicas(t, master, 1)
	o := options(t, url(master), newCluster())
	o.Replicas, o.CallTimeout, o.Probe = 1, 500*time.Millisecond, 20*time.Millisecond
	s := open(t, o)
	o.Dir = dataDir(t)
	other := open(t, o)
	redistest.Await(t, "a first write", func() bool { return put(s, store.Hard, "k", "old") == nil })
	redistest.Await(t, "the other host reads it", func() bool { v, err := get(other, "k"); return err == nil && v == "old" })

	replica.Stop()
	if err := put(s, store.Hard, "k", "new"); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("a hard write without its replica: %v", err)
	}
	for _, host := range []store.Store{s, other} {
		if v, err := get(host, "k"); err == nil {
			t.Errorf("%q is shown, which is not confirmed", v)
		}
	}
	if err := put(s, store.Soft, "lease", "x"); err != nil {
		t.Errorf("a soft write meanwhile: %v", err)
	}
	replica.Continue()
	for _, host := range []store.Store{s, other} {
		redistest.Await(t, "it is confirmed and shown", func() bool {
			v, err := get(host, "k")
			if err == nil && v != "new" {
				t.Fatalf("%q is shown", v)
			}
			return err == nil
		})
	}
	var found string
	redistest.Await(t, "the same request again", func() bool {
		return s.Update(context.Background(), store.Hard, func(tx store.Tx) error {
			r, err := tx.Get("k")
			found = string(r.Value)
			if err != nil || found == "new" {
				return err
			}
			return tx.Put("k", []byte("new"))
		}) == nil
	})
	if found != "new" {
		t.Errorf("the same request found %q: it is applied twice", found)
	}

	replica.Kill()
	redistest.Await(t, "the missing replica is seen", func() bool { return strings.Contains(state(s), "they wait for 1 replicas, 0 are connected") })
	begin := time.Now()
	if err := put(s, store.Hard, "k", "newer"); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "store.redis.replicas") {
		t.Errorf("a hard write without a replica: %v", err)
	} else {
		t.Logf("refused after %s", time.Since(begin).Round(time.Microsecond))
	}
	if v, err := get(s, "k"); v != "new" || err != nil {
		t.Errorf("what was refused is there, or reads do not go on: %q, %v", v, err)
	}
	if err := put(s, store.Soft, "lease", "y"); err != nil {
		t.Errorf("a soft write meanwhile: %v", err)
	}
	replica.Restart()
	redistest.Await(t, "hard writes are taken again", func() bool { return put(s, store.Hard, "k", "newest") == nil })
}
