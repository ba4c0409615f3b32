package target_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253 bytes
	label := strings.Repeat("b", 63)
	for text, want := range map[string]string{
		"shop.example:443":          "shop.example:443",
		"Shop.EXAMPLE:443":          "shop.example:443",
		"shop.example.:443":         "shop.example:443",
		"shop.example":              "shop.example:80",
		"shop.example:":             "shop.example:80",
		"shop.example:0443":         "shop.example:443",
		"shop.example:65535":        "shop.example:65535",
		"_srv.under_score.example":  "_srv.under_score.example:80",
		"192.0.2.1:8080":            "192.0.2.1:8080",
		"127.0.0.1.":                "127.0.0.1:80",
		"[2001:DB8::1]:443":         "[2001:db8::1]:443",
		"[2001:db8:0:0::1]":         "[2001:db8::1]:80",
		"[::ffff:127.0.0.1]:80":     "[::ffff:127.0.0.1]:80",
		"[::]:1":                    "[::]:1",
		"1.2.3.4.example":           "1.2.3.4.example:80",
		"1e100.net":                 "1e100.net:80",
		"0x7f.example":              "0x7f.example:80",
		"fe80--1.example":           "fe80--1.example:80",
		"xn--bcher-kva.example:443": "xn--bcher-kva.example:443",
		long:                        long + ":80",
		label + ".example":          label + ".example:80",
	} {
		got, err := target.Parse(text, 80)
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", ":443", "..", "a..b", ".a", "a..", "shop.example:0", "shop.example:65536", "shop.example:+80", "shop.example:-1", "shop.example: 80",
		"shop.example:80:80", "shop.example:http", "shop.example:000443", "::1", "::1:80", "fe80::1", "[::1", "[::1]80", "[::1]x", "[]:80", "[::1]:0", "[127.0.0.1]:80", "[shop.example]:80", "[v1.x]:80",
		"[fe80::1%eth0]:80", "[fe80::1%25eth0]:80", "[::1%]:80", "127.0.0.1%lo:80",
		// An IPv4 address in spellings that programs read differently.
		"127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0X7F.1", "0177.0.0.1", "017700000001", "127.0.0.01", "127.0.0.0x1", "0", "0.0", "0x", "1.2.3.0x",
		"256.0.0.1", "1.2.3.4.5", "300.1", "4294967295", "4294967296", "99999999999999999999", "127.0.0.1..", "shop.example.1", "shop.0x7f",
		"127。0。0。1", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "bücher.example", "loc\u00adalhost", "a b", "a\x00b", "a\nb", "a\r\nHost: b", "a/b", "a@b", "u:p@a", "a?b", "a#b", "%31%32%37.0.0.1", "a%00", "\\a", "a,b", "'a", "a;b",
		long + "a", label + "b.example",
	} {
		got, err := target.Parse(text, 80)
		var malformed *target.Malformed
		if !errors.As(err, &malformed) || got != (target.Target{}) {
			t.Errorf("%q: %v, %v, want it refused", text, got, err)
		}
		if err != nil && len(err.Error()) > 512 {
			t.Errorf("%q: an error of %d bytes", text, len(err.Error()))
		}
	}
	if got, err := target.Parse("shop.example", 0); err == nil {
		t.Errorf("no port and no default port: %v", got)
	}
}

func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{"::1": "::1", "Shop.Example.": "shop.example", "192.0.2.1": "192.0.2.1"} {
		if got, err := target.ParseHost(text); err != nil || got.Host() != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "fe80::1%eth0", "[::1]", "127.1", "a:b", "a:80"} {
		if got, err := target.ParseHost(text); err == nil {
			t.Errorf("%q: %v, want it refused", text, got)
		}
	}
}

