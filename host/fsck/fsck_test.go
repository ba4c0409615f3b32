package fsck_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/fsck"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	domain  = "example.org"
	entries = 2500 // of the chain web: more than two pages
)

// filled returns a store with the services pay and web.
func filled(t *testing.T) store.Store {
	t.Helper()
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	log := audit.New(domain)
	plane := service.New(st, log, "h1")
	for _, name := range []string{"pay", "web"} {
		rule := &donav1.FlagRule{Service: name, Flag: "f"}
		if err := plane.SetFlag(t.Context(), "local:dev", &donav1.SetFlagRequest{Rule: rule}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, st, func(tx store.Tx) error {
		for range entries - 1 {
			if err := log.Append(tx, "web", audit.Entry{Kind: "flag.set", Actor: "local:dev"}); err != nil {
				return err
			}
		}
		return nil
	})
	return st
}

func write(t *testing.T, st store.Store, fn func(tx store.Tx) error) {
	t.Helper()
	if err := st.Update(t.Context(), store.Hard, fn); err != nil {
		t.Fatal(err)
	}
}

// flipped is a store in which one bit of one entry of a log is turned.
type flipped struct {
	store.Store
	log string
	seq uint64
}

func (f flipped) View(ctx context.Context, fn func(tx store.ReadTx) error) error {
	return f.Store.View(ctx, func(tx store.ReadTx) error { return fn(flippedTx{tx, f}) })
}

type flippedTx struct {
	store.ReadTx
	f flipped
}

func (tx flippedTx) ReadLog(log string, from uint64, limit int) ([]store.LogEntry, error) {
	lines, err := tx.ReadTx.ReadLog(log, from, limit)
	for i := range lines {
		if log == tx.f.log && lines[i].Seq == tx.f.seq {
			lines[i].Payload = bytes.Clone(lines[i].Payload)
			lines[i].Payload[len(lines[i].Payload)/2] ^= 1
		}
	}
	return lines, err
}

func TestSoundStore(t *testing.T) {
	r, err := fsck.Run(t.Context(), filled(t), domain)
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("a sound store: %v, %v", r.Problems, err)
	}
	if r.Services != 2 || r.Records < 4 || len(r.Chains) != 2 { // a head and a flag each
		t.Errorf("%d services, %d records, chains %v", r.Services, r.Records, r.Chains)
	}
	for i, want := range []fsck.Chain{{Name: "pay", Entries: 1}, {Name: "web", Entries: entries}} {
		if got := r.Chains[i]; got.Name != want.Name || got.Entries != want.Entries || len(got.Head) != 64 {
			t.Errorf("chain %d is %+v, want %+v", i, got, want)
		}
	}
}

// What does not hold is named, and the rest is looked at all the same.
func TestProblems(t *testing.T) {
	sound := func(*testing.T, store.Store) {}
	for _, tt := range []struct {
		name, want, domain string
		flip               uint64
		harm               func(t *testing.T, st store.Store)
		chains             int // that hold
	}{
		// The turned bit leaves a line that parses: the next one, or the head, tells.
		{"the first entry flipped", "chain web: entry 2 does not continue", domain, 1, sound, 1},
		{"one of the second page flipped", "chain web: entry 1501 does not continue", domain, 1500, sound, 1},
		{"the last entry flipped", "chain web: ends at entry 2500", domain, entries, sound, 1},
		{"an entry without its head", "chain web: entry 2501", domain, 0, func(t *testing.T, st store.Store) {
			write(t, st, func(tx store.Tx) error { _, err := tx.Append("audit/web", []byte("{}")); return err })
		}, 1},
		{"a record that is none", "service pay: record svc/pay/flag/f does not parse", domain, 0, func(t *testing.T, st store.Store) {
			write(t, st, func(tx store.Tx) error { return tx.Put("svc/pay/flag/f", []byte("not a record")) })
		}, 2},
		{"a record that is gone", "service pay: the head counts 0 endpoints and 1 flags, there are 0 and 0", domain, 0, func(t *testing.T, st store.Store) {
			write(t, st, func(tx store.Tx) error { return tx.Delete("svc/pay/flag/f") })
		}, 2},
		{"chains of another trust domain", "chain pay: entry 1", "example.com", 0, sound, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := filled(t)
			tt.harm(t, st)
			r, err := fsck.Run(t.Context(), flipped{st, "audit/web", tt.flip}, tt.domain)
			if err != nil || len(r.Problems) == 0 || !strings.Contains(r.Problems[0], tt.want) {
				t.Errorf("found %v, %v; want %q", r.Problems, err, tt.want)
			}
			if r.Services != 2 || len(r.Chains) != tt.chains {
				t.Errorf("%d services, chains %v, want %d that hold", r.Services, r.Chains, tt.chains)
			}
		})
	}
}

// The egress plane's records are looked at, too.
func TestPool(t *testing.T) {
	st := filled(t)
	p := pool.New(pool.Options{Store: st, Audit: audit.New(domain), HostID: "h1"})
	if _, err := p.Publish(t.Context(), "local:dev", &controlplanev1.PublishConfigRequest{Yaml: "cluster: {id: c1}\nupstreams: [{name: dc, protocol: http, source: {type: static, proxies: []}}]\n"}); err != nil {
		t.Fatal(err)
	}
	before, err := fsck.Run(t.Context(), st, domain)
	if err != nil || len(before.Problems) > 0 {
		t.Fatal(before.Problems, err)
	}
	if _, err := p.Import(t.Context(), "local:dev", &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "192.0.2.1:80\n192.0.2.2:80\n"}); err != nil {
		t.Fatal(err)
	}
	r, err := fsck.Run(t.Context(), st, domain)
	if err != nil || len(r.Problems) > 0 || r.Records != before.Records+2 || len(r.Chains) != len(before.Chains) {
		t.Fatalf("a sound store: %+v, %v, before %+v", r, err, before)
	}
	listed, err := p.ListProxies(t.Context(), &controlplanev1.ListProxiesRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	key := "pool/proxy/" + listed.Proxies[0].Proxy.ProxyId
	write(t, st, func(tx store.Tx) error { return tx.Put(key, []byte("not a record")) })
	r, err = fsck.Run(t.Context(), st, domain)
	if err != nil || len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0], "upstream dc: record "+key+" does not parse") {
		t.Errorf("a damaged record: %q, %v", r.Problems, err)
	}
	write(t, st, func(tx store.Tx) error { return tx.Put("pool/config", []byte("not a record")) })
	r, err = fsck.Run(t.Context(), st, domain)
	if err != nil || len(r.Problems) != 2 || !strings.HasPrefix(r.Problems[1], "pool: record pool/config does not parse") {
		t.Errorf("a damaged configuration: %q, %v", r.Problems, err)
	}
}

// A store that cannot be read is not one with problems.
func TestUnreadableStore(t *testing.T) {
	st := filled(t)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := fsck.Run(t.Context(), st, domain); !errors.Is(err, store.ErrClosed) || len(r.Problems) > 0 {
		t.Errorf("a closed store: %v, %v", r.Problems, err)
	}
}
