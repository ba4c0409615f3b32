package proxylist

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// show spells an entry with its credentials, for comparison.
func show(e Entry) string {
	if e.Credential.IsZero() {
		return e.String()
	}
	return fmt.Sprintf("%s %q %q", e, e.Credential.Username(), e.Credential.Password())
}

func TestSpellings(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"h.example:8080", "h.example:8080"},
		{"H.Example:8080", "h.example:8080"},
		{"192.0.2.1:80", "192.0.2.1:80"},
		{"http://h:80", "http://h:80"},
		{"http://h:80/", "http://h:80"},
		{"HTTPS://h:443", "https://h:443"},
		{"socks5://h:1", "socks5://h:1"},
		{"socks5h://h:65535", "socks5://h:65535"},
		{"[2001:db8::1]:1080", "[2001:db8::1]:1080"},
		{"[2001:DB8:0::0:1]:1080", "[2001:db8::1]:1080"},
		{"[::ffff:192.0.2.1]:80", "192.0.2.1:80"},
		{"h.example.:080", "h.example:80"},
		{"u:p@h:80", `h:80 "u" "p"`},
		{"u:p@[2001:db8::1]:80", `[2001:db8::1]:80 "u" "p"`},
		{"http://u:p@h:80/", `http://h:80 "u" "p"`},
		{"u:@h:80", `h:80 "u" ""`},
		{"u@h:80", `h:80 "u" ""`},
		{"u%40x:p%3Ap%2525@h:80", `h:80 "u@x" "p:p%25"`}, // decoded once
		{"u:p@ss@h:80", `h:80 "u" "p@ss"`},
		{"u:p:q@h:80", `h:80 "u" "p:q"`},
		{"u+v:p+q@h:80", `h:80 "u+v" "p+q"`},
		{"h:80:u:p", `h:80 "u" "p"`},
		{"h:80:u:p:q", `h:80 "u" "p:q"`},
		{"h:80:u:p%41", `h:80 "u" "p%41"`}, // as it stands
		{"h:80:u:p@ss", `h:80 "u" "p@ss"`},
		{"h:80:u:p#q", `h:80 "u" "p#q"`},
		{"h:80:h:80", `h:80 "h" "80"`},
		{"h:80:u:", `h:80 "u" ""`},
		{"h:80:u:a://b", `h:80 "u" "a://b"`},
		{"socks5://h:80:u:p/", `socks5://h:80 "u" "p/"`},
		{"[2001:db8::1]:80:u:p", `[2001:db8::1]:80 "u" "p"`},
	} {
		e, err := ParseLine(c.line, true)
		if err != nil || show(e) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.line, show(e), err, c.want)
		}
	}
}

func TestBadLines(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, c := range []struct{ line, says string }{
		{"", "has no port"},
		{"h", "has no port"},
		{"h:", "has no port"},
		{"h:0", "port from 1 to 65535"},
		{"h:65536", "port from 1 to 65535"},
		{"h:99999999999999999999", "port from 1 to 65535"},
		{"h:+80", "port from 1 to 65535"},
		{"h:http", "port from 1 to 65535"},
		{":80", "has no host"},
		{"2001:db8::1", "port from 1 to 65535"},
		{"2001:db8::1:80", "port from 1 to 65535"},
		{"[2001:db8::1]", "has no port"},
		{"[2001:db8::1%eth0]:80", "zone"},
		{"[192.0.2.1]:80", "brackets"},
		{"[h]:80", "brackets"},
		{"[::1:80", "no ]"},
		{"127.1:80", "IPv4"},
		{"0177.0.0.1:80", "IPv4"},
		{"2130706433:80", "IPv4"},
		{"99999999999999999999999:80", "IPv4"},
		{"0x7f000001:80", "IPv4"},
		{"0x7f.0.0.0x1:80", "IPv4"},
		{"256.0.0.1:80", "IPv4"},
		{"h..x:80", "empty label"},
		{"hé:80", "ASCII"},
		{"h/x:80", "letters"},
		{long + ":80", "63 bytes"},
		{strings.Repeat("a.", 127) + "a:80", "255 bytes"},
		{"ftp://h:80", "scheme"},
		{"socks4://h:80", "scheme"},
		{"://h:80", "scheme"},
		{"http://h:80/path", "port from 1 to 65535"},
		{"http://h:80?x", "port from 1 to 65535"},
		{"h :80", "blank"},
		{"h:80 u p", "blank"},
		{"h:80\x00", "control"},
		{"h:80\xff", "UTF-8"},
		{":p@h:80", "empty username"},
		{"@h:80", "empty username"},
		{"h:80::p", "empty username"},
		{"u%zz:p@h:80", "%XX"},
		{"u:p%@h:80", "%XX"},
		{"u%0a:p@h:80", "control"},
		{"u:p%00@h:80", "control"},
		{"u:p%ff@h:80", "UTF-8"},
		{"u:" + strings.Repeat("p", 256) + "@h:80", "256 bytes"},
		{strings.Repeat("u", 256) + ":p@h:80", "256 bytes"},
		{strings.Repeat("x", MaxLine+1), "at most"},
	} {
		e, err := ParseLine(c.line, true)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v; want an error with %q", c.line, show(e), err, c.says)
		}
	}
	if _, err := ParseLine("u:"+strings.Repeat("p", 255)+"@h:80", true); err != nil {
		t.Errorf("255 bytes of password: %v", err)
	}
}

