package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/identity"
)

// Identity is who the host is and whose word it takes. What it returns may change at
// any time: each handshake asks.
type Identity interface {
	x509svid.Source
	x509bundle.Source
}

// Caps bound what is open at once. 0 is no bound.
type Caps struct {
	Connections        int // of everyone, those in their handshake included
	ConnectionsPerPeer int // of one identity at one address
	StreamsPerPeer     int // calls under way of one identity from one address
}

const (
	reauthorise = 30 * time.Minute // how long a connection lives on one look at its certificate
	parting     = time.Second      // from telling a peer that it may not go on to hanging up
)

// ServerTLS is how a listener of the host proves who it is and asks who calls: TLS
// 1.3, an X.509-SVID of one of the kinds of identities of the host's trust domain. A
// session is never resumed: nothing would check the certificate again.
func ServerTLS(id Identity, domain spiffeid.TrustDomain) *tls.Config {
	c := tlsconfig.MTLSServerConfig(id, id, tlsconfig.AdaptMatcher(func(peer spiffeid.ID) error {
		_, err := named(peer, domain)
		return err
	}))
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	return c
}

// named reads a peer's SPIFFE ID: one of the kinds there are, of the host's own trust
// domain.
func named(peer spiffeid.ID, domain spiffeid.TrustDomain) (identity.ID, error) {
	if peer.TrustDomain() != domain {
		return identity.ID{}, fmt.Errorf("the peer is of another trust domain than %s", domain)
	}
	id, err := identity.ParseID(peer.String())
	if err != nil {
		return identity.ID{}, fmt.Errorf("the peer's SPIFFE ID %w", err)
	}
	return id, nil
}

// door takes connections in: it has who comes prove an identity, counts, and sees to
// it that nobody stays longer than the certificate lasts. It is the server's
// credentials.TransportCredentials.
type door struct {
	credentials.TransportCredentials // TLS, or none at all
	identity                         Identity
	domain                           spiffeid.TrustDomain
	caps                             Caps
	metrics                          *metrics
	recheck, parting                 time.Duration

	mu    sync.Mutex
	all   int
	peers map[seat]*seats
}

// seat is what connections and calls are counted by.
type seat struct{ actor, address string }

type seats struct{ connections, streams int }

func newDoor(o Options, m *metrics) *door {
	d := &door{TransportCredentials: insecure.NewCredentials(), identity: o.Identity, domain: o.TrustDomain, caps: o.Caps, metrics: m,
		recheck: cmp.Or(o.Reauthorise, reauthorise), parting: parting, peers: map[seat]*seats{}}
	if o.Identity != nil {
		d.TransportCredentials = credentials.NewTLS(ServerTLS(o.Identity, o.TrustDomain))
	}
	return d
}

var (
	errFull     = errors.New("the host has as many connections as it may have")
	errPeerFull = errors.New("this identity has as many connections from this address as it may have")
)

// ServerHandshake lets a connection in, or not.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !d.enter() {
		return nil, nil, d.refuse("full", errFull)
	}
	conn, info, err := d.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		d.leave()
		return nil, nil, d.refuse("handshake", err)
	}
	v := &visitor{AuthInfo: info, door: d, seat: seat{DevActor, host(raw.RemoteAddr())}}
	if tlsInfo, secure := info.(credentials.TLSInfo); secure {
		if err := v.know(tlsInfo.State.PeerCertificates); err != nil { // verified by the handshake
			d.leave()
			return nil, nil, d.refuse("handshake", err)
		}
	}
	if !d.sit(v.seat) {
		d.leave()
		return nil, nil, d.refuse("peer_full", errPeerFull)
	}
	v.conn = &visited{Conn: conn, visitor: v}
	v.begin()
	return v.conn, v, nil
}

// Clone is demanded by grpc, which clones no server's credentials.
func (d *door) Clone() credentials.TransportCredentials { return d }

func (d *door) refuse(reason string, err error) error {
	d.metrics.refused.WithLabelValues(reason).Inc()
	return err
}

func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.caps.Connections > 0 && d.all >= d.caps.Connections {
		return false
	}
	d.all++
	d.metrics.connections.Inc()
	return true
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	d.metrics.connections.Dec()
}

