package limits_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dodona-project/dodona/host/limits"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tc := range []struct {
		name  string
		check func(string) error
		good  []string
		bad   []string
	}{
		{"Service", limits.Service,
			[]string{"a", "0", "web", "a-b", "a--b", long[:63]},
			[]string{"", "-a", "a-", "A", "a.b", "a_b", "a b", "é", "a\x00", long[:64], "../x", "a%2fb"}},
		{"Name", limits.Name,
			[]string{"v1", "V1", "eu-west_1.a", long[:128]},
			[]string{"", ".a", "-a", "_a", "a:b", "a/b", "a b", "\u202ea", long[:129]}},
		{"ID", limits.ID,
			[]string{"a", "10.0.0.1:80", long[:128]},
			[]string{"", ":a", "a/b", long[:129]}},
		{"OptionalName", limits.OptionalName, []string{"", "a"}, []string{" ", "a b"}},
		{"Address", limits.Address,
			[]string{"a:1", "10.0.0.1:65535", "[::1]:80", "web-1.internal:8080", long[:253] + ":1"},
			[]string{"", "a", ":80", "a:0", "a:65536", "a:-1", "a:+1", "a:080", "http://a:80", "a b:80", "a\x00:80", long[:254] + ":1", "-a:80", "::1:80"}},
	} {
		for _, s := range tc.good {
			if err := tc.check(s); err != nil {
				t.Errorf("%s(%.20q): %v", tc.name, s, err)
			}
		}
		for _, s := range tc.bad {
			err := tc.check(s)
			if err == nil {
				t.Errorf("%s(%.20q) passes", tc.name, s)
				continue
			}
			if len(err.Error()) > 512 || !utf8.ValidString(err.Error()) || len(s) > 64 && strings.Contains(err.Error(), s[:65]) {
				t.Errorf("%s(%.20q) answers %q: it echoes too much", tc.name, s, err)
			}
		}
	}
}

func TestText(t *testing.T) {
	for s, ok := range map[string]bool{
		"": true, "plain": true, "有": true, strings.Repeat("x", 10): true,
		strings.Repeat("x", 11): false, "a\nb": false, "a\x00": false, "a\x7f": false, "\xff": false,
	} {
		if err := limits.Text(s, 10); (err == nil) != ok {
			t.Errorf("Text(%q): %v", s, err)
		}
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("plain")
	f.Add("\xff\x00\u202e" + strings.Repeat("é", 40))
	f.Fuzz(func(t *testing.T, s string) {
		q := limits.Quote(s)
		if !utf8.ValidString(q) || strings.ContainsAny(q, "\n\r\x00\x1b") {
			t.Errorf("Quote(%q) = %q", s, q)
		}
		if len(s) > 64 && len(q) > 64*4+8 {
			t.Errorf("Quote of %d bytes has %d", len(s), len(q))
		}
	})
}
