package name_test

import (
	"strings"
	"testing"

	"github.com/dodona-project/dodona/sdk/internal/name"
)

func TestNames(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	for _, c := range []struct {
		s                 string
		service, name, id bool
	}{
		{"", false, false, false},
		{"a", true, true, true},
		{"checkout-2", true, true, true},
		{"Checkout", false, true, true},
		{"-a", false, false, false},
		{"a-", false, true, true},
		{".a", false, false, false},
		{"a.b_c", false, true, true},
		{"a:1", false, false, true},
		{":1", false, false, false},
		{"a b", false, false, false},
		{"ä", false, false, false},
		{"a\x00", false, false, false},
		{"a/b", false, false, false},
		{long(63), true, true, true},
		{long(64), false, true, true},
		{long(128), false, true, true},
		{long(129), false, false, false},
	} {
		if got := name.Service(c.s) == nil; got != c.service {
			t.Errorf("Service(%.20q) allows: %v", c.s, got)
		}
		if got := name.Name(c.s) == nil; got != c.name {
			t.Errorf("Name(%.20q) allows: %v", c.s, got)
		}
		if got := name.ID(c.s) == nil; got != c.id {
			t.Errorf("ID(%.20q) allows: %v", c.s, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	for s, want := range map[string]bool{
		"a:1": true, "a:65535": true, "[::1]:80": true, "10.0.0.1:7600": true,
		"": false, "a": false, ":1": false, "a:": false, "a:0": false, "a:65536": false, "a:-1": false, "a:http": false, "::1:80": false, "http://a": false,
	} {
		if err := name.Address(s); (err == nil) != want {
			t.Errorf("Address(%q): %v", s, err)
		}
	}
}