func (d *door) sit(at seat) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.peers[at]
	if s == nil {
		s = &seats{}
		d.peers[at] = s
	}
	if d.caps.ConnectionsPerPeer > 0 && s.connections >= d.caps.ConnectionsPerPeer {
		return false
	}
	s.connections++
	return true
}

// start counts a call of the peer; false is one too many.
func (d *door) start(at seat) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.peers[at]
	if s == nil { // its connections are gone, and the call is about to hear of it
		s = &seats{}
		d.peers[at] = s
	}
	if d.caps.StreamsPerPeer > 0 && s.streams >= d.caps.StreamsPerPeer {
		return false
	}
	s.streams++
	return true
}

// release takes back what sit and start counted.
func (d *door) release(at seat, connections, streams int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.peers[at]
	s.connections -= connections
	s.streams -= streams
	if *s == (seats{}) {
		delete(d.peers, at)
	}
}

func host(a net.Addr) string {
	if h, _, err := net.SplitHostPort(a.String()); err == nil {
		return h
	}
	return a.String()
}

// visitor is who is at the other end of one connection. It is what the calls on it
// know of their transport.
type visitor struct {
	credentials.AuthInfo
	door   *door
	seat   seat
	caller caller // of TLS; without it, guard decides
	certs  []*x509.Certificate
	conn   *visited

	gone  context.Context // ends when the peer may not go on; its cause is the status to answer with
	end   context.CancelCauseFunc
	timer *time.Timer // of the next look; nil = there is nothing to look at
	mu    sync.Mutex  // held for a look, so that none begins after the connection is closed
	left  bool
}

// know takes the identity from a certificate that the handshake has verified.
func (v *visitor) know(certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("the peer has sent no certificate")
	}
	peer, err := x509svid.IDFromCert(certs[0])
	if err != nil {
		return err
	}
	id, err := named(peer, v.door.domain)
	if err != nil {
		return err
	}
	v.certs, v.caller, v.seat.actor = certs, callerOf(id), peer.String()
	return nil
}

func (v *visitor) begin() {
	v.gone, v.end = context.WithCancelCause(context.Background())
	if v.certs == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.timer = time.AfterFunc(v.until(time.Now()), v.look)
}

// until is how long a look at the certificate is good for.
func (v *visitor) until(now time.Time) time.Duration {
	return min(v.door.recheck, v.certs[0].NotAfter.Sub(now))
}

// look asks again whether the peer may go on, and else tells its calls, and hangs up a
// moment later: a new connection shows a new certificate.
func (v *visitor) look() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left || v.gone.Err() != nil {
		return
	}
	now := time.Now()
	if why := v.judge(now); why != nil {
		v.end(why)
		v.timer = time.AfterFunc(v.door.parting, func() { _ = v.conn.Close() })
		return
	}
	v.timer.Reset(max(v.until(now), time.Millisecond))
}

var (
	errExpired   = status.Error(codes.Unauthenticated, "the certificate of this connection has expired: connect again with a new one")
	errUntrusted = status.Error(codes.Unauthenticated, "the certificate of this connection is no longer trusted: connect again with a new one")
)

func (v *visitor) judge(now time.Time) error {
	if !now.Before(v.certs[0].NotAfter) {
		return errExpired
	}
	if _, _, err := x509svid.Verify(v.certs, v.door.identity, x509svid.WithTime(now)); err != nil {
		return errUntrusted
	}
	return nil
}

// still is nil while the peer may make calls.
func (v *visitor) still(now time.Time) error {
	if v.certs != nil && !now.Before(v.certs[0].NotAfter) { // a clock that was set forward tells no timer
		return errExpired
	}
	return context.Cause(v.gone)
}

// visited is a connection that is counted until it is closed.
type visited struct {
	net.Conn
	visitor *visitor
	once    sync.Once
}

func (c *visited) Close() error {
	c.once.Do(c.visitor.leave)
	return c.Conn.Close()
}

// Write counts the connection no more once it failed: what fails so early that grpc
// has made nothing of it yet is never closed by it.
func (c *visited) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.once.Do(c.visitor.leave)
	}
	return n, err
}

func (v *visitor) leave() {
	v.mu.Lock()
	v.left = true
	if v.timer != nil {
		v.timer.Stop()
	}
	v.mu.Unlock()
	v.end(context.Canceled)
	v.door.release(v.seat, 1, 0)
	v.door.leave()
}
