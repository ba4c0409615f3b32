package audit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/attest"
)

const admin = "spiffe://example.org/admin/alice"

func attester(t *testing.T) *audit.Attester {
	t.Helper()
	st, log := open(t)
	signer, err := audit.OpenSigner(filepath.Join(t.TempDir(), "attestation.key"), true)
	if err != nil {
		t.Fatal(err)
	}
	return &audit.Attester{Store: audit.Guard(st), Log: log, Signer: signer}
}

// fill appends n entries, so many at a time as a busy machine writes within what a guarded
// store waits.
func fill(t *testing.T, a *audit.Attester, chain string, n int) {
	t.Helper()
	const most = 100
	for from := 0; from < n; from += most {
		update(t, a.Store, func(tx store.Tx) error {
			for i := from; i < min(n, from+most); i++ {
				if err := a.Log.Append(tx, chain, entry(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// ask asks for a report, verifies its pages to the end, and returns both.
func ask(t *testing.T, a *audit.Attester, q audit.Question) (*attest.Report, *attest.Result) {
	t.Helper()
	gap := q.FromSeq != 0
	var pages []attest.Page
	var first *attest.Report
	for {
		raw, sig, err := a.Report(context.Background(), admin, q)
		if err != nil {
			t.Fatal(err)
		}
		r, err := attest.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = r
		}
		pages = append(pages, attest.Page{Name: "page", Report: raw, Signature: sig})
		if r.NextSeq == 0 {
			break
		}
		if len(pages) > 100 {
			t.Fatal("the pages do not end")
		}
		q.FromUnix, q.FromSeq = 0, r.NextSeq
	}
	key, err := attest.ParseKey(a.Signer.PublicPEM())
	if err != nil {
		t.Fatal(err)
	}
	result, err := attest.Verify(pages, attest.Options{Key: key, Service: &q.Chain, Nonce: &q.Nonce, AllowGap: gap})
	if err != nil {
		t.Fatal(err)
	}
	return first, result
}

func TestReport(t *testing.T) {
	a := attester(t)
	fill(t, a, "web", 5)
	r, got := ask(t, a, audit.Question{Chain: "web", Nonce: "n-7"})
	if r.FirstSeq != 1 || r.LastSeq != 5 || r.Nonce != "n-7" || r.Older != nil || got.Entries != 5 || got.TrustDomain != "example.org" {
		t.Errorf("%+v, %+v", r, got)
	}
	// That it was asked for is in the next one.
	r, _ = ask(t, a, audit.Question{Chain: "web"})
	if r.LastSeq != 6 || !strings.Contains(string(r.Entries[5]), `"kind":"attestation.issued","actor":"`+admin+`","detail":{"first_seq":"1","last_seq":"5"}`) {
		t.Errorf("the sixth entry is %s", r.Entries[len(r.Entries)-1])
	}
	if n, err := check(a.Store, a.Log, "web"); err != nil || n != 7 {
		t.Errorf("%d entries, %v", n, err)
	}
	// Any number of entries a page comes to an end, and the chain with it.
	for most := uint32(1); most < 9; most++ {
		before, _ := check(a.Store, a.Log, "web")
		_, got := ask(t, a, audit.Question{Chain: "web", MaxEntries: most})
		after, err := check(a.Store, a.Log, "web")
		if got.FirstSeq != 1 || got.LastSeq < before || err != nil || after > before+2 {
			t.Errorf("%d a page: entries %d to %d; the chain grew from %d to %d, %v", most, got.FirstSeq, got.LastSeq, before, after, err)
		}
	}
	// The chains of no service are there before their first entry.
	if r, got := ask(t, a, audit.Question{Chain: audit.PoolChain}); r.Head.Seq != 0 || got.Entries != 0 {
		t.Errorf("%+v", r)
	}
	if r, _ := ask(t, a, audit.Question{Chain: audit.PoolChain}); r.LastSeq != 1 {
		t.Errorf("%+v", r)
	}
	// What follows the newest entry is nothing, and not a fault.
	head, _ := check(a.Store, a.Log, "web")
	if r, _ := ask(t, a, audit.Question{Chain: "web", FromSeq: head + 1}); len(r.Entries) != 0 || r.FirstSeq != 0 {
		t.Errorf("%+v", r)
	}
}

// TestRange: the smallest run that holds every entry in the range, also where the
// clock stepped back.
func TestRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := embedded.OpenMemory(embedded.Options{})
		defer func() { _ = st.Close() }()
		signer, err := audit.OpenSigner(filepath.Join(t.TempDir(), "attestation.key"), true)
		if err != nil {
			t.Fatal(err)
		}
		a := &audit.Attester{Store: audit.Guard(st), Log: audit.New("example.org"), Signer: signer}
		began := time.Now().Unix()
		for range 10 { // one entry a second: seq n at second n-1
			fill(t, a, "web", 1)
			time.Sleep(time.Second)
		}
		for _, tc := range []struct {
			from, to    int64
			seq         uint64
			most        uint32
			first, last uint64
			next        uint64
		}{
			{0, 0, 0, 0, 1, 10, 0},
			{3, 6, 0, 0, 4, 7, 0},
			{3, 0, 0, 0, 4, 10, 0},
			{0, 6, 0, 0, 1, 7, 0}, // 0 is the beginning, and so is second 0 here
			{3, 6, 0, 2, 4, 5, 6},
			{0, 6, 6, 2, 6, 7, 0},
			{0, 6, 4, 3, 4, 6, 7},
			{9, 9, 0, 1, 10, 10, 0},
			{100, 200, 0, 0, 0, 0, 0},
		} {
			q := audit.Question{Chain: "web", FromSeq: tc.seq, MaxEntries: tc.most}
			if tc.from != 0 {
				q.FromUnix = began + tc.from
			}
			if tc.to != 0 {
				q.ToUnix = began + tc.to
			}
			raw, _, err := a.Report(context.Background(), admin, q)
			if err != nil {
				t.Fatal(err)
			}
			r, err := attest.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			if last := tc.last; r.FirstSeq != tc.first || r.NextSeq != tc.next || r.LastSeq != last && (last != 10 || q.ToUnix != 0 || r.LastSeq < last) {
				t.Errorf("%+v: entries %d to %d, next %d", tc, r.FirstSeq, r.LastSeq, r.NextSeq)
			}
		}
	})
}

// TestSteppedClockHidesNothing looks for ranges in a chain whose times rise and fall.
func TestSteppedClockHidesNothing(t *testing.T) {
	a := attester(t)
	prev := a.Log.Genesis("web")
	update(t, a.Store, func(tx store.Tx) error {
		for i, second := range []int64{10, 50, 20, 60, 30, 70} {
			line := fmt.Appendf(nil, `{"v":"dona-audit-v1","seq":%d,"time_ms":%d,"service":"web","kind":"flag.set","actor":"local:dev","detail":{"flag":"f"},"evidence":[],"prev":"%x"}`, i+1, second*1000+999, prev)
			if _, err := tx.Append("audit/web", line); err != nil {
				return err
			}
			prev = sha256.Sum256(line)
		}
		return store.Save(tx, "audit/web/head", chainHead(6, prev))
	})
	for _, tc := range []struct{ from, to, first, last int64 }{
		{10, 10, 1, 1}, {20, 30, 3, 5}, {50, 70, 2, 6}, {10, 20, 1, 3}, {30, 50, 2, 5}, {60, 60, 4, 4}, {11, 19, 0, 0},
	} {
		r, _ := ask(t, a, audit.Question{Chain: "web", FromUnix: tc.from, ToUnix: tc.to})
		if r.FirstSeq != uint64(tc.first) || r.LastSeq != uint64(tc.last) {
			t.Errorf("from %d to %d: entries %d to %d, want %d to %d", tc.from, tc.to, r.FirstSeq, r.LastSeq, tc.first, tc.last)
		}
	}
	if r, got := ask(t, a, audit.Question{Chain: "web", FromUnix: 30, ToUnix: 50, MaxEntries: 1}); r.NextSeq != 3 || got.FirstSeq != 2 || got.LastSeq != 5 {
		t.Errorf("in pages of one: %+v, %+v", r, got)
	}
}

// TestReportBytes: a report never outgrows a message, and always has an entry.
func TestReportBytes(t *testing.T) {
	a := attester(t)
	big := audit.Entry{Kind: "rollout.abort", Actor: admin, Detail: map[string]string{"reason": strings.Repeat("x", 60<<10)}}
	for range 8 {
		update(t, a.Store, func(tx store.Tx) error {
			for range 10 {
				if err := a.Log.Append(tx, "web", big); err != nil {
					return err
				}
			}
			return nil
		})
	}
	raw, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "web"})
	if err != nil || len(raw) > audit.ReportBytes+8<<10 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	if r, got := ask(t, a, audit.Question{Chain: "web"}); r.NextSeq == 0 || got.FirstSeq != 1 || got.LastSeq < 81 {
		t.Errorf("%d to %d, next %d", got.FirstSeq, got.LastSeq, r.NextSeq)
	}
}

// TestReportIsDurable: entries that came with soft state are flushed before a
// report that shows them is signed.
func TestReportIsDurable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	st, err := embedded.Open(dir, embedded.Options{Flush: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	log := audit.New("example.org")
	signer, err := audit.OpenSigner(filepath.Join(dir, "attestation.key"), true)
	if err != nil {
		t.Fatal(err)
	}
	a := &audit.Attester{Store: audit.Guard(st), Log: log, Signer: signer}
	soft := func() {
		t.Helper()
		if err := st.Update(context.Background(), store.Soft, func(tx store.Tx) error {
			return log.Append(tx, "web", audit.Entry{Kind: "endpoint.register", Actor: "host:h1", Detail: map[string]string{"endpoint_id": "a"}})
		}); err != nil {
			t.Fatal(err)
		}
	}
	soft()
	q := audit.Question{Chain: "web"}
	for _, told := range []bool{false, true} {
		r, _ := ask(t, a, q)
		// What a host finds that starts on the disk as it is now.
		var copied bytes.Buffer
		if err := st.Backup(&copied); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(other, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, "store.db"), copied.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := embedded.Open(other, embedded.Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := check(again, log, "web")
		if err != nil || n < r.Head.Seq {
			t.Errorf("told %v: on disk are %d entries, attested was head %d; %v", told, n, r.Head.Seq, err)
		}
		_ = again.Close()
		q.FromSeq = r.LastSeq + 1 // the entry that it was asked for is next, then nothing new is told
	}
}

func TestReportRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(tx store.Tx) error
		want   string
	}{
		{"a flipped head", func(tx store.Tx) error { return store.Save(tx, "audit/web/head", chainHead(5, [32]byte{1})) }, "entry 5 is not what the head says"},
		{"a missing tail", func(tx store.Tx) error { return store.Save(tx, "audit/web/head", chainHead(6, [32]byte{1})) }, "entry 6 is not what the head says"},
	} {
		a := attester(t)
		fill(t, a, "web", 5)
		update(t, a.Store, tc.damage)
		_, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "web"})
		var refused *refusal.Error
		if !errors.As(err, &refused) || refused.Kind != refusal.Precondition || refused.Reason != "audit" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	a := attester(t)
	fill(t, a, "web", 5)
	st := a.Store
	for _, cause := range []error{store.ErrFull, store.ErrReadOnly, store.ErrUnavailable} {
		a.Store = audit.Guard(failing{Store: st, err: cause})
		raw, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "web"})
		var refused *refusal.Error
		if !errors.As(err, &refused) || refused.Kind != refusal.Unavailable || refused.Reason != "audit" || raw != nil {
			t.Errorf("%v: %v", cause, err)
		}
	}
	a.Store = st
	if _, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "nope"}); !refusal.Is(err, refusal.NotFound) {
		t.Error(err)
	}
	if _, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "web", FromSeq: 7}); !refusal.Is(err, refusal.Precondition) {
		t.Error(err)
	}
}

