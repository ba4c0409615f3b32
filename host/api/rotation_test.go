package api_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/dona"
	sdkidentity "github.com/dodona-project/dodona/sdk/dona/identity"
)

// way forwards connections to an address while it is open. Shut, it ends those that
// there are and takes no more, as a host that is away.
type way struct {
	t        *testing.T
	to       string
	address  string
	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	work     sync.WaitGroup
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	g := &way{t: t, to: to, address: "127.0.0.1:0", open: map[net.Conn]bool{}}
	g.start()
	t.Cleanup(g.shut)
	return g
}

func (g *way) start() {
	listener, err := net.Listen("tcp", g.address)
	fatal(g.t, err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address = listener, listener.Addr().String()
	g.work.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", g.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			g.open[in], g.open[out] = true, true
			g.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
				g.work.Go(func() {
					_, _ = io.Copy(to, from)
					_, _ = to.Close(), from.Close()
				})
			}
		}
	})
}

func (g *way) shut() {
	g.mu.Lock()
	_ = g.listener.Close()
	g.mu.Unlock()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) { // one that was just accepted may come late
		g.mu.Lock()
		for c := range g.open {
			_ = c.Close()
		}
		g.mu.Unlock()
		done := make(chan struct{})
		go func() { g.work.Wait(); close(done) }()
		select {
		case <-done:
			clear(g.open)
			return
		case <-time.After(20 * time.Millisecond):
			if time.Since(begun) > time.Minute {
				g.t.Fatal("connections do not end")
			}
		}
	}
}

const rotationTTL = 4 * time.Second

// TestRotationOverMTLS: a workload gets its SVID for a token, renews it over mTLS by
// itself, and makes calls all the while, each on a new connection. A host that is away
// for longer than the SVID lives is no dead end.
func TestRotationOverMTLS(t *testing.T) {
	const ttl = rotationTTL
	e := newEdge(t, withIssuer(identity.Options{TTL: ttl, MinTTL: time.Second}), serving(func(o *api.Options) {
		o.Dev, o.TrustDomain = false, spiffeid.RequireTrustDomainFromString(domain)
		o.Identity = &hostSource{t: t, issuer: o.HostAdmin.Identities}
	}, grpc.WithTransportCredentials(insecure.NewCredentials())))
	token, err := e.issuer.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: "web", Uses: 2})
	fatal(t, err)
	tokens, hosts := newWay(t, e.bootstrapAddress()), newWay(t, e.address)
	start, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := sdkidentity.NewRotating(start, sdkidentity.Config{Hosts: hosts.address, Bootstrap: tokens.address, Service: "web",
		Token: func(context.Context) (string, error) { return token.Text, nil }})
	fatal(t, err)
	defer r.Close()
	call := func() error {
		conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(credentials.NewTLS(sdkidentity.ClientTLS(r))))
		fatal(t, err)
		defer func() { _ = conn.Close() }()
		c, cancel := context.WithTimeout(ctx(t), 20*time.Second)
		defer cancel()
		s, err := donav1.NewControlPlaneClient(conn).WatchConfig(c, &donav1.WatchConfigRequest{Service: "web", CallerService: "web", ClientId: "c"})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	}
	client, err := dona.Dial(start, hosts.address, dona.WithIdentity(r), dona.WithCaller("web", ""))
	fatal(t, err)
	defer func() { _ = client.Close() }()
	fatal(t, client.Service("web").Ready(start))
	calls := 0
	for rotations := 0; rotations < 3; calls++ {
		_, changed := r.Current()
		if err := call(); err != nil {
			t.Fatalf("call %d: %v", calls, err)
		}
		select {
		case <-changed:
			rotations++
		default:
		}
	}
	t.Logf("%d calls over 3 rotations", calls)

	tokens.shut()
	hosts.shut()
	s, _ := r.Current()
	inside := 0
	for time.Until(s.Expires()) > ttl/8 {
		if err := call(); err != nil && time.Until(s.Expires()) > 0 { // the calls go past them
			t.Fatalf("a call inside its life: %v", err)
		}
		inside++
	}
	eventually(t, "the SVID to end", func() bool { _, err := r.GetX509SVID(); return err != nil })
	tokens.start()
	hosts.start()
	back := time.Now()
	eventually(t, "another SVID", func() bool { _, err := r.GetX509SVID(); return err == nil })
	t.Logf("%d calls while no host was there to renew; another SVID %s after it was back", inside, time.Since(back).Round(time.Millisecond))
	fatal(t, call())

	// Another identity's SVID is not to be had this way, nor one for a token.
	conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(credentials.NewTLS(sdkidentity.ClientTLS(r))))
	fatal(t, err)
	defer func() { _ = conn.Close() }()
	for name, tc := range map[string]struct {
		req  *donav1.IssueSvidRequest
		code codes.Code
	}{
		"another service": {&donav1.IssueSvidRequest{Service: "api"}, codes.PermissionDenied},
		"an operator":     {&donav1.IssueSvidRequest{Path: "admin/web"}, codes.PermissionDenied},
		"a token":         {&donav1.IssueSvidRequest{Service: "web", BootstrapToken: token.Text}, codes.InvalidArgument},
		"no request":      {&donav1.IssueSvidRequest{Service: "web"}, codes.InvalidArgument},
	} {
		if name != "no request" {
			tc.req.CsrPem = newCSR(t)
		}
		_, err := donav1.NewIdentityClient(conn).IssueSvid(ctx(t), tc.req)
		refused(t, name, err, tc.code, "")
	}
}

// hostSource is host/h1, with SVIDs of its own issuer.
type hostSource struct {
	t      *testing.T
	issuer *identity.Issuer
	mu     sync.Mutex
	svid   *x509svid.SVID
}

