package target_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

func compile(t testing.TB, p *controlplanev1.TargetPolicy, own ...string) *target.Policy {
	t.Helper()
	o := target.Own{Local: []netip.Addr{netip.MustParseAddr("198.51.100.9")}}
	for _, l := range own {
		o.Listeners = append(o.Listeners, netip.MustParseAddrPort(l))
	}
	c, err := target.Compile(p, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func parse(t testing.TB, text string) target.Target {
	t.Helper()
	to, err := target.Parse(text, 443)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestPolicy(t *testing.T) {
	type policy = controlplanev1.TargetPolicy
	everything := &policy{AllowPrivate: true}
	for _, c := range []struct {
		name    string
		policy  *policy
		own     []string
		allowed []string
		refused []string
	}{
		{
			"nothing configured", nil, nil,
			[]string{"shop.example", "shop.example:80", "8.8.8.8", "[2606:4700::1111]"},
			[]string{"shop.example:8443", "8.8.8.8:22", "127.0.0.1", "127.0.0.1.", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "169.254.1.1", "100.64.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0",
				"[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[ff02::1]", "[::ffff:127.0.0.1]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]", "[2002:808:808::1]", "[2001:0:1:2:3:4:f7f7:f7f7]", "[::127.0.0.1]",
				"localhost", "LOCALHOST.", "a.localhost", "localhost.localdomain", "metadata.google.internal", "Metadata.Google.Internal."},
		},
		{
			"private places allowed", everything, nil,
			[]string{"127.0.0.1", "10.0.0.1", "localhost", "[::ffff:8.8.8.8]", "[fc00::1]", "shop.example"},
			[]string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "metadata.google.internal", "10.0.0.1:22"},
		},
		{
			"metadata in words", &policy{AllowPrivate: true, AllowCidrs: []string{"169.254.169.254"}, AllowHosts: []string{"metadata.google.internal"}}, nil,
			[]string{"169.254.169.254", "metadata.google.internal"},
			[]string{"100.100.100.200", "shop.example"},
		},
		{
			"metadata within a network is not in words", &policy{AllowPrivate: true, AllowCidrs: []string{"0.0.0.0/0"}}, nil,
			[]string{"8.8.8.8", "10.0.0.1"}, []string{"169.254.169.254"},
		},
		{
			"metadata needs both", &policy{AllowCidrs: []string{"169.254.169.254/32"}}, nil, nil, []string{"169.254.169.254"},
		},
		{
			"ports", &policy{AllowPorts: []uint32{8443, 65535}}, nil,
			[]string{"shop.example:8443", "shop.example:65535"}, []string{"shop.example:443", "shop.example:80"},
		},
		{
			"names", &policy{AllowHosts: []string{"shop.example", "*.Api.example."}}, nil,
			[]string{"shop.example", "SHOP.example.", "a.api.example", "a.b.api.example"},
			[]string{"api.example", "xapi.example", "www.shop.example", "shop.example.evil.example", "8.8.8.8"},
		},
		{
			"denied names beat allowed ones", &policy{AllowHosts: []string{"*.example"}, DenyHosts: []string{"*.evil.example", "bad.example"}}, nil,
			[]string{"shop.example", "evil.example"}, []string{"a.evil.example", "bad.example", "BAD.example."},
		},
		{
			"networks", &policy{AllowCidrs: []string{"8.8.8.0/24", "2606:4700::/32"}}, nil,
			[]string{"8.8.8.8", "[2606:4700::1]"}, []string{"8.8.4.4", "[2606:4701::1]", "shop.example"},
		},
		{
			"denied networks beat allowed ones", &policy{AllowCidrs: []string{"8.8.0.0/16"}, DenyCidrs: []string{"8.8.8.0/24"}, AllowPrivate: true}, nil,
			[]string{"8.8.4.4", "[::ffff:8.8.4.4]"}, []string{"8.8.8.8", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]", "[2002:808:808::1]", "[2001:0:1:2:3:4:f7f7:f7f7]"},
		},
		{
			"a denied network in its mapped spelling", &policy{DenyCidrs: []string{"::ffff:8.8.8.0/120"}}, nil, []string{"8.8.4.4"}, []string{"8.8.8.8"},
		},
		{
			"addresses among names", &policy{AllowHosts: []string{"8.8.8.8", "shop.example"}, DenyHosts: []string{"1.1.1.1"}}, nil,
			[]string{"8.8.8.8", "shop.example"}, []string{"1.1.1.1", "8.8.4.4"},
		},
		{
			"private is no allowance of names", &policy{AllowPrivate: true, AllowHosts: []string{"shop.example"}}, nil, []string{"shop.example"}, []string{"10.0.0.1", "localhost"},
		},
		{
			"an allowed network does not open private places", &policy{AllowCidrs: []string{"10.0.0.0/8"}}, nil, nil, []string{"10.0.0.1"},
		},
		{
			"its own listener", &policy{AllowPrivate: true, AllowPorts: []uint32{3128, 3129, 80}, AllowCidrs: []string{"0.0.0.0/0", "::/0"}}, []string{"192.0.2.1:3128", "0.0.0.0:3129"},
			[]string{"192.0.2.1:3129", "192.0.2.2:3128", "127.0.0.1:3128", "127.0.0.1:80", "198.51.100.9:3128"},
			[]string{"192.0.2.1:3128", "[::ffff:192.0.2.1]:3128", "[64:ff9b::c000:201]:3128", "127.0.0.1:3129", "127.8.9.1:3129", "[::1]:3129", "[::]:3129", "198.51.100.9:3129", "[2002:c633:6409::]:3129", "[::ffff:127.0.0.1]:3129"},
		},
	} {
		p := compile(t, c.policy, c.own...)
		for _, text := range c.allowed {
			if err := p.Check(parse(t, text)); err != nil {
				t.Errorf("%s: %s: %v", c.name, text, err)
			}
		}
		for _, text := range c.refused {
			var refused *target.Refusal
			if err := p.Check(parse(t, text)); !errors.As(err, &refused) {
				t.Errorf("%s: %s: %v, want it refused", c.name, text, err)
			}
		}
	}
	var none *target.Policy
	if none.Check(parse(t, "10.0.0.1")) == nil || none.Check(parse(t, "8.8.8.8")) != nil {
		t.Error("a nil policy is not the default one")
	}
}

func TestCompileNamesAllErrors(t *testing.T) {
	_, err := target.Compile(&controlplanev1.TargetPolicy{
		AllowHosts: []string{"ok.example", "*", "a b", "*.*.x"}, DenyHosts: []string{"", "127.1", "fe80::1%x"},
		AllowPorts: []uint32{0, 80, 65536}, AllowCidrs: []string{"10.0.0.1/8", "x"}, DenyCidrs: []string{"10.0.0.0/33", "fe80::1%x"},
	}, target.Own{})
	if err == nil {
		t.Fatal("it is taken")
	}
	for _, want := range []string{"allow_hosts[1]", "allow_hosts[2]", "allow_hosts[3]", "deny_hosts[0]", "deny_hosts[1]", "deny_hosts[2]",
		"allow_ports[0]", "allow_ports[2]", "allow_cidrs[0]", "10.0.0.0/8", "allow_cidrs[1]", "deny_cidrs[0]", "deny_cidrs[1]"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 12 {
		t.Errorf("%d errors, want 12:\n%v", n, err)
	}
}

// resolver answers with the next list at each question: the last one for ever.
type resolver struct {
	answers [][]string
	asked   atomic.Int32
	names   chan string
}

func (r *resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n := min(int(r.asked.Add(1))-1, len(r.answers)-1)
	if r.names != nil {
		r.names <- host
	}
	var out []netip.Addr
	for _, a := range r.answers[n] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func TestResolve(t *testing.T) {
	public := compile(t, nil)
	for _, c := range []struct {
		policy  *target.Policy
		answers []string
		want    string // addresses, or what the refusal names
	}{
		{public, []string{"8.8.8.8", "2606:4700::1"}, "8.8.8.8:443 [2606:4700::1]:443"},
		{public, []string{"::ffff:8.8.8.8"}, "8.8.8.8:443"},
		{public, []string{"8.8.8.8", "127.0.0.1"}, "refused: 127.0.0.1"},
		{public, []string{"8.8.8.8", "fe80::1%eth0"}, "refused: fe80::1%eth0"},
		{public, []string{"64:ff9b::7f00:1"}, "refused: 64:ff9b::7f00:1"},
		{compile(t, &controlplanev1.TargetPolicy{AllowCidrs: []string{"8.8.8.0/24"}}), []string{"8.8.8.8"}, "8.8.8.8:443"},
		{compile(t, &controlplanev1.TargetPolicy{AllowCidrs: []string{"8.8.8.0/24"}}), []string{"8.8.8.8", "8.8.4.4"}, "refused: shop.example"},
		{compile(t, &controlplanev1.TargetPolicy{AllowHosts: []string{"shop.example"}, DenyCidrs: []string{"8.8.4.0/24"}}), []string{"8.8.8.8", "8.8.4.4"}, "refused: 8.8.4.4"},
		{compile(t, nil, "0.0.0.0:443"), []string{"198.51.100.9"}, "refused: shop.example:443"},
	} {
		got, err := c.policy.Resolve(t.Context(), parse(t, "Shop.example."), &resolver{answers: [][]string{c.answers}})
		text := ""
		var refused *target.Refusal
		switch {
		case errors.As(err, &refused):
			text = "refused: " + refused.What
		case err != nil:
			t.Fatal(err)
		}
		for i, a := range got {
			if i > 0 {
				text += " "
			}
			text += a.String()
		}
		if text != c.want {
			t.Errorf("%v: %s, want %s", c.answers, text, c.want)
		}
	}
	r := &resolver{answers: [][]string{{"8.8.8.8"}}, names: make(chan string, 1)}
	if _, err := public.Resolve(t.Context(), parse(t, "shop.example:22"), r); err == nil || r.asked.Load() != 0 {
		t.Errorf("a refused port is resolved: %v", err)
	}
	if _, err := public.Resolve(t.Context(), parse(t, "shop.example"), r); err != nil || <-r.names != "shop.example." {
		t.Error("the name is asked for with search domains")
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}).String()
	}
	if got, err := public.Resolve(t.Context(), parse(t, "shop.example"), &resolver{answers: [][]string{many}}); err != nil || len(got) != target.MaxAddresses {
		t.Errorf("%d addresses, %v", len(got), err)
	}
	var dns *net.DNSError
	if _, err := public.Resolve(t.Context(), parse(t, "shop.example"), &resolver{answers: [][]string{nil}}); !errors.As(err, &dns) || !dns.IsNotFound {
		t.Errorf("no addresses: %v", err)
	}
}

// A name that has another address when it is asked for again gets nobody in: what is
// dialled is what was checked, and it is looked at once more as the system has it.
func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var taken atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			_ = c.Close()
		}
	}()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	to := target.Target{Name: "shop.example", Port: port}
	ports := []uint32{uint32(port)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	public := compile(t, &controlplanev1.TargetPolicy{AllowPorts: ports})
	var refused *target.Refusal
	for _, answer := range [][]string{{"127.0.0.1"}, {"::ffff:127.0.0.1"}, {"8.8.8.8", "127.0.0.1"}} {
		d := target.Dialer{Resolver: &resolver{answers: [][]string{answer}}}
		if c, err := d.Dial(ctx, public, to); !errors.As(err, &refused) {
			t.Errorf("%v: %v, %v", answer, c, err)
		}
	}
	// Its control is the last word, whatever resolved before.
	dialer := net.Dialer{Control: public.Control(to)}
	if c, err := dialer.DialContext(ctx, "tcp", l.Addr().String()); !errors.As(err, &refused) {
		t.Errorf("the control lets %v through: %v", c, err)
	}
	private := compile(t, &controlplanev1.TargetPolicy{AllowPorts: ports, AllowPrivate: true})
	other := net.Dialer{Control: private.Control(target.Target{Name: "shop.example", Port: port + 1})}
	if _, err := other.DialContext(ctx, "tcp", l.Addr().String()); !errors.As(err, &refused) {
		t.Errorf("the control lets another port through: %v", err)
	}
	if taken.Load() != 0 {
		t.Fatalf("%d connections were made to what is refused", taken.Load())
	}

	r := &resolver{answers: [][]string{{"127.0.0.2", "127.0.0.1"}, {"192.0.2.1"}}} // nobody listens at the first
	c, err := target.Dialer{Resolver: r}.Dial(ctx, private, to)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if r.asked.Load() != 1 {
		t.Errorf("the name was resolved %d times", r.asked.Load())
	}
	_ = l.Close()
	<-done
	if _, err := (target.Dialer{}).Dial(ctx, private, target.Target{Addr: netip.MustParseAddr("127.0.0.1"), Port: port}); err == nil || errors.As(err, &refused) {
		t.Errorf("nobody listens: %v", err)
	}
}

