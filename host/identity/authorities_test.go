package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

var alice = identity.ID{TrustDomain: domain, Kind: identity.Admin, Name: "alice"}

func renew(t *testing.T, i *identity.Issuer) *identity.SVID {
	t.Helper()
	s, err := i.Renew(t.Context(), alice, identity.Request{CSR: plain(t)})
	fatal(t, err)
	return s
}

func caFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "ca", "*.pem"))
	fatal(t, err)
	return names
}

func copyFile(t *testing.T, from, toDir string) string {
	t.Helper()
	text, err := os.ReadFile(from)
	fatal(t, err)
	fatal(t, os.MkdirAll(toDir, 0o700))
	name := filepath.Join(toDir, filepath.Base(from))
	fatal(t, os.WriteFile(name, text, 0o600))
	return name
}

// TestFirstStart: the authority is made once, for its owner only, and stays.
func TestFirstStart(t *testing.T) {
	st := memory(t)
	o := options(t, st)
	first := open(t, o)
	files := caFiles(t, o.DataDir)
	if len(files) != 1 {
		t.Fatalf("the files are %v", files)
	}
	info, err := os.Stat(files[0])
	fatal(t, err)
	dir, err := os.Stat(filepath.Dir(files[0]))
	fatal(t, err)
	if info.Mode().Perm() != 0o600 || dir.Mode().Perm() != 0o700 {
		t.Errorf("the modes are %v and %v", info.Mode(), dir.Mode())
	}
	again := open(t, o)
	if !slices.Equal(first.Keys(), again.Keys()) || len(entries(t, st, "ca.rollover")) != 1 {
		t.Errorf("the second start has %v, the first had %v; entries %s", again.Keys(), first.Keys(), entries(t, st, "ca.rollover"))
	}
	if leaf := issued(t, renew(t, again)); leaf.Issuer.String() != first.Bundle()[0].Subject.String() {
		t.Errorf("signed by %s", leaf.Issuer)
	}
	ca := first.Bundle()[0]
	if !ca.IsCA || len(ca.URIs) != 1 || ca.URIs[0].String() != "spiffe://example.org" || ca.PublicKey.(*ecdsa.PublicKey).Curve != elliptic.P256() {
		t.Errorf("the authority is %+v", ca)
	}
}

// TestOtherAuthority: a host with another authority than its store does not start, or
// says so with dev and issues nothing.
func TestOtherAuthority(t *testing.T) {
	st := memory(t)
	first := options(t, st)
	open(t, first)
	refused := func(name string, o identity.Options, words ...string) {
		t.Helper()
		_, err := identity.Open(t.Context(), o)
		if !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: the error is %v", name, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error says nothing of %s: %v", name, w, err)
			}
		}
	}
	bare := options(t, st)
	refused("none", bare, "copy", filepath.Base(caFiles(t, first.DataDir)[0]))
	if files := caFiles(t, bare.DataDir); len(files) > 0 {
		t.Errorf("a refused host made %v", files)
	}

	elsewhere := options(t, memory(t))
	open(t, elsewhere)
	moved := options(t, st)
	copyFile(t, caFiles(t, elsewhere.DataDir)[0], filepath.Join(moved.DataDir, "ca"))
	refused("another", moved, "copy")

	given := options(t, st)
	name := caFiles(t, elsewhere.DataDir)[0]
	ca, err := identity.LoadCA(domain, name, name)
	fatal(t, err)
	given.Given = ca
	refused("another is given", given, "identity.ca_cert")

	moved.Dev = true
	i := open(t, moved)
	if a := i.Alarms(); len(a) != 1 || !strings.Contains(a[0], "the key of the authority") {
		t.Errorf("the alarms are %q", a)
	}
	_, err = i.Renew(t.Context(), alice, identity.Request{CSR: plain(t)})
	wantRefusal(t, err, refusal.Unavailable)

	copyFile(t, caFiles(t, first.DataDir)[0], filepath.Join(bare.DataDir, "ca"))
	issued(t, renew(t, open(t, bare)))
}

