package reach_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClass(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "", "192.168.1.1": "", "172.16.0.1": "", "203.0.113.7": "", "100.64.0.1": "", "2001:db8::1": "", "fd00::1": "",

		"127.0.0.1": reach.Loopback, "127.255.255.254": reach.Loopback, "::1": reach.Loopback, "0.0.0.0": reach.Loopback,
		"0.1.2.3": reach.Loopback, "::": reach.Loopback, "::ffff:127.0.0.1": reach.Loopback, "::127.0.0.1": reach.Loopback,
		"64:ff9b::7f00:1": reach.Loopback, "64:ff9b:1::7f00:1": reach.Loopback, "2002:7f00:1::": reach.Loopback,
		"2001:0:1:2:3:4:80ff:fffe": reach.Loopback, "2001:db8::5efe:7f00:1": reach.Loopback, "2001:db8::200:5efe:7f00:1": reach.Loopback,
		"::ffff:0.0.0.0": reach.Loopback,

		"169.254.1.1": reach.LinkLocal, "fe80::1": reach.LinkLocal, "fe80::1%eth0": reach.LinkLocal, "fec0::1": reach.LinkLocal,
		"::ffff:169.254.1.1": reach.LinkLocal, "64:ff9b::a9fe:101": reach.LinkLocal, "2002:a9fe:101::1": reach.LinkLocal,

		"169.254.169.254": reach.Metadata, "::ffff:169.254.169.254": reach.Metadata, "64:ff9b::a9fe:a9fe": reach.Metadata,
		"2002:a9fe:a9fe::": reach.Metadata, "169.254.170.2": reach.Metadata, "fd00:ec2::254": reach.Metadata, "fd00:ec2::254%x": reach.Metadata,
		"100.100.100.200": reach.Metadata, "168.63.129.16": reach.Metadata, "192.0.0.192": reach.Metadata,

		"224.0.0.1": "multicast or reserved", "ff02::1": "multicast or reserved", "255.255.255.255": "multicast or reserved", "240.0.0.1": "multicast or reserved",
	} {
		if got := reach.Class(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if reach.Class(netip.Addr{}) == "" {
		t.Error("no address may be reached")
	}
}

// names is a resolver that answers what the test says, call by call.
type names struct {
	answers [][]string // of the calls; the last one stays
	calls   int
}

func (n *names) LookupNetIP(context.Context, string, string) (all []netip.Addr, _ error) {
	i := min(n.calls, len(n.answers)-1)
	n.calls++
	for _, a := range n.answers[i] {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

func listen(t *testing.T) (address, port string) {
	t.Helper()
	address, _ = talk.Serve(t, func(net.Conn) {})
	_, port, _ = net.SplitHostPort(address)
	return address, port
}

func dial(t *testing.T, d reach.Dialer, address string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := d.Dial(ctx, address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// What is refused is refused before a packet leaves, by the address and by a name
// that leads there; what the configuration or the environment allows is reached.
func TestRefused(t *testing.T) {
	address, port := listen(t)
	for _, tc := range []struct {
		name    string
		address string
		answers []string
		allow   []string
		env     string
		refused bool
	}{
		{"loopback", address, nil, nil, "", true},
		{"loopback, allowed", address, nil, []string{reach.Loopback}, "", false},
		{"loopback, allowed by the environment", address, nil, nil, "link-local, loopback", false},
		{"another class allowed", address, nil, []string{reach.LinkLocal, reach.Metadata}, "", true},
		{"localhost", "localhost:" + port, nil, nil, "", true},
		{"mapped", "[::ffff:127.0.0.1]:" + port, nil, nil, "", true},
		{"mapped, allowed", "[::ffff:127.0.0.1]:" + port, nil, []string{reach.Loopback}, "", false},
		{"unspecified", "0.0.0.0:" + port, nil, nil, "", true},
		{"link-local", "169.254.1.1:80", nil, nil, "loopback", true},
		{"link-local with a zone", "[fe80::1%lo]:80", nil, nil, "loopback", true},
		{"metadata", "169.254.169.254:80", nil, nil, "loopback,link-local", true},
		{"multicast, whatever is allowed", "224.0.0.1:80", nil, []string{reach.Loopback, reach.LinkLocal, reach.Metadata}, "", true},
		{"a name of loopback", "shop.example:" + port, []string{"127.0.0.1"}, nil, "", true},
		{"a name of loopback, allowed", "shop.example:" + port, []string{"127.0.0.1"}, []string{reach.Loopback}, "", false},
		{"a name of metadata", "shop.example:80", []string{"169.254.169.254"}, nil, "loopback", true},
		{"one of many addresses", "shop.example:80", []string{"192.0.2.1", "192.0.2.2", "::1"}, nil, "", true},
		{"one after the tenth", "shop.example:80", append(many(12), "127.0.0.1"), nil, "", true},
		{"an address in other words", "127.1:80", []string{"127.0.0.1"}, nil, "", true},
		{"a unix path", "unix:/run/docker.sock", nil, []string{reach.Loopback}, "", true},
		{"a path", "/run/docker.sock", nil, []string{reach.Loopback}, "", true},
		{"no port", "127.0.0.1", nil, []string{reach.Loopback}, "", true},
		{"port 0", "127.0.0.1:0", nil, []string{reach.Loopback}, "", true},
		{"port 65536", "127.0.0.1:65536", nil, []string{reach.Loopback}, "", true},
		{"a named port", "127.0.0.1:http", nil, []string{reach.Loopback}, "", true},
		{"no host", ":" + port, nil, []string{reach.Loopback}, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(reach.Variable, tc.env)
			d := reach.Dialer{Policy: reach.Allowing(tc.allow)}
			if tc.answers != nil {
				d.Resolver = &names{answers: [][]string{tc.answers}}
			}
			err := dial(t, d, tc.address, 10*time.Second)
			var refused *reach.Refusal
			if errors.As(err, &refused) != tc.refused || !tc.refused && err != nil {
				t.Errorf("%v, refused is wanted: %v", err, tc.refused)
			}
			if !tc.refused {
				return
			}
			if r := reach.Failed(t.Context(), err); r.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE || r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_POLICY || len(r.Detail) > 600 {
				t.Errorf("a refusal comes to %v", r)
			}
		})
	}
}

func many(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("192.0.2.%d", i+1))
	}
	return all
}

// Each connection looks the name up again: one that moved to loopback meanwhile is
// refused.
func TestNameMoves(t *testing.T) {
	_, port := listen(t)
	r := &names{answers: [][]string{{"192.0.2.1"}, {"127.0.0.1"}}}
	d := reach.Dialer{Resolver: r}
	var refused *reach.Refusal
	if err := dial(t, d, "shop.example:"+port, 300*time.Millisecond); err == nil || errors.As(err, &refused) {
		t.Fatalf("192.0.2.1: %v", err)
	}
	if err := dial(t, d, "shop.example:"+port, 5*time.Second); !errors.As(err, &refused) {
		t.Errorf("after it moved: %v", err)
	}
}

// Of a name with a thousand addresses ten are tried, within the time.
func TestManyAddresses(t *testing.T) {
	_, port := listen(t)
	thousand := make([]string, 0, 1000)
	for i := range 1000 {
		thousand = append(thousand, fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250))
	}
	l, err := net.Listen("tcp", "127.0.1.11:"+port) // the eleventh
	if err != nil {
		t.Skipf("no other loopback addresses here: %v", err)
	}
	defer func() { _ = l.Close() }()
	allowed := reach.Allowing([]string{reach.Loopback})
	if err := dial(t, reach.Dialer{Policy: allowed, Resolver: &names{answers: [][]string{thousand}}}, "shop.example:"+port, 10*time.Second); err == nil {
		t.Error("the eleventh address was tried")
	}
	if err := dial(t, reach.Dialer{Policy: allowed, Resolver: &names{answers: [][]string{thousand[1:]}}}, "shop.example:"+port, 10*time.Second); err != nil {
		t.Errorf("the tenth address was not tried: %v", err)
	}
	began := time.Now()
	err = dial(t, reach.Dialer{Resolver: &names{answers: [][]string{many(200)}}}, "shop.example:80", time.Second)
	t.Logf("200 addresses where nobody is: %v after %v", err, time.Since(began))
	if took := time.Since(began); err == nil || took > 10*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

func TestNoSuchName(t *testing.T) {
	err := dial(t, reach.Dialer{Resolver: &names{answers: [][]string{{}}}}, "shop.example:80", time.Second)
	r := reach.Failed(t.Context(), err)
	if r.Result != controlplanev1.HealthObservation_RESULT_FAILURE || r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_DNS {
		t.Errorf("%v: %v", err, r)
	}
	away := reach.Failed(t.Context(), &net.DNSError{Err: "server misbehaving", Name: "shop.example", IsTemporary: true})
	if away.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE {
		t.Errorf("the name server is away: %v", away)
	}
}

func TestCheckAllow(t *testing.T) {
	if err := reach.CheckAllow([]string{reach.Loopback, "private"}); err == nil || !strings.Contains(err.Error(), "allow[1]") || !strings.Contains(err.Error(), "loopback, link-local, metadata") {
		t.Errorf("%v", err)
	}
	t.Setenv(reach.Variable, "everything")
	if err := reach.CheckAllow(nil); err == nil || !strings.Contains(err.Error(), reach.Variable) {
		t.Errorf("%v", err)
	}
}
