// Package upstream connects to targets through upstream proxies over HTTP CONNECT,
// CONNECT within TLS, and SOCKS5, with credentials. Gateway and checker both do it by
// this package, so that what is checked is what is used, byte for byte.
//
// There are two phases, each with its own limit of time: the dial, which is TCP, and the
// handshake, which is TLS to an HTTPS proxy and what the proxy's protocol wants. An
// [Error] says in which of them it ended, of which class it is, and whose fault. No byte
// that a proxy sends after its answer is lost: the connection that is returned gives it
// to the first reader. Credentials are in no error.
package upstream

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Limits of time that hold where a Dialer names none.
const (
	DefaultDialTimeout      = 5 * time.Second
	DefaultHandshakeTimeout = 10 * time.Second

	leastTry = 100 * time.Millisecond // of one address of several
)

// MaxHeader is the most bytes of a proxy's answer to CONNECT.
const MaxHeader = 64 << 10

// The stages in which an Error may happen.
const (
	Dial      = controlplanev1.Outcome_STAGE_DIAL
	Handshake = controlplanev1.Outcome_STAGE_PROXY_HANDSHAKE
)

// Error is why a connection through a proxy did not come about.
type Error struct {
	Stage  controlplanev1.Outcome_Stage
	Class  controlplanev1.ErrorClass
	Status int  // what the proxy answered: an HTTP status, or of SOCKS5 the reply's number; 0 = nothing
	Target bool // the proxy did its part, and says that it cannot reach the target
	Local  bool // this machine's own fault: it says nothing about the proxy
	Err    error
}

func (e *Error) Error() string {
	stage := "dial proxy"
	if e.Stage == Handshake {
		stage = "proxy handshake"
	}
	return stage + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Proxy is an upstream proxy and how to log in to it. It is a plain value that
// has the password in it, and does not print it.
type Proxy struct {
	Protocol           controlplanev1.Proxy_Protocol
	Host               string
	Port               uint16
	Username, Password string // both empty = without credentials
}

// Of makes a Proxy of the contract's messages; c may be nil. The error names the field
// that is wrong.
func Of(p *controlplanev1.Proxy, c *controlplanev1.Credential) (Proxy, error) {
	switch p.GetProtocol() {
	case controlplanev1.Proxy_PROTOCOL_HTTP, controlplanev1.Proxy_PROTOCOL_HTTPS, controlplanev1.Proxy_PROTOCOL_SOCKS5:
	default:
		return Proxy{}, fmt.Errorf("protocol is %s (%d): allowed are PROTOCOL_HTTP, PROTOCOL_HTTPS and PROTOCOL_SOCKS5", p.GetProtocol(), p.GetProtocol())
	}
	to, err := target.ParseHost(p.GetHost())
	if err != nil {
		return Proxy{}, fmt.Errorf("host: %w", err)
	}
	if p.GetPort() == 0 || p.GetPort() > 65535 {
		return Proxy{}, fmt.Errorf("port is %d: allowed are 1 to 65535", p.GetPort())
	}
	out := Proxy{Protocol: p.GetProtocol(), Host: to.Host(), Port: uint16(p.GetPort()), Username: c.GetUsername(), Password: c.GetPassword()}
	return out, out.checkCredentials()
}

const maxSOCKS = 255 // bytes of a SOCKS5 user name, and of a password

func (p Proxy) checkCredentials() error {
	switch {
	case p.Username == "" && p.Password == "":
	case p.Protocol == controlplanev1.Proxy_PROTOCOL_SOCKS5:
		if p.Username == "" || len(p.Username) > maxSOCKS || len(p.Password) > maxSOCKS || p.Password == "" {
			return errors.New("credential: for SOCKS5 user name and password have 1 to 255 bytes each")
		}
	case strings.Contains(p.Username, ":"):
		return errors.New("credential: a user name for HTTP has no colon")
	}
	return nil
}

// Address is the proxy's own host:port.
func (p Proxy) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(int(p.Port))) }