// Whatever an address is inside of, a policy without private places lets none through
// that leads to one.
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:a00:1::", "2001:0:1:2:3:4:80ff:fffe", "8.8.8.8", "2606:4700::1"} {
		a := netip.MustParseAddr(s).As16()
		f.Add(a[:])
	}
	public := compile(f, nil)
	denied := netip.MustParsePrefix("8.8.8.0/24")
	all := compile(f, &controlplanev1.TargetPolicy{AllowPrivate: true, DenyCidrs: []string{denied.String()}})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		to := target.Target{Addr: a, Port: 443}
		inner, hidden := target.Embedded(a)
		if public.Check(to) == nil && (hidden || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) {
			t.Fatalf("%v is let through", a)
		}
		if all.Check(to) == nil && (denied.Contains(a) || hidden && denied.Contains(inner)) {
			t.Fatalf("%v is let through, which is denied", a)
		}
		again, err := target.Parse(to.String(), 0)
		if err != nil || again != to {
			t.Fatalf("%v reads as %v, %v", to, again, err)
		}
	})
}

func TestClassesHaveNames(t *testing.T) {
	var names []string
	for c := target.Public; c <= target.Translated; c++ {
		names = append(names, c.String())
	}
	if want := strings.Fields("public loopback link-local metadata private shared multicast reserved translated"); !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}

func BenchmarkCheck(b *testing.B) {
	p := compile(b, &controlplanev1.TargetPolicy{AllowHosts: []string{"*.example"}, DenyHosts: []string{"*.evil.example"}})
	to := parse(b, "www.shop.example")
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Check(to); err != nil {
			b.Fatal(err)
		}
	}
}
