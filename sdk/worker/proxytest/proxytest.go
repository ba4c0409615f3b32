// Package proxytest runs upstream proxies for tests: real ones for HTTP, HTTPS and
// SOCKS5 on loopback, which lead to real targets, ask for credentials and remember the
// bytes that clients send for a tunnel. Tests of whatever dials through proxies use
// them, and examples. They do what they are told, and are no proxies for anything else.
package proxytest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// Options are what a proxy does.
type Options struct {
	Protocol           controlplanev1.Proxy_Protocol
	Username, Password string            // asked for when one of them is set
	Hosts              map[string]string // host:port as it is asked for -> the address that is dialled
	Early              string            // sent in one write with the answer to a tunnel
	Status             int               // answer to every CONNECT: an HTTP status or a SOCKS5 reply; 0 = try
	// Certificate is an HTTPS proxy's, for one that comes back as who it was; nil = a new one
	// for its address.
	Certificate *tls.Certificate
	// Talk replaces all of it, after TLS if there is some. The connection is closed when it
	// returns.
	Talk func(net.Conn)
}

// Server is a proxy that runs until it is closed.
type Server struct {
	opts        Options
	listener    net.Listener
	tls         *tls.Config
	certificate *x509.Certificate // nil without TLS
	work        sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]struct{}
	received [][]byte
	accepted int
}

// Start runs a proxy until its test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Listen runs a proxy at an IP address and port of this machine, until it is closed.
func Listen(address string, o Options) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, listener: l, conns: map[net.Conn]struct{}{}}
	if o.Protocol == controlplanev1.Proxy_PROTOCOL_HTTPS {
		if s.tls, s.certificate, err = o.secure(l.Addr().(*net.TCPAddr).IP); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	s.work.Go(s.accept)
	return s, nil
}

// Close ends the proxy and all its connections.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Proxy is the proxy as the contract has it.
func (s *Server) Proxy() *controlplanev1.Proxy {
	a := s.listener.Addr().(*net.TCPAddr)
	p := &controlplanev1.Proxy{
		ProxyId: "proxy-" + strconv.Itoa(a.Port), Upstream: "test", Protocol: s.opts.Protocol, Host: a.IP.String(), Port: uint32(a.Port),
		Capacity: 100, Health: controlplanev1.Health_HEALTH_AVAILABLE,
	}
	if s.Credential() != nil {
		p.SecretRef, p.CredentialVersion = "env:TEST", 1
	}
	return p
}

// Credential is what the proxy asks for, nil for nothing.
func (s *Server) Credential() *controlplanev1.Credential {
	if s.opts.Username == "" && s.opts.Password == "" {
		return nil
	}
	return &controlplanev1.Credential{SecretRef: "env:TEST", CredentialVersion: 1, Username: s.opts.Username, Password: s.opts.Password}
}

// TLS is a client's configuration that trusts an HTTPS proxy; nil for others.
func (s *Server) TLS() *tls.Config {
	if s.certificate == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.certificate)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// Certificate is what a client has to trust, in PEM; nil for others than HTTPS proxies.
func (s *Server) Certificate() []byte {
	if s.certificate == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Raw})
}

// Received is, for each connection in order of its end of handshake, what the client sent until the
// tunnel stood or was refused, inside TLS.
func (s *Server) Received() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte(nil), s.received...)
}

// Accepted is how many connections were taken so far.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Open is how many connections there are now, to clients and to targets.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		if !s.keep(conn) {
			return
		}
		s.work.Go(func() {
			defer s.drop(conn)
			s.serve(conn)
		})
	}
}

// keep has a connection closed with the proxy.
func (s *Server) keep(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	s.accepted++
	return true
}

func (s *Server) drop(conn net.Conn) {
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	_ = conn.Close()
}

func (s *Server) serve(conn net.Conn) {
	if s.tls != nil {
		secured := tls.Server(conn, s.tls)
		if secured.Handshake() != nil {
			return
		}
		conn = secured
	}
	switch {
	case s.opts.Talk != nil:
		s.opts.Talk(conn)
	case s.opts.Protocol == controlplanev1.Proxy_PROTOCOL_SOCKS5:
		s.socks5(conn)
	default:
		s.http(conn)
	}
}

// recorder keeps what is read through it.
type recorder struct {
	io.Reader
	bytes bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bytes.Write(p[:n])
	return n, err
}

func (s *Server) record(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = append(s.received, bytes.Clone(b))
}

func (s *Server) dial(host string) (net.Conn, error) {
	if to, ok := s.opts.Hosts[host]; ok {
		host = to
	}
	conn, err := net.DialTimeout("tcp", host, 5*time.Second)
	if err == nil && !s.keepOut(conn) {
		return nil, errors.New("closed")
	}
	return conn, err
}

