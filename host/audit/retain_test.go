package audit_test

import (
	"context"
	"errors"
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

const day = 24 * time.Hour

// keeping is a chain "web" with a retention.
func keeping(t *testing.T, st store.Store, a *audit.Attester, dir string, change func(*audit.RetainOptions)) *audit.Retention {
	t.Helper()
	o := audit.RetainOptions{Store: a.Store, Log: a.Log, Dir: dir, Keep: 90 * day,
		Chains: func(store.ReadTx) ([]string, error) { return []string{"web"}, nil }}
	if st != nil {
		o.Store = st
	}
	if change != nil {
		change(&o)
	}
	return audit.NewRetention(o)
}

func older(t *testing.T, a *audit.Attester) (o *attest.Older) {
	t.Helper()
	if err := a.Store.View(context.Background(), func(tx store.ReadTx) (err error) {
		o, err = a.Log.Older(tx, "web")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return o
}

// holds checks the chain in the store, its segment files, and that they meet.
func holds(t *testing.T, a *audit.Attester, dir string, files int, through uint64) {
	t.Helper()
	head, err := check(a.Store, a.Log, "web")
	if err != nil || head <= through {
		t.Fatalf("the chain in the store ends at %d, %v", head, err)
	}
	got, err := attest.VerifySegments(os.DirFS(filepath.Join(dir, "segments")), "example.org")
	if err != nil {
		t.Fatal(err)
	}
	o := older(t, a)
	if len(got) != 1 || got[0].FirstSeq != 1 || got[0].LastSeq != through || got[0].Files != files || !got[0].Genesis || o == nil || o.LastSeq != through || o.LastHash != got[0].LastHash {
		t.Fatalf("files hold %+v, the store says %+v; want %d files up to entry %d", got, o, files, through)
	}
	r, result := ask(t, a, audit.Question{Chain: "web"})
	if r.FirstSeq != through+1 || r.Older == nil || *r.Older != *o || !strings.Contains(strings.Join(result.NotProvable, "\n"), "segments/web") {
		t.Errorf("the report begins at %d and says %+v", r.FirstSeq, r.Older)
	}
}

func TestRetentionByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := embedded.OpenMemory(embedded.Options{Flush: 100 * day}) // a tick a second for years is slow
		defer func() { _ = st.Close() }()
		dir := t.TempDir()
		signer, err := audit.OpenSigner(filepath.Join(dir, "attestation.key"), true)
		if err != nil {
			t.Fatal(err)
		}
		a := &audit.Attester{Store: audit.Guard(st), Log: audit.New("example.org"), Signer: signer}
		r := keeping(t, nil, a, dir, nil)
		move := func() {
			t.Helper()
			if err := r.Move(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		for range 98 { // 10 entries a day: the oldest is 98 days old
			fill(t, a, "web", 10)
			time.Sleep(day)
		}
		move()
		if older(t, a) != nil {
			t.Error("entries moved for less than a tenth of the time")
		}
		fill(t, a, "web", 10)
		time.Sleep(2 * day)
		move() // now it is 100 days old: those of more than 90 days move
		holds(t, a, dir, 1, 100)
		move()
		holds(t, a, dir, 1, 100)
		for _, from := range []uint64{1, 100} {
			if _, _, err := a.Report(context.Background(), admin, audit.Question{Chain: "web", FromSeq: from}); !refusal.Is(err, refusal.Precondition) || !strings.Contains(err.Error(), "segments/web") {
				t.Errorf("from entry %d: %v", from, err)
			}
		}
		// All of it old: the newest entry stays.
		time.Sleep(1000 * day)
		move()
		head, _ := check(a.Store, a.Log, "web")
		holds(t, a, dir, 2, head-1)
	})
}

func TestRetentionByNumber(t *testing.T) {
	a := attester(t)
	dir := t.TempDir()
	for range 12 {
		fill(t, a, "web", 1000)
	}
	r := keeping(t, nil, a, dir, func(o *audit.RetainOptions) { o.MaxEntries = 12_000 })
	if err := r.Move(context.Background()); err != nil || older(t, a) != nil {
		t.Fatalf("at the bound: %v, %v", older(t, a), err)
	}
	r = keeping(t, nil, a, dir, func(o *audit.RetainOptions) { o.MaxEntries = 1000 })
	if err := r.Move(context.Background()); err != nil {
		t.Fatal(err)
	}
	holds(t, a, dir, 3, 12_000-900) // 5,000 a file
	for name, mode := range map[string]os.FileMode{"segments": 0o700, "segments/web": 0o700, "segments/web/1-5000.ndjson": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestRetentionThatFails: nothing leaves the store that is not in a file, and what
// a move left behind that did not come to its end is no harm.
func TestRetentionThatFails(t *testing.T) {
	a := attester(t)
	dir := t.TempDir()
	fill(t, a, "web", 300)
	bound := func(o *audit.RetainOptions) { o.MaxEntries = 100 }
	full := failing{Store: a.Store, err: store.ErrFull}
	if err := keeping(t, full, a, dir, bound).Move(context.Background()); !errors.Is(err, store.ErrFull) {
		t.Errorf("a store that takes nothing: %v", err)
	}
	if older(t, a) != nil {
		t.Error("the store says that entries have moved")
	}
	if _, err := os.Stat(filepath.Join(dir, "segments/web/1-210.ndjson")); err != nil {
		t.Errorf("the file is to be there before entries leave the store: %v", err)
	}
	fill(t, a, "web", 100)
	if err := keeping(t, nil, a, dir, bound).Move(context.Background()); err != nil {
		t.Fatal(err)
	}
	holds(t, a, dir, 1, 310)
	aside, err := filepath.Glob(filepath.Join(dir, "segments/web/1-210.ndjson.aside-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("%v, %v", aside, err)
	}
	// A folder that takes no file.
	fill(t, a, "web", 200)
	blocked := t.TempDir()
	if err := os.WriteFile(filepath.Join(blocked, "segments"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := check(a.Store, a.Log, "web")
	if err := keeping(t, nil, a, blocked, bound).Move(context.Background()); err == nil {
		t.Error("a folder that is a file takes segments")
	}
	if o := older(t, a); o.LastSeq != 310 {
		t.Errorf("entries up to %d left the store and are nowhere", o.LastSeq)
	}
	// A damaged chain is left as it is.
	bad := &tampered{Store: a.Store, alter: at(350, func(lines []store.LogEntry, i int) []store.LogEntry {
		lines[i].Payload = append(lines[i].Payload[:len(lines[i].Payload):len(lines[i].Payload)], '}')
		return lines
	})}
	if err := keeping(t, bad, a, dir, bound).Move(context.Background()); err == nil || older(t, a).LastSeq != 310 {
		t.Errorf("of a damaged chain entries up to %d moved: %v", older(t, a).LastSeq, err)
	}
	if after, err := check(a.Store, a.Log, "web"); err != nil || after != before {
		t.Errorf("%d entries, before %d, %v", after, before, err)
	}
}