// GetX509SVID issues another SVID when a third of the life of the one before is over.
func (h *hostSource) GetX509SVID() (*x509svid.SVID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.svid != nil && time.Until(h.svid.Certificates[0].NotAfter) > rotationTTL*2/3 {
		return h.svid, nil
	}
	var err error
	h.svid, err = issuedBy(h.t, h.issuer, identity.ID{TrustDomain: domain, Kind: identity.Host, Name: "h1"})
	return h.svid, err
}

// issuedBy is another SVID of an identity.
func issuedBy(t *testing.T, issuer *identity.Issuer, id identity.ID) (*x509svid.SVID, error) {
	key, csr := newCSRKey(t)
	s, err := issuer.Renew(context.Background(), id, identity.Request{CSR: csr})
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return x509svid.Parse(s.Cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func (h *hostSource) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return x509bundle.FromX509Authorities(td, h.issuer.Bundle()), nil
}

// anew is an identity with another SVID at each handshake.
type anew struct {
	t      *testing.T
	issuer *identity.Issuer
	id     identity.ID
}

func (a anew) GetX509SVID() (*x509svid.SVID, error) { return issuedBy(a.t, a.issuer, a.id) }

func (a anew) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return x509bundle.FromX509Authorities(td, a.issuer.Bundle()), nil
}

// TestStreamsOutliveRotations: a hundred rotations of the host's and of clients' SVIDs,
// with a change of the authority among them, end no stream that was there before, and
// leave no descriptor open. Calls and changes go on all the while.
func TestStreamsOutliveRotations(t *testing.T) {
	e := newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Second}), serving(func(o *api.Options) {
		o.Dev, o.TrustDomain = false, spiffeid.RequireTrustDomainFromString(domain)
		o.Identity = anew{t, o.HostAdmin.Identities, identity.ID{TrustDomain: domain, Kind: identity.Host, Name: "h1"}}
	}, grpc.WithTransportCredentials(insecure.NewCredentials())))
	ann := identity.ID{TrustDomain: domain, Kind: identity.Admin, Name: "ann"}
	web := identity.ID{TrustDomain: domain, Kind: identity.Service, Name: "web"}
	life, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var failed atomic.Pointer[error]
	fail := func(err error) {
		if life.Err() == nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	const streams = 8
	var versions [streams]atomic.Uint64
	var readers sync.WaitGroup
	var beats []donav1.ControlPlane_RegisterEndpointClient
	for n := range streams {
		conn := e.as(mtls(anew{t, e.issuer, web}))
		client := donav1.NewControlPlaneClient(conn)
		id := string(rune('a' + n))
		reg, err := client.RegisterEndpoint(life)
		fatal(t, err)
		fatal(t, reg.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = id })))
		_, err = reg.Header()
		fatal(t, err)
		beats = append(beats, reg)
		watch, err := client.WatchConfig(life, &donav1.WatchConfigRequest{Service: "web", CallerService: "web", ClientId: id})
		fatal(t, err)
		readers.Go(func() {
			for {
				s, err := watch.Recv()
				if err != nil {
					fail(err)
					return
				}
				versions[n].Store(s.Version)
			}
		})
	}
	control := donav1.NewControlPlaneClient(e.as(mtls(anew{t, e.issuer, ann})))
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("descriptors cannot be counted: %v", err)
		}
		return len(entries)
	}
	eventually(t, "the first snapshots", func() bool {
		for n := range versions {
			if versions[n].Load() == 0 {
				return false
			}
		}
		return true
	})
	before := open()
	for n := range 100 {
		switch n {
		case 30:
			_, err := e.issuer.Prepare(life, ann.String())
			fatal(t, err)
		case 60:
			_, err := e.issuer.Activate(life, ann.String())
			fatal(t, err)
		}
		conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(mtls(anew{t, e.issuer, ann}))) // both sides with SVIDs that nobody has seen
		fatal(t, err)
		_, err = donav1.NewControlPlaneClient(conn).GetStatus(life, &donav1.GetStatusRequest{Service: "web"})
		fatal(t, err)
		fatal(t, conn.Close())
		for i, reg := range beats {
			if n%30 != 0 { // no more than a client may beat
				break
			}
			fatal(t, reg.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId, b.Sequence = string(rune('a'+i)), uint64(n+1) })))
		}
		if err := failed.Load(); err != nil {
			t.Fatalf("rotation %d: a stream ended: %v", n, *err)
		}
	}
	_, err := control.SetFlag(life, flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	s, err := control.GetStatus(life, &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	now := s.Config.Version
	eventually(t, "every stream to have the change", func() bool {
		for n := range versions {
			if versions[n].Load() < now {
				return false
			}
		}
		return true
	})
	if a, err := e.issuer.Status(life); err != nil || a.Old == "" {
		t.Errorf("the authority was not changed: %+v, %v", a, err)
	}
	eventually(t, "descriptors to be closed", func() bool { return open() <= before+2 })
	for n, reg := range beats {
		if ack, err := reg.CloseAndRecv(); err != nil || ack.Heartbeats == 0 {
			t.Errorf("registration %d ended with %v, %v", n, ack, err)
		}
	}
	if err := failed.Load(); err != nil {
		t.Errorf("a stream ended: %v", *err)
	}
	cancel()
	readers.Wait()
}

// TestFleetRenews: a service of ten thousand instances, all of one identity, renews its
// SVIDs of an hour within the rate that one identity has.
func TestFleetRenews(t *testing.T) {
	const instances, ttl = limits.EndpointsPerService, time.Hour
	if rule := api.Policy[donav1.Identity_IssueSvid_FullMethodName]; rule.Rate < instances/(ttl/2).Seconds() {
		t.Errorf("%g a second, and %d instances renew %g times a second", rule.Rate, instances, instances/(ttl/2).Seconds())
	}
}