// TestGivenAuthority: one that is made elsewhere, by any tool, is taken when it holds.
func TestGivenAuthority(t *testing.T) {
	key := newKey(t)
	td := []*url.URL{{Scheme: "spiffe", Host: domain}}
	good := x509.Certificate{SerialNumber: big.NewInt(7), URIs: td, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1, 2, 3}}
	good.Subject.CommonName = "ours"
	write := func(dir string, template x509.Certificate, key crypto.Signer) (cert, keyFile string) {
		der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
		fatal(t, err)
		raw, err := x509.MarshalPKCS8PrivateKey(key)
		fatal(t, err)
		cert, keyFile = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
		fatal(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
		fatal(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
		return cert, keyFile
	}
	cert, keyFile := write(t.TempDir(), good, key)
	ca, err := identity.LoadCA(domain, cert, keyFile)
	fatal(t, err)
	o := options(t, memory(t))
	o.Given = ca
	i := open(t, o)
	leaf := issued(t, renew(t, i))
	if want := ca.Certificate.NotAfter.Add(-identity.Margin); !leaf.NotAfter.Equal(want) {
		t.Errorf("it is valid until %s, want the margin before its issuer's end, %s", leaf.NotAfter, want)
	}
	if files := caFiles(t, o.DataDir); len(files) > 0 {
		t.Errorf("a given authority is written to %v", files)
	}

	for name, change := range map[string]func(*x509.Certificate){
		"no authority":         func(c *x509.Certificate) { c.IsCA = false },
		"may not sign":         func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature },
		"another trust domain": func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "other.org"}} },
		"a path":               func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: domain, Path: "/svc/a"}} },
		"two names":            func(c *x509.Certificate) { c.URIs = slices.Concat(td, td) },
		"no name":              func(c *x509.Certificate) { c.URIs = nil },
	} {
		bad := good
		change(&bad)
		cert, keyFile := write(t.TempDir(), bad, key)
		if _, err := identity.LoadCA(domain, cert, keyFile); err == nil {
			t.Errorf("taken: %s", name)
		}
	}
	otherCert, otherKey := write(t.TempDir(), good, newKey(t))
	if _, err := identity.LoadCA(domain, cert, otherKey); err == nil {
		t.Error("taken: a key of another certificate")
	}
	both, err := os.ReadFile(cert)
	fatal(t, err)
	more, err := os.ReadFile(otherCert)
	fatal(t, err)
	for name, text := range map[string]string{"empty": "", "two certificates": string(both) + string(more), "cut": string(both[:len(both)/2])} {
		file := filepath.Join(t.TempDir(), "x.pem")
		fatal(t, os.WriteFile(file, []byte(text), 0o600))
		if _, err := identity.LoadCA(domain, file, keyFile); err == nil {
			t.Errorf("taken: %s", name)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660} {
		fatal(t, os.Chmod(keyFile, mode))
		if _, err := identity.LoadCA(domain, cert, keyFile); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("a key file of mode %v: %v", mode, err)
		}
	}
}

// TestLooseFiles: key files and their folder are for their owner only.
func TestLooseFiles(t *testing.T) {
	st := memory(t)
	o := options(t, st)
	open(t, o)
	file := caFiles(t, o.DataDir)[0]
	for _, tc := range []struct {
		path        string
		loose, tidy os.FileMode
	}{{file, 0o640, 0o600}, {file, 0o604, 0o600}, {filepath.Dir(file), 0o750, 0o700}} {
		fatal(t, os.Chmod(tc.path, tc.loose))
		if _, err := identity.Open(t.Context(), o); !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s with mode %v: %v", tc.path, tc.loose, err)
		}
		fatal(t, os.Chmod(tc.path, tc.tidy))
	}
	text, err := os.ReadFile(file)
	fatal(t, err)
	fatal(t, os.WriteFile(file, text[:len(text)-40], 0o600))
	if _, err := identity.Open(t.Context(), o); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), file) {
		t.Errorf("a cut file: %v", err)
	}
}

// TestMinTTL: near its end an authority signs nothing that would be of no use.
func TestMinTTL(t *testing.T) {
	o := options(t, memory(t))
	wall := time.Now()
	o.Wall = func() time.Time { return wall }
	i := open(t, o)
	end := i.Bundle()[0].NotAfter
	if a := i.Alarms(); len(a) != 0 {
		t.Errorf("ten years before its end the alarms are %q", a)
	}
	wall = end.Add(-identity.Margin - o.MinTTL)
	if a := i.Alarms(); len(a) != 1 || !strings.Contains(a[0], "ends at "+end.UTC().Format(time.RFC3339)) {
		t.Errorf("the alarms are %q", a)
	}
	if s := renew(t, i); !s.Expires.Equal(end.Add(-identity.Margin)) {
		t.Errorf("it ends %s, the authority %s", s.Expires, end)
	}
	wall = wall.Add(time.Second)
	_, err := i.Renew(t.Context(), alice, identity.Request{CSR: plain(t)})
	wantRefusal(t, err, refusal.Precondition)
}

func verifies(t *testing.T, s *identity.SVID, bundle []*x509.Certificate) error {
	t.Helper()
	_, _, err := x509svid.Verify(certificates(t, s.Cert), x509bundle.FromX509Authorities(spiffeid.RequireTrustDomainFromString(domain), bundle))
	return err
}