func TestSigner(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "attestation.key")
	if _, err := audit.OpenSigner(file, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key that is not there: %v", err)
	}
	made, err := audit.OpenSigner(file, true)
	if err != nil || !made.Made() {
		t.Fatal(made, err)
	}
	for name, mode := range map[string]fs.FileMode{file: 0o600, audit.PublicName(file): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if public, err := os.ReadFile(filepath.Join(dir, "attestation.pem")); err != nil || !bytes.Equal(public, made.PublicPEM()) {
		t.Errorf("the public half is %s, %v", public, err)
	}
	again, err := audit.OpenSigner(file, true)
	if err != nil || again.Made() || again.KeyID() != made.KeyID() {
		t.Errorf("%v, %v", again, err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(string(good), "\n")[1]
	for name, bad := range map[string]struct {
		text []byte
		mode fs.FileMode
	}{
		"others may read": {good, 0o644}, "its group may": {good, 0o640}, "empty": {nil, 0o600}, "cut": {good[:len(good)-40], 0o600},
		"damaged": {bytes.Replace(good, []byte(secret), []byte(secret[:8]+"AAAAAAAA"+secret[16:]), 1), 0o600},
		"public":  {made.PublicPEM(), 0o600},
	} {
		if err := os.WriteFile(file, bad.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, bad.mode); err != nil {
			t.Fatal(err)
		}
		_, err := audit.OpenSigner(file, true)
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(file); err != nil || !bytes.Equal(left, bad.text) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "attestation.pem"), file); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.OpenSigner(file, true); !errors.Is(err, store.ErrRefused) {
		t.Errorf("a link: %v", err)
	}
	if hash, err := hex.DecodeString(strings.TrimPrefix(made.KeyID(), "sha256:")); err != nil || len(hash) != 32 {
		t.Error(made.KeyID())
	}
}