// String is the proxy without its credentials, for logs and errors.
func (p Proxy) String() string {
	scheme := "unknown"
	switch p.Protocol {
	case controlplanev1.Proxy_PROTOCOL_HTTP:
		scheme = "http"
	case controlplanev1.Proxy_PROTOCOL_HTTPS:
		scheme = "https"
	case controlplanev1.Proxy_PROTOCOL_SOCKS5:
		scheme = "socks5"
	}
	return scheme + "://" + p.Address()
}

// GoString is String.
func (p Proxy) GoString() string { return p.String() }

// Authorization is the value of Proxy-Authorization, empty without credentials.
func (p Proxy) Authorization() string {
	if p.Username == "" && p.Password == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(p.Username+":"+p.Password))
}

// Absolute reports whether requests for http:// targets go to this proxy in absolute
// form, on a connection made by Connect, and not through a tunnel.
func (p Proxy) Absolute() bool { return p.Protocol != controlplanev1.Proxy_PROTOCOL_SOCKS5 }

// Dialer connects through proxies. The zero value is ready. Safe for concurrent use;
// its fields are not changed once it is in use.
type Dialer struct {
	DialTimeout      time.Duration
	HandshakeTimeout time.Duration
	KeepAlive        time.Duration   // of TCP, as net.Dialer has it
	Resolver         target.Resolver // of proxies' names; nil = the system's
	// TLS is for HTTPS proxies; nil = the system's roots and the proxy's host as name. It is
	// not changed.
	TLS *tls.Config
	// Allow are classes of addresses that no proxy has unless they are in here; see
	// target.CheckProxy. It is looked at for the address that is dialled.
	Allow []target.Class
}

// Connect opens a connection to the proxy itself, with TLS to an HTTPS one, for requests
// in absolute form. The error is an *Error.
func (d *Dialer) Connect(ctx context.Context, p Proxy) (net.Conn, error) {
	conn, err := d.dial(ctx, p)
	if err != nil || p.Protocol != controlplanev1.Proxy_PROTOCOL_HTTPS {
		return conn, err
	}
	return d.shake(ctx, conn, p, nil)
}

// Tunnel opens a connection to a target through the proxy, which resolves the target's
// name if it has one. What the proxy has sent beyond its answer is read from the
// connection first; where there is nothing of that, the connection is a *net.TCPConn, or
// a *tls.Conn to an HTTPS proxy. The error is an *Error.
func (d *Dialer) Tunnel(ctx context.Context, p Proxy, to target.Target) (net.Conn, error) {
	conn, err := d.dial(ctx, p)
	if err != nil {
		return nil, err
	}
	return d.shake(ctx, conn, p, &to)
}