// TestRollover: prepared, active, old, gone, at two hosts, while SVIDs are renewed.
func TestRollover(t *testing.T) {
	st := memory(t)
	one := options(t, st)
	one.TTL, one.MinTTL = 3*time.Second, time.Second
	missing := map[string]string{}
	one.Lacks = func(_ store.ReadTx, id string) (hosts []string, _ error) {
		return slices.Sorted(maps.Keys(missing)), nil
	}
	a := open(t, one)
	two := one
	two.DataDir, two.HostID = t.TempDir(), "fedcba9876543210"
	copyFile(t, caFiles(t, one.DataDir)[0], filepath.Join(two.DataDir, "ca"))
	b := open(t, two)
	follow(t, a)
	follow(t, b)
	first := a.Bundle()[0]

	_, err := a.Activate(t.Context(), "local:dev")
	wantRefusal(t, err, refusal.Precondition)
	_, err = a.Retire(t.Context(), "local:dev")
	wantRefusal(t, err, refusal.Precondition)

	state, err := a.Prepare(t.Context(), "local:dev")
	fatal(t, err)
	if state.Active == "" || state.Prepared == "" || state.Active == state.Prepared || state.Old != "" {
		t.Fatalf("prepared: %+v", state)
	}
	_, err = b.Prepare(t.Context(), "local:dev")
	wantRefusal(t, err, refusal.Precondition)
	if files := caFiles(t, two.DataDir); len(files) != 1 {
		t.Errorf("a refused step left %v", files)
	}
	waitFor(t, "the other host's bundle", func() bool { return len(b.Bundle()) == 2 })
	before := renew(t, b)
	if leaf := issued(t, before); leaf.Issuer.String() != first.Subject.String() || len(certificates(t, before.Bundle)) != 2 {
		t.Errorf("while one is prepared, %s signs, and the bundle has %d", leaf.Issuer, len(certificates(t, before.Bundle)))
	}

	_, err = b.Activate(t.Context(), "local:dev") // it has not the key
	wantRefusal(t, err, refusal.Precondition)
	missing["fedcba9876543210"] = state.Prepared
	_, err = a.Activate(t.Context(), "local:dev")
	if e := wantRefusal(t, err, refusal.Precondition); !strings.Contains(e.Text, "fedcba9876543210") {
		t.Errorf("who lacks it is not told: %v", e)
	}
	delete(missing, "fedcba9876543210")
	copyFile(t, filepath.Join(one.DataDir, "ca", strings.TrimPrefix(state.Prepared, "sha256:")+".pem"), filepath.Join(two.DataDir, "ca"))
	if keys := b.Keys(); len(keys) != 2 {
		t.Errorf("a key that was copied is not seen: %v", keys)
	}
	prepared := state.Prepared
	state, err = a.Activate(t.Context(), "spiffe://example.org/admin/alice")
	fatal(t, err)
	if state.Active != prepared || state.Prepared != "" || state.Old == "" || state.OldUntil.Before(time.Now()) {
		t.Fatalf("activated: %+v", state)
	}
	var second *identity.SVID
	for n := range 100 { // also at the host that may not have heard of it yet
		s := renew(t, []*identity.Issuer{a, b}[n%2])
		if leaf := issued(t, s); leaf.Issuer.String() == first.Subject.String() {
			t.Fatal("the old authority signs")
		}
		for _, other := range []*identity.SVID{before, second} {
			if other != nil && time.Now().Before(other.Expires) {
				if err := verifies(t, other, certificates(t, s.Bundle)); err != nil && time.Now().Before(other.Expires) {
					t.Fatalf("rotation %d: a living SVID is not taken: %v", n, err)
				}
			}
		}
		second = s
	}
	_, err = a.Retire(t.Context(), "local:dev")
	if time.Now().Before(before.Expires) {
		wantRefusal(t, err, refusal.Precondition)
		if err := verifies(t, before, a.Bundle()); err != nil && time.Now().Before(before.Expires) {
			t.Errorf("the old authority's SVID is not taken any more: %v", err)
		}
	}
	oldFile := filepath.Join(one.DataDir, "ca", strings.TrimPrefix(state.Old, "sha256:")+".pem")
	waitFor(t, "the old authority to be retired", func() bool {
		state, err := b.Status(t.Context())
		fatal(t, err)
		if state.Old == "" {
			return true
		}
		_, err = a.Retire(t.Context(), "local:dev")
		if err == nil && time.Now().Before(before.Expires.Add(-200*time.Millisecond)) {
			t.Fatal("retired before its last SVID had expired")
		}
		return err == nil
	})
	waitFor(t, "both bundles", func() bool { return len(a.Bundle()) == 1 && len(b.Bundle()) == 1 })
	if _, err := os.Stat(oldFile); !os.IsNotExist(err) {
		t.Errorf("the key of a retired authority is still there: %v", err)
	}
	issued(t, renew(t, b))
	issued(t, renew(t, open(t, one))) // and after a restart
	if lines := entries(t, st, "ca.rollover"); len(lines) != 4 || !strings.Contains(lines[2], `"step":"activate"`) || !strings.Contains(lines[2], "admin/alice") {
		t.Errorf("entries: %s", strings.Join(lines, "\n"))
	}
}