// keepOut is keep for a connection that the proxy made.
func (s *Server) keepOut(conn net.Conn) bool {
	ok := s.keep(conn)
	s.mu.Lock()
	s.accepted--
	s.mu.Unlock()
	return ok
}

func (s *Server) http(conn net.Conn) {
	rec := &recorder{Reader: conn}
	r := bufio.NewReader(rec)
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return s.dial(address) },
	}
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		head := rec.bytes.Bytes()
		s.record(head[:len(head)-r.Buffered()])
		rec.bytes.Reset()
		rest, _ := r.Peek(r.Buffered())
		rec.bytes.Write(rest)
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte(s.opts.Username+":"+s.opts.Password))
		switch {
		case s.Credential() != nil && req.Header.Get("Proxy-Authorization") != want:
			_, _ = io.WriteString(conn, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		case req.Method == http.MethodConnect:
			s.connect(conn, r, req.Host)
			return
		}
		req.RequestURI = ""
		req.Header.Del("Proxy-Authorization")
		answer, err := transport.RoundTrip(req)
		if err != nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			continue
		}
		err = answer.Write(conn)
		_ = answer.Body.Close()
		if err != nil || answer.Close {
			return
		}
	}
}

func (s *Server) connect(conn net.Conn, r io.Reader, host string) {
	if s.opts.Status != 0 {
		_, _ = io.WriteString(conn, "HTTP/1.1 "+strconv.Itoa(s.opts.Status)+" As told\r\nContent-Length: 0\r\n\r\n")
		return
	}
	out, err := s.dial(host)
	if err != nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer s.drop(out)
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"+s.opts.Early); err == nil {
		s.tunnel(conn, r, out)
	}
}

func (s *Server) socks5(conn net.Conn) {
	rec := &recorder{Reader: conn}
	recorded := false
	record := func() {
		if !recorded {
			recorded = true
			s.record(rec.bytes.Bytes())
		}
	}
	defer record()
	read := func(n int) []byte {
		p := make([]byte, n)
		if _, err := io.ReadFull(rec, p); err != nil {
			return nil
		}
		return p
	}
	hello := read(2)
	if hello == nil || hello[0] != 5 {
		return
	}
	methods := read(int(hello[1]))
	login := s.Credential() != nil
	switch {
	case login && bytes.IndexByte(methods, 2) < 0, !login && bytes.IndexByte(methods, 0) < 0:
		_, _ = conn.Write([]byte{5, 0xff})
		return
	case login:
		_, _ = conn.Write([]byte{5, 2})
		version := read(2)
		if version == nil {
			return
		}
		user := read(int(version[1]))
		length := read(1)
		if length == nil {
			return
		}
		if password := read(int(length[0])); string(user) != s.opts.Username || string(password) != s.opts.Password {
			_, _ = conn.Write([]byte{1, 1})
			return
		}
		_, _ = conn.Write([]byte{1, 0})
	default:
		_, _ = conn.Write([]byte{5, 0})
	}
	request := read(4)
	if request == nil {
		return
	}
	host := ""
	switch request[3] {
	case 1:
		host = net.IP(read(4)).String()
	case 4:
		host = net.IP(read(16)).String()
	case 3:
		if length := read(1); length != nil {
			host = string(read(int(length[0])))
		}
	}
	port := read(2)
	if port == nil {
		return
	}
	record()
	host = net.JoinHostPort(host, strconv.Itoa(int(port[0])<<8|int(port[1])))
	bound := []byte{0, 1, 127, 0, 0, 1, 0, 1}
	if s.opts.Status != 0 {
		_, _ = conn.Write(append([]byte{5, byte(s.opts.Status)}, bound...))
		return
	}
	out, err := s.dial(host)
	if err != nil {
		_, _ = conn.Write(append([]byte{5, 4}, bound...))
		return
	}
	defer s.drop(out)
	if _, err := conn.Write(append(append([]byte{5, 0}, bound...), s.opts.Early...)); err == nil {
		s.tunnel(conn, conn, out)
	}
}

// tunnel copies both ways until both are at their end.
func (s *Server) tunnel(conn net.Conn, from io.Reader, out net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(out, from)
		closeWrite(out)
	})
	_, _ = io.Copy(conn, out)
	closeWrite(conn)
	both.Wait()
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// secure is the configuration of an HTTPS proxy, and its certificate.
func (o *Options) secure(address net.IP) (*tls.Config, *x509.Certificate, error) {
	if o.Certificate == nil {
		return newCertificate(address)
	}
	leaf, err := x509.ParseCertificate(o.Certificate.Certificate[0])
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{*o.Certificate}, MinVersion: tls.VersionTLS12}, leaf, nil
}

// newCertificate makes a certificate for an address.
func newCertificate(address net.IP) (*tls.Config, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test proxy " + serial.String()}, IPAddresses: []net.IP{address},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, leaf, nil
}