func TestClassOf(t *testing.T) {
	for text, want := range map[string]target.Class{
		"8.8.8.8": target.Public, "2606:4700::1111": target.Public, "203.0.113.7": target.Public, "172.15.255.255": target.Public, "172.32.0.0": target.Public,
		"100.63.255.255": target.Public, "100.128.0.0": target.Public, "9.255.255.255": target.Public, "11.0.0.0": target.Public, "223.255.255.255": target.Public,

		"127.0.0.1": target.Loopback, "127.255.255.254": target.Loopback, "0.0.0.0": target.Loopback, "0.255.255.255": target.Loopback, "::1": target.Loopback, "::": target.Loopback,
		"::ffff:127.0.0.1": target.Loopback, "::ffff:7f00:1": target.Loopback, "::127.0.0.1": target.Loopback, "::ffff:0:127.0.0.1": target.Loopback,
		"64:ff9b::7f00:1": target.Loopback, "64:ff9b:1::7f00:1": target.Loopback, "2002:7f00:1::": target.Loopback, "2002:7f00:0001:ffff::1": target.Loopback,
		"2001:0:1:2:3:4:80ff:fffe": target.Loopback, "2001:db8::5efe:7f00:1": target.Loopback, "2001:db8::200:5efe:7f00:1": target.Loopback,

		"10.0.0.1": target.Private, "172.16.0.1": target.Private, "172.31.255.255": target.Private, "192.168.0.1": target.Private, "fc00::1": target.Private, "fdff::1": target.Private,
		"::ffff:10.0.0.1": target.Private, "64:ff9b::a00:1": target.Private, "2002:a00:1::1": target.Private, "2001:0:1:2:3:4:f5ff:fffe": target.Private,

		"169.254.0.1": target.LinkLocal, "fe80::1": target.LinkLocal, "febf::1": target.LinkLocal, "fe80::1%eth0": target.LinkLocal, "fec0::1": target.LinkLocal, "::ffff:169.254.0.1": target.LinkLocal,

		"100.64.0.1": target.Shared, "100.127.255.255": target.Shared, "::ffff:100.64.0.1": target.Shared, "2002:6440:1::": target.Shared,

		"169.254.169.254": target.Metadata, "fd00:ec2::254": target.Metadata, "fd00:ec2::254%x": target.Metadata, "100.100.100.200": target.Metadata,
		"::ffff:169.254.169.254": target.Metadata, "64:ff9b::a9fe:a9fe": target.Metadata, "2002:a9fe:a9fe::": target.Metadata, "168.63.129.16": target.Metadata, "192.0.0.192": target.Metadata,

		"224.0.0.1": target.Multicast, "239.255.255.255": target.Multicast, "ff02::1": target.Multicast, "ff0e::1": target.Multicast, "::ffff:224.0.0.1": target.Multicast,
		"240.0.0.1": target.Reserved, "255.255.255.255": target.Reserved,

		"::ffff:8.8.8.8": target.Translated, "64:ff9b::808:808": target.Translated, "2002:808:808::1": target.Translated, "2001:0:1:2:3:4:f7f7:f7f7": target.Translated, "::8.8.8.8": target.Translated,
	} {
		if got := target.ClassOf(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
	if target.ClassOf(netip.Addr{}) != target.Reserved {
		t.Error("no address is the address of something")
	}
}

func TestCheckProxy(t *testing.T) {
	for text, want := range map[string]bool{
		"192.0.2.7": true, "10.1.2.3": true, "proxy.example": true, "fd00::1": true, "100.64.0.1": true,
		"127.0.0.1": false, "localhost": false, "a.localhost": false, "0.0.0.0": false, "::1": false, "169.254.169.254": false, "169.254.0.1": false,
		"::ffff:127.0.0.1": false, "2002:7f00:1::": false, "metadata.google.internal": false, "224.0.0.1": false, "255.255.255.255": false,
	} {
		to, err := target.ParseHost(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := target.CheckProxy(to) == nil; got != want {
			t.Errorf("%s: taken %v, want %v", text, got, want)
		}
		if err := target.CheckProxy(to, target.Loopback, target.LinkLocal, target.Metadata, target.Multicast, target.Reserved); err != nil {
			t.Errorf("%s with everything allowed: %v", text, err)
		}
	}
}

// What comes out is canonical: reading it again gives the same, and no text makes two
// targets out of one spelling.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"shop.example:443", "[::1]:80", "127.1", "0x7f000001:80", "a..b", "[fe80::1%25eth0]:1", "[::ffff:1.2.3.4]:5", "LOCALHOST.:80", "①.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := target.Parse(s, 80)
		if err != nil {
			if got != (target.Target{}) {
				t.Fatalf("%q is refused and still %v", s, got)
			}
			return
		}
		if got.Port == 0 || (got.Name == "") != got.Addr.IsValid() || got.Addr.Zone() != "" {
			t.Fatalf("%q is %+v", s, got)
		}
		again, err := target.Parse(got.String(), 0)
		if err != nil || again != got {
			t.Fatalf("%q is %v, which reads as %v, %v", s, got, again, err)
		}
		if got.Name != "" {
			if a, err := netip.ParseAddr(got.Name); err == nil {
				t.Fatalf("%q is the name %q, which is the address %v", s, got.Name, a)
			}
			last := got.Name[strings.LastIndexByte(got.Name, '.')+1:]
			if strings.Trim(last, "0123456789") == "" {
				t.Fatalf("%q is the name %q, which C reads as an address", s, got.Name)
			}
		}
	})
}
