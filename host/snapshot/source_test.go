package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// services is a small plane: a service is a set of endpoint ids under a head.
type services struct {
	builds  atomic.Int64
	reused  atomic.Int64
	broken  atomic.Bool // Build fails
	deltas  atomic.Int64
	noDelta atomic.Bool   // Delta fails
	head    atomic.Uint64 // what Peek claims the version to be; 0 = the truth
}

func headKey(name string) string   { return "svc/" + name + "/head" }
func urgentKey(name string) string { return "svc/" + name + "/urgent" }

func removedKey(name string) string { return "svc/" + name + "/removed" }

func (s *services) Prefix(name string) string { return headKey(name) }

func (s *services) Peek(tx store.ReadTx, name string) (snapshot.Head, error) {
	recs, err := tx.GetMany(headKey(name), urgentKey(name), removedKey(name))
	if err != nil {
		return snapshot.Head{}, err
	}
	if claim := s.head.Load(); claim != 0 {
		return snapshot.Head{Version: claim}, nil
	}
	return snapshot.Head{Version: recs[0].Version, Urgent: recs[1].Version, Removed: recs[2].Version}, nil
}

// Delta says endpoint by endpoint what became of base.
func (s *services) Delta(base, next *snapshot.Built) (proto.Message, error) {
	s.deltas.Add(1)
	if s.noDelta.Load() {
		return nil, errors.New("broken on purpose")
	}
	from, to := base.Carry.(map[string]cached), next.Carry.(map[string]cached)
	full := next.Full.(*donav1.ConfigSnapshot)
	d := &donav1.ConfigSnapshot{Service: full.Service, Version: next.Version, Checksum: next.Checksum,
		Form: donav1.ConfigSnapshot_FORM_DELTA, BaseVersion: base.Version}
	for id, c := range to {
		if from[id].version != c.version {
			d.Endpoints = append(d.Endpoints, c.endpoint)
		}
	}
	for id := range from {
		if _, there := to[id]; !there {
			d.RemovedEndpoints = append(d.RemovedEndpoints, id)
		}
	}
	return d, nil
}

type cached struct {
	version  uint64
	endpoint *donav1.Endpoint
	item     [digest.Size]byte
}

func (s *services) Build(tx store.ReadTx, name string, previous *snapshot.Built) (*snapshot.Built, error) {
	s.builds.Add(1)
	if s.broken.Load() {
		return nil, errors.New("broken on purpose")
	}
	head, err := s.Peek(tx, name)
	if err != nil {
		return nil, err
	}
	version := head.Version
	entries, err := tx.Scan("svc/"+name+"/ep", 0, 0, 0)
	if err != nil {
		return nil, err
	}
	var old map[string]cached
	if previous != nil {
		old = previous.Carry.(map[string]cached)
	}
	next := make(map[string]cached, len(entries))
	full := &donav1.ConfigSnapshot{Service: name, Version: version, Form: donav1.ConfigSnapshot_FORM_FULL}
	var sum digest.Sum
	for _, e := range entries {
		key := "svc/" + name + "/ep/" + e.Member
		rec, err := tx.Get(key)
		if err != nil {
			return nil, err
		}
		c := old[e.Member]
		if c.version != rec.Version {
			c = cached{version: rec.Version, endpoint: new(donav1.Endpoint)}
			if err := proto.Unmarshal(rec.Value, c.endpoint); err != nil {
				return nil, err
			}
			c.item = digest.EndpointItem(c.endpoint)
		} else {
			s.reused.Add(1)
		}
		next[e.Member] = c
		sum.Add(c.item)
		full.Endpoints = append(full.Endpoints, c.endpoint)
	}
	checksum := sum.Checksum(uint64(len(entries)))
	full.Checksum = checksum[:]
	return &snapshot.Built{
		Version: version, Checksum: checksum[:], Full: full, Carry: next, Weight: 100 * len(entries),
		Unchanged: &donav1.ConfigSnapshot{Service: name, Version: version, Checksum: checksum[:], Form: donav1.ConfigSnapshot_FORM_UNCHANGED},
	}, nil
}

// A change of one service.
type change struct {
	put    []string // endpoint ids to add or move to a new address
	del    []string
	urgent bool
	early  bool // a removal that does not wait while there are few
}

// apply commits c and returns the service's new version.
func apply(tb testing.TB, st store.Store, name string, c change) (version uint64) {
	tb.Helper()
	err := st.Update(context.Background(), store.Soft, func(tx store.Tx) error {
		version = tx.Revision()
		for _, id := range c.put {
			if err := tx.IndexPut("svc/"+name+"/ep", id, 0); err != nil {
				return err
			}
			if err := store.Save(tx, "svc/"+name+"/ep/"+id, endpoint(id, version)); err != nil {
				return err
			}
		}
		for _, id := range c.del {
			if err := tx.IndexDelete("svc/"+name+"/ep", id); err != nil {
				return err
			}
			if err := tx.Delete("svc/" + name + "/ep/" + id); err != nil {
				return err
			}
		}
		if c.urgent {
			if err := tx.Put(urgentKey(name), []byte{1}); err != nil {
				return err
			}
		}
		if c.early {
			if err := tx.Put(removedKey(name), []byte{1}); err != nil {
				return err
			}
		}
		return tx.Put(headKey(name), []byte{1})
	})
	if err != nil {
		tb.Fatal(err)
	}
	return version
}

func endpoint(id string, version uint64) *donav1.Endpoint {
	return &donav1.Endpoint{
		Id: id, Address: fmt.Sprintf("10.%d.%d.%d:8443", version>>16&255, version>>8&255, version&255),
		Variant: "v1", Region: "eu-central-1", Zone: "eu-central-1a", LbWeight: 100,
	}
}

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("endpoint-%05d", i)
	}
	return all
}

// decode reads a frame back and checks its checksum against its content, unless it
// is a delta.
func decode(tb testing.TB, f *snapshot.Frame) *donav1.ConfigSnapshot {
	tb.Helper()
	var c donav1.ConfigSnapshot
	if err := proto.Unmarshal(f.EncodedMessage(), &c); err != nil {
		tb.Fatal(err)
	}
	if c.Version != f.Version || (c.Form == donav1.ConfigSnapshot_FORM_UNCHANGED) != f.Unchanged ||
		(c.Form == donav1.ConfigSnapshot_FORM_DELTA) != (f.Base != 0) || c.BaseVersion != f.Base {
		tb.Fatalf("the frame says version %d, unchanged %v, base %d; its message %d, %v, base %d", f.Version, f.Unchanged, f.Base, c.Version, c.Form, c.BaseVersion)
	}
	if f.Base == 0 {
		verify(tb, &c)
	}
	return &c
}

// holder is a watcher that keeps what it was sent.
type holder struct{ snapshot *mirror.Snapshot }

// take applies a frame as a client does.
func (h *holder) take(tb testing.TB, f *snapshot.Frame) *donav1.ConfigSnapshot {
	tb.Helper()
	c := decode(tb, f)
	var err error
	switch {
	case f.Unchanged:
		return h.snapshot.Config()
	case f.Base != 0:
		h.snapshot, err = h.snapshot.Apply(c)
	default:
		h.snapshot, err = mirror.Full(c)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return h.snapshot.Config()
}

func verify(tb testing.TB, c *donav1.ConfigSnapshot) {
	tb.Helper()
	if c.Form == donav1.ConfigSnapshot_FORM_UNCHANGED {
		return
	}
	if want := digest.OfSnapshot(c); string(want[:]) != string(c.Checksum) {
		tb.Fatalf("version %d: the checksum does not fit the content", c.Version)
	}
}