// dial connects to one of the proxy's addresses. All that its name has are looked at
// before, since it is never clear which one is used; target.MaxAddresses are tried in turn,
// each with its share of the time.
func (d *Dialer) dial(ctx context.Context, p Proxy) (net.Conn, error) {
	limit := d.DialTimeout
	if limit <= 0 {
		limit = DefaultDialTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	addresses, err := d.resolve(bounded, p)
	if err != nil {
		return nil, failed(ctx, Dial, err)
	}
	for i, a := range addresses {
		var conn net.Conn
		if conn, err = d.try(bounded, a, len(addresses)-i); err == nil {
			return conn, nil
		}
		if bounded.Err() != nil {
			break
		}
	}
	return nil, failed(ctx, Dial, err)
}

// resolve returns the addresses that are tried.
func (d *Dialer) resolve(ctx context.Context, p Proxy) ([]netip.AddrPort, error) {
	var addresses []netip.Addr
	if a, err := netip.ParseAddr(p.Host); err == nil {
		addresses = []netip.Addr{a}
	} else {
		if err := target.CheckProxy(target.Target{Name: p.Host}, d.Allow...); err != nil {
			return nil, err // before anybody is asked
		}
		var resolver target.Resolver = net.DefaultResolver
		if d.Resolver != nil {
			resolver = d.Resolver
		}
		if addresses, err = resolver.LookupNetIP(ctx, "ip", p.Host); err != nil {
			return nil, err
		}
		if len(addresses) == 0 {
			return nil, &net.DNSError{Err: "no addresses", Name: p.Host, IsNotFound: true}
		}
	}
	out := make([]netip.AddrPort, 0, min(len(addresses), target.MaxAddresses))
	for _, a := range addresses {
		a = a.Unmap() // how resolvers write an IPv4 address
		if err := target.CheckProxy(target.Target{Addr: a, Port: p.Port}, d.Allow...); err != nil {
			return nil, err
		}
		if len(out) < target.MaxAddresses {
			out = append(out, netip.AddrPortFrom(a, p.Port))
		}
	}
	return out, nil
}

// try dials one address with a share of the time that is left. The address that the
// connection is made to is looked at once more, as the system has it.
func (d *Dialer) try(ctx context.Context, to netip.AddrPort, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(end)/time.Duration(left), leastTry))
		defer cancel()
	}
	dialer := net.Dialer{KeepAlive: d.KeepAlive, Control: func(_, address string, _ syscall.RawConn) error {
		real, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the dialled address %.80q: %w", address, err)
		}
		return target.CheckProxy(target.Target{Addr: real.Addr(), Port: real.Port()}, d.Allow...)
	}}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// failed makes an Error of what went wrong in a phase. What the caller gave up is its
// own doing, whatever error that led to.
func failed(ctx context.Context, stage controlplanev1.Outcome_Stage, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var refused *target.Refusal
	switch {
	case errors.As(err, &refused):
		return &Error{Stage: stage, Class: controlplanev1.ErrorClass_ERROR_CLASS_POLICY, Local: true, Err: refused}
	case errors.Is(ctx.Err(), context.Canceled):
		return &Error{Stage: stage, Class: controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, Local: true, Err: context.Cause(ctx)}
	case ctx.Err() != nil: // the connection's own error is only that it was cut off
		return &Error{Stage: stage, Class: controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, Err: ctx.Err()}
	}
	return &Error{Stage: stage, Class: fault.Class(err), Local: fault.Local(err), Err: err}
}

// longAgo is a deadline that ends what a connection does at once.
var longAgo = time.Unix(1, 0)

// shake does the proxy's handshake, to a target unless that is nil, and closes the
// connection when it fails.
func (d *Dialer) shake(ctx context.Context, raw net.Conn, p Proxy, to *target.Target) (net.Conn, error) {
	limit := d.HandshakeTimeout
	if limit <= 0 {
		limit = DefaultHandshakeTimeout
	}
	end := time.Now().Add(limit)
	if own, ok := ctx.Deadline(); ok && own.Before(end) {
		end = own
	}
	err := raw.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(longAgo) })
	conn := raw
	if err == nil && p.Protocol == controlplanev1.Proxy_PROTOCOL_HTTPS {
		secured := tls.Client(raw, d.tlsConfig(p))
		if err = secured.Handshake(); err == nil {
			conn = secured
		}
	}
	switch {
	case err != nil || to == nil:
	case p.Protocol == controlplanev1.Proxy_PROTOCOL_SOCKS5:
		err = socks5(conn, p, *to)
	default:
		conn, err = connect(conn, p, *to)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx) // it came just before the handshake's end: the deadline is spoilt
	}
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = raw.Close()
		return nil, failed(ctx, Handshake, err)
	}
	return conn, nil
}

func (d *Dialer) tlsConfig(p Proxy) *tls.Config {
	c := d.TLS.Clone()
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.ServerName == "" {
		c.ServerName = p.Host
	}
	c.NextProtos = []string{"http/1.1"}
	return c
}