func TestCredentialsOnlyInline(t *testing.T) {
	for _, line := range []string{"u:p@h:80", "h:80:u:p", "socks5://u:p@h:80", "u@h:80"} {
		_, rejected := Parse("h:1\n"+line, Options{})
		if len(rejected) != 1 || rejected[0].String() != "line 2: has credentials: use secretRef" {
			t.Errorf("%s: %v", line, rejected)
		}
	}
}

func TestList(t *testing.T) {
	list := "\ufeff# vendors of May\r\n\r\nh:1\r\n  h:2\t# the second\n\t#h:3\nbad\nsocks5://u:p@h:4 \nh:1\nhttp://h:1\nu:p@h:1\nv:p@h:1\nsocks5://u:@h:5\nu:#x@h:6\n127.0.0.1:7\n169.254.0.1:8\n224.0.0.1:9\n"
	entries, rejected := Parse(list, Options{
		Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Inline: true,
		Allow: []target.Class{target.LinkLocal},
	})
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprint(e.Line, " ", show(e)))
	}
	want := []string{
		"3 http://h:1", "4 http://h:2", `7 socks5://h:4 "u" "p"`, `10 http://h:1 "u" "p"`, `11 http://h:1 "v" "p"`, `13 http://h:6 "u" "#x"`,
		"15 http://169.254.0.1:8",
	}
	if !slices.Equal(got, want) {
		t.Errorf("entries are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var reasons []string
	for _, r := range rejected {
		reasons = append(reasons, r.String())
	}
	want = []string{
		"line 6: has no port (allowed: " + spellings + ")",
		"line 8: is the proxy of line 3 again",
		"line 9: is the proxy of line 3 again",
		"line 12: has an empty password (allowed: with SOCKS5, 1 to 255 bytes)",
		"line 14: is at 127.0.0.1, which is loopback (allowed: with loopback in the upstream's allowAddresses)",
		"line 16: is at 224.0.0.1, which is multicast (allowed: addresses of one machine)",
	}
	if !slices.Equal(reasons, want) {
		t.Errorf("rejected are\n%s\nwant\n%s", strings.Join(reasons, "\n"), strings.Join(want, "\n"))
	}
}

func TestTooManyLines(t *testing.T) {
	list := strings.Repeat("#\n", MaxLines-1) + "h:1\n"
	if entries, rejected := Parse(list, Options{}); len(entries) != 1 || len(rejected) != 0 {
		t.Errorf("%d lines: %v, %v", MaxLines, entries, rejected)
	}
	entries, rejected := Parse(list+"h:2\nh:3\n", Options{})
	if len(entries) != 1 || len(rejected) != 1 || rejected[0].Line != MaxLines+1 {
		t.Errorf("%d lines: %v, %v", MaxLines+2, entries, rejected)
	}
}

// FuzzParse: no list makes the parser fail; what it reads, spelled again, is read
// as the same; and no reason holds the list's text.
func FuzzParse(f *testing.F) {
	f.Add("u:p@h:80\nh:80:u:p\n[::1]:80\n# c\n\r\nsocks5://u%41:p@h:1", true)
	f.Add("\ufeffbad\nh:1:u:p@x:2", false)
	f.Add("marker7marker:marker7marker", true)
	f.Fuzz(func(t *testing.T, list string, inline bool) {
		entries, rejected := Parse(list, Options{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Inline: inline, Allow: []target.Class{target.Loopback}})
		lines := 1 + strings.Count(list, "\n")
		if len(entries)+len(rejected) > lines {
			t.Fatalf("%d lines made %d entries and %d rejected", lines, len(entries), len(rejected))
		}
		for _, e := range entries {
			if e.Line < 1 || e.Line > lines || e.Port == 0 || e.Host == "" || !inline && !e.Credential.IsZero() {
				t.Fatalf("read %+v", e)
			}
			again, err := ParseLine(e.String(), false)
			if again.Line = e.Line; err != nil || again.String() != e.String() {
				t.Fatalf("%s, read again: %s, %v", e, again, err)
			}
		}
		for _, r := range rejected {
			if r.Line < 1 || r.Line > lines || r.Reason == "" || len(r.Reason) > 400 {
				t.Fatalf("rejected %+v", r)
			}
			for _, word := range strings.FieldsFunc(strings.Split(list, "\n")[r.Line-1], func(r rune) bool { return strings.ContainsRune(":@/ ", r) }) {
				if _, err := netip.ParseAddr(word); err == nil {
					continue // which a reason may have
				}
				if len(word) > 12 && strings.Contains(r.Reason, word) {
					t.Fatalf("the reason %q has %q of the list", r.Reason, word)
				}
			}
		}
	})
}
