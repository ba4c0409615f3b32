package pool_test

import (
	"fmt"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

// verified is what does not hold in a store, and how many records of it parse.
func verified(t testing.TB, st store.Store) (records int, problems []string) {
	t.Helper()
	if err := st.View(t.Context(), func(tx store.ReadTx) error {
		upstreams, err := pool.Upstreams(tx)
		if err != nil {
			return err
		}
		if records, problems, err = pool.Verify(tx); err != nil {
			return err
		}
		for _, u := range upstreams {
			n, more, err := pool.VerifyUpstream(tx, u)
			if err != nil {
				return err
			}
			records, problems = records+n, append(problems, more...)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return records, problems
}

// TestVerify: what does not hold is named, and nothing else.
func TestVerify(t *testing.T) {
	// edit changes the record of a proxy behind the pool's back.
	edit := func(change func(*statev1.ProxyState)) func(store.Tx, []string) error {
		return func(tx store.Tx, ids []string) error {
			p := new(statev1.ProxyState)
			if _, err := store.Load(tx, "pool/proxy/"+ids[0], p); err != nil {
				return err
			}
			change(p)
			return store.Save(tx, "pool/proxy/"+ids[0], p)
		}
	}
	for _, tc := range []struct {
		name, want string
		harm       func(store.Tx, []string) error
	}{
		{"a sound one", "", func(store.Tx, []string) error { return nil }},
		{"a record that is none", "does not parse as state.v1.ProxyState", func(tx store.Tx, ids []string) error { return tx.Put("pool/proxy/"+ids[0], []byte("nothing")) }},
		{"a configuration that is none", "record pool/config: the published configuration does not parse any more", func(tx store.Tx, _ []string) error {
			return store.Save(tx, "pool/config", &statev1.PoolConfig{Revision: 1, Yaml: "cluster: 1"})
		}},
		{"another's record", "is of proxy", edit(func(p *statev1.ProxyState) { p.Id = "other" })},
		{"owner and holder", "is owned by w1, and may still be used by w1", edit(func(p *statev1.ProxyState) { p.Holder = p.Owner })},
		{"extracted and owned", "is extracted, and worker w1 has it too", edit(func(p *statev1.ProxyState) { p.State = ownership.Extracted })},
		{"extracted by nobody", "is extracted by nobody", edit(func(p *statev1.ProxyState) { p.State, p.Owner = ownership.Extracted, "" })},
		{"expired and owned", "has expired and is still owned by w1", edit(func(p *statev1.ProxyState) { p.State = ownership.Expired })},
		{"an unknown owner", "is with worker w9, of whom nothing is known", edit(func(p *statev1.ProxyState) { p.Owner = "w9" })},
		{"a lost place", "is missing in index pool/owned/w1", func(tx store.Tx, ids []string) error { return tx.IndexDelete("pool/owned/w1", ids[0]) }},
		{"another end", "is missing in index pool/proxies/dc", edit(func(p *statev1.ProxyState) { p.ExpiresMs++ })},
		{"an epoch that went back", "newer than the newest, 1", func(tx store.Tx, _ []string) error {
			return store.Save(tx, "pool/epoch", &statev1.PoolEpoch{OwnershipEpoch: 1})
		}},
		{"an older assignment", "is of assignment 1, and it had 0", func(tx store.Tx, ids []string) error {
			return edit(func(p *statev1.ProxyState) { p.AssignmentEpoch = 0 })(tx, ids[1:])
		}},
		{"a lost key", "is not found by its idempotency key", func(tx store.Tx, _ []string) error {
			entries, err := tx.Scan("pool/extractions", 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			x := new(statev1.Extraction)
			if _, err := store.Load(tx, "pool/extraction/"+entries[0].Member, x); err != nil {
				return err
			}
			return tx.Delete(fmt.Sprintf("pool/extraction-key/%x", x.Key))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.add("dc", 4)
			_, err := w.p.Extract(w.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1})
			w.must(err)
			x := w.join("w1")
			w.allocate()
			s := x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 3 })
			x.accept(s)
			x.report()
			_, err = w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: s.Proxies[1].ProxyId})
			w.must(err)
			ids := []string{s.Proxies[0].ProxyId, s.Proxies[1].ProxyId}
			w.must(w.store.Update(w.ctx, store.Soft, func(tx store.Tx) error { return tc.harm(tx, ids) }))
			records, problems := verified(t, w.store)
			if records < 12 {
				t.Errorf("only %d records were read", records)
			}
			if tc.want == "" && len(problems) > 0 || tc.want != "" && !strings.Contains(strings.Join(problems, "\n"), tc.want) {
				t.Errorf("the problems are %q, want %q", problems, tc.want)
			}
		})
	}
}
