package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

const (
	// MaxAddresses is how many addresses of a name are tried.
	MaxAddresses = 10
	// MaxBytes bounds what is read of a body, and of headers.
	MaxBytes = 64 << 10

	maxConnection = 4 * MaxBytes // headers, body and what TLS adds
	leastTry      = 100 * time.Millisecond
)

// A Resolver finds the addresses of a name; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dialer connects to endpoints that its policy allows. Safe for concurrent use.
type Dialer struct {
	Policy   Policy
	Resolver Resolver // nil = the system's
}

// SplitAddress checks that an address is host:port.
func SplitAddress(address string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(address)
	n, wrong := strconv.ParseUint(text, 10, 16)
	if err != nil || wrong != nil || n == 0 || host == "" {
		return "", 0, &Refusal{What: address, Why: "it is not host:port"}
	}
	return host, uint16(n), nil
}

// Dial connects to host:port over TCP before ctx ends. A name whose addresses are
// not all allowed is refused; of those that are, MaxAddresses are tried in turn, each
// with its share of the time. What is read from the connection is bounded.
func (d Dialer) Dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := SplitAddress(address)
	if err != nil {
		return nil, err
	}
	addresses, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if err := d.Policy.check(a); err != nil {
			return nil, err
		}
	}
	addresses = addresses[:min(len(addresses), MaxAddresses)]
	for i, a := range addresses {
		var conn net.Conn
		if conn, err = d.try(ctx, netip.AddrPortFrom(a, port), len(addresses)-i); err == nil {
			return Bound(conn), nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func (d Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	var resolver Resolver = net.DefaultResolver
	if d.Resolver != nil {
		resolver = d.Resolver
	}
	addresses, err := resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	return addresses, err
}

// try dials one address with a share of the time that is left. The address that the
// connection is made to is looked at once more, as the system has it.
func (d Dialer) try(ctx context.Context, to netip.AddrPort, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(end)/time.Duration(left), leastTry))
		defer cancel()
	}
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, address string, _ syscall.RawConn) error {
		real, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the dialled address %.80q: %w", address, err)
		}
		return d.Policy.check(real.Addr())
	}}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// ErrTooMuch ends a read of a target that sends without end.
var ErrTooMuch = errors.New("it sends too much")

// Bound returns a connection that ends with ErrTooMuch after what a check may read.
func Bound(conn net.Conn) net.Conn { return &bounded{Conn: conn, left: maxConnection} }

// bounded is a connection of which only so many bytes are read.
type bounded struct {
	net.Conn
	left int // read by one goroutine at a time, as every reader of a connection does
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrTooMuch
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
