package target

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// MaxAddresses is how many addresses of a name are tried.
const MaxAddresses = 10

const leastTry = 100 * time.Millisecond

// A Resolver finds the addresses of a name; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve returns the addresses of a target, all of which the policy allows, at most
// MaxAddresses. A name with one address that is refused is refused: it may be half of
// a trick, and it is never clear which one is used. A nil resolver is the system's.
func (p *Policy) Resolve(ctx context.Context, t Target, r Resolver) ([]netip.AddrPort, error) {
	addresses := []netip.Addr{t.Addr}
	if !t.Addr.IsValid() {
		if err := p.or().checkNamed(t); err != nil {
			return nil, err // before anybody is asked
		}
		if r == nil {
			r = net.DefaultResolver
		}
		var err error
		// A dot at the end: the name as it is, without the machine's search domains.
		if addresses, err = r.LookupNetIP(ctx, "ip", t.Name+"."); err != nil {
			return nil, err
		}
		if len(addresses) == 0 {
			return nil, &net.DNSError{Err: "no addresses", Name: t.Name, IsNotFound: true}
		}
	}
	out := make([]netip.AddrPort, 0, min(len(addresses), MaxAddresses))
	for _, a := range addresses {
		if t.Name != "" {
			a = a.Unmap() // how resolvers write an IPv4 address; a client does not
		}
		if err := p.CheckAddr(t, a); err != nil {
			return nil, err
		}
		if len(out) < MaxAddresses {
			out = append(out, netip.AddrPortFrom(a, t.Port))
		}
	}
	return out, nil
}

// Control returns what net.Dialer calls before each connection: it looks at the address
// that the system is about to connect to, whatever was checked before.
func (p *Policy) Control(t Target) func(network, address string, c syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		real, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the dialled address %.80q: %w", address, err)
		}
		if real.Port() != t.Port {
			return &Refusal{What: address, Why: fmt.Sprintf("the port is not %d, which was asked for", t.Port)}
		}
		a := real.Addr()
		if t.Name != "" {
			a = a.Unmap()
		}
		return p.CheckAddr(t, a)
	}
}

// Dialer connects to targets that a policy allows. Safe for concurrent use.
type Dialer struct {
	Resolver  Resolver      // nil = the system's
	KeepAlive time.Duration // as net.Dialer has it
}

// Dial connects over TCP before ctx ends. Of a name's addresses, which all have to be
// allowed, MaxAddresses are tried in turn, each with its share of the time. A *Refusal
// says that the policy does not allow it.
func (d Dialer) Dial(ctx context.Context, p *Policy, t Target) (net.Conn, error) {
	addresses, err := p.Resolve(ctx, t, d.Resolver)
	if err != nil {
		return nil, err
	}
	for i, a := range addresses {
		var conn net.Conn
		if conn, err = d.try(ctx, p, t, a, len(addresses)-i); err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func (d Dialer) try(ctx context.Context, p *Policy, t Target, to netip.AddrPort, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(end)/time.Duration(left), leastTry))
		defer cancel()
	}
	dialer := net.Dialer{KeepAlive: d.KeepAlive, Control: p.Control(t)}
	return dialer.DialContext(ctx, "tcp", to.String())
}
