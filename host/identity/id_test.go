package identity_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/dodona-project/dodona/host/identity"
)

func contains(text []byte, part string) bool { return bytes.Contains(text, []byte(part)) }

func TestIDs(t *testing.T) {
	for text, want := range map[string]identity.ID{
		"spiffe://example.org/svc/checkout":        {TrustDomain: "example.org", Kind: identity.Service, Name: "checkout"},
		"spiffe://example.org/prod/worker/w-1":     {TrustDomain: "example.org", Kind: identity.Worker, Environment: "prod", Name: "w-1"},
		"spiffe://example.org/eu.1/checker/C_2":    {TrustDomain: "example.org", Kind: identity.Checker, Environment: "eu.1", Name: "C_2"},
		"spiffe://a/admin/Alice":                   {TrustDomain: "a", Kind: identity.Admin, Name: "Alice"},
		"spiffe://a_b-c.d/host/0123456789abcdef":   {TrustDomain: "a_b-c.d", Kind: identity.Host, Name: "0123456789abcdef"},
		"spiffe://example.org/admin/...":           {TrustDomain: "example.org", Kind: identity.Admin, Name: "..."},
		"spiffe://example.org/worker/worker/admin": {TrustDomain: "example.org", Kind: identity.Worker, Environment: "worker", Name: "admin"},
	} {
		got, err := identity.ParseID(text)
		if err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
			continue
		}
		if got.String() != text {
			t.Errorf("%s comes back as %s", text, got)
		}
		if _, err := spiffeid.FromString(text); err != nil {
			t.Errorf("%s is no SPIFFE ID to others: %v", text, err)
		}
	}
	long := strings.Repeat("a", identity.MaxIDLen)
	for _, text := range []string{
		"", "spiffe://", "spiffe://example.org", "spiffe://example.org/", "spiffe:///svc/a", "SPIFFE://example.org/svc/a", "https://example.org/svc/a",
		"spiffe://Example.org/svc/a", "spiffe://example.org:1/svc/a", "spiffe://u@example.org/svc/a",
		"spiffe://example.org/svc/", "spiffe://example.org/svc/a/", "spiffe://example.org//svc/a", "spiffe://example.org/svc//a",
		"spiffe://example.org/svc/A", "spiffe://example.org/svc/a_b", "spiffe://example.org/svc/a/b", "spiffe://example.org/Svc/a",
		"spiffe://example.org/admin/../host/a", "spiffe://example.org/admin/..", "spiffe://example.org/admin/.", "spiffe://example.org/../worker/a",
		"spiffe://example.org/admin/a%2Fb", "spiffe://example.org/admin/a%2e", "spiffe://example.org/admin/a b", "spiffe://example.org/admin/é",
		"spiffe://example.org/admin/a?x=1", "spiffe://example.org/admin/a#x", "spiffe://example.org/admin/a\x00", "spiffe://example.org/admin/a\n",
		"spiffe://example.org/prod/svc/a", "spiffe://example.org/worker/a", "spiffe://example.org/prod/worker/a/b", "spiffe://example.org/nobody/a",
		"spiffe://example.org/admin/" + long,
	} {
		if got, err := identity.ParseID(text); err == nil {
			t.Errorf("%q is taken as %+v", text, got)
		} else if len(err.Error()) > 400 {
			t.Errorf("the error of a bad ID has %d bytes", len(err.Error()))
		}
	}
	exact := "spiffe://example.org/admin/" + long[:identity.MaxIDLen-len("spiffe://example.org/admin/")]
	if _, err := identity.ParseID(exact); err != nil {
		t.Errorf("an ID of %d bytes: %v", len(exact), err)
	}
	if _, err := identity.ParsePath("example.org", strings.TrimPrefix(exact, "spiffe://example.org/")+"a"); err == nil {
		t.Error("a path is taken that is too long with its trust domain")
	}
}

// FuzzID: what is taken comes back byte for byte, and is a SPIFFE ID to go-spiffe.
func FuzzID(f *testing.F) {
	for _, s := range []string{"spiffe://example.org/svc/a", "spiffe://a/b/worker/c", "spiffe://a/admin/..", "spiffe://a/host/%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := identity.ParseID(text)
		if err != nil {
			return
		}
		if id.String() != text {
			t.Fatalf("%q comes back as %q", text, id)
		}
		if other, err := spiffeid.FromString(text); err != nil || other.String() != text {
			t.Fatalf("%q is %s, %v to go-spiffe", text, other, err)
		}
	})
}