// TestDrop: a prepared authority, whose key may be lost, can be taken back.
func TestDrop(t *testing.T) {
	st := memory(t)
	o := options(t, st)
	i := open(t, o)
	_, err := i.Drop(t.Context(), "local:dev")
	wantRefusal(t, err, refusal.Precondition)
	for _, lost := range []bool{false, true} {
		state, err := i.Prepare(t.Context(), "local:dev")
		fatal(t, err)
		file := filepath.Join(o.DataDir, "ca", strings.TrimPrefix(state.Prepared, "sha256:")+".pem")
		if lost {
			fatal(t, os.Remove(file))
			i = open(t, o) // it knows the key no more
			_, err = i.Activate(t.Context(), "local:dev")
			if e := wantRefusal(t, err, refusal.Precondition); !strings.Contains(e.Text, "drop") {
				t.Errorf("what helps is not told: %v", e)
			}
		}
		state, err = i.Drop(t.Context(), "spiffe://example.org/admin/alice")
		fatal(t, err)
		if state.Prepared != "" || len(i.Bundle()) != 1 {
			t.Errorf("dropped: %+v, %d in the bundle", state, len(i.Bundle()))
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("the key of a dropped authority is still there: %v", err)
		}
		issued(t, renew(t, i))
	}
	_, err = i.Prepare(t.Context(), "local:dev")
	fatal(t, err)
	_, err = i.Activate(t.Context(), "local:dev")
	fatal(t, err)
	_, err = i.Drop(t.Context(), "local:dev") // neither the active one nor the old one
	wantRefusal(t, err, refusal.Precondition)
	if lines := entries(t, st, "ca.rollover"); len(lines) != 7 || !strings.Contains(lines[2], `"step":"drop"`) || !strings.Contains(lines[2], "admin/alice") {
		t.Errorf("entries: %s", strings.Join(lines, "\n"))
	}
}

// TestReplace: whose key is lost, or which has ended, an authority gives way to another.
func TestReplace(t *testing.T) {
	st := memory(t)
	o := options(t, st)
	i := open(t, o)
	before := renew(t, i)
	prepared, err := i.Prepare(t.Context(), "local:dev")
	fatal(t, err)
	for _, file := range caFiles(t, o.DataDir) {
		fatal(t, os.Remove(file))
	}
	_, err = identity.Open(t.Context(), o)
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "--new-authority") {
		t.Fatalf("without its key: %v", err)
	}

	o.ReplacedBy = "local:init"
	i = open(t, o)
	state, err := i.Status(t.Context())
	fatal(t, err)
	if state.Active == prepared.Active || state.Prepared != "" || state.Old != prepared.Active || !state.OldUntil.After(time.Now()) {
		t.Errorf("before %+v, after %+v", prepared, state)
	}
	if err := verifies(t, before, i.Bundle()); err != nil {
		t.Errorf("an SVID of the one before: %v", err)
	}
	o.ReplacedBy = ""
	i = open(t, o) // the key is where the next start looks
	issued(t, renew(t, i))
	_, err = i.Retire(t.Context(), "local:dev")
	wantRefusal(t, err, refusal.Precondition)

	// Ten years on: nothing can be signed, and so nothing be asked of the host.
	o.Wall = func() time.Time { return i.Bundle()[0].NotAfter.Add(time.Hour) }
	ended := open(t, o)
	_, err = ended.Renew(t.Context(), alice, identity.Request{CSR: plain(t)})
	wantRefusal(t, err, refusal.Precondition)
	o.ReplacedBy = "local:init"
	renew(t, open(t, o))

	// One that is given has to be another.
	state, err = i.Status(t.Context())
	fatal(t, err)
	name := filepath.Join(o.DataDir, "ca", strings.TrimPrefix(state.Active, "sha256:")+".pem")
	o.Given, err = identity.LoadCA(domain, name, name)
	fatal(t, err)
	if _, err := identity.Open(t.Context(), o); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "identity.ca_cert") {
		t.Errorf("the active one is given again: %v", err)
	}
	if lines := entries(t, st, "ca.rollover"); len(lines) != 4 || !strings.Contains(lines[3], `"step":"replace"`) || !strings.Contains(lines[3], "local:init") {
		t.Errorf("entries: %s", strings.Join(lines, "\n"))
	}
}
