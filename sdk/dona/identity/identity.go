// Package identity gives an application its X.509-SVID: the certificate by which hosts
// and other applications of the trust domain know it.
//
// [Bootstrap] gets the first one for a token, [Renew] the next one for the one that there
// is, and [Rotating] does both to keep one fresh for as long as
// the application runs. Keys are made here and never leave. A Rotating is a source of
// go-spiffe, so that its tlsconfig takes it, and dona.WithIdentity does for the
// connections to hosts. An SVID that another program keeps fresh in a folder is read
// with svidfile.
package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// An SVID is an identity with its key, and what others of its trust domain are
// verified with. Immutable.
type SVID struct {
	X509   *x509svid.SVID
	Bundle *x509bundle.Bundle

	got time.Time // when this process had it first
}

// ID is the SPIFFE ID.
func (s *SVID) ID() spiffeid.ID { return s.X509.ID }

// Expires is when it ends to be valid.
func (s *SVID) Expires() time.Time { return s.X509.Certificates[0].NotAfter }

// Source is where connections take an SVID and a bundle from, anew for each of them.
type Source interface {
	x509svid.Source
	x509bundle.Source
}

// ClientTLS returns the configuration of TLS 1.3 connections to hosts: both sides show
// an SVID, and the other one has to be a host of this side's own trust domain.
func ClientTLS(source Source) *tls.Config {
	config := tlsconfig.MTLSClientConfig(source, source, func(id spiffeid.ID, _ [][]*x509.Certificate) error {
		mine, err := source.GetX509SVID()
		if err != nil {
			return err
		}
		name, host := strings.CutPrefix(id.Path(), "/host/")
		if !host || strings.Contains(name, "/") || id.TrustDomain() != mine.ID.TrustDomain() {
			return fmt.Errorf("the peer is %s, no host of %s", id, mine.ID.TrustDomain())
		}
		return nil
	})
	config.MinVersion = tls.VersionTLS13
	return config
}

// A Request says what is asked for with a token.
type Request struct {
	Token   string
	Service string // the service whose identity it is; or Path; neither: what the token grants
	Path    string // "<environment>/worker/<id>", "<environment>/checker/<id>", "admin/<name>"
}

// Bootstrap gets an SVID for one use of a token, at the bootstrap listener of a host.
// The connection is not secured: it is for the same machine, or for a network that is
// trusted. The bundle is what the host says it is.
func Bootstrap(ctx context.Context, address string, req Request) (*SVID, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("bootstrap at %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	s, err := issue(ctx, conn, &donav1.IssueSvidRequest{BootstrapToken: req.Token, Service: req.Service, Path: req.Path})
	if err != nil {
		return nil, fmt.Errorf("bootstrap at %s: %w", address, err)
	}
	return s, nil
}

// within bounds one attempt at one host.
const within = 10 * time.Second

// Renew gets the next SVID of the identity that the source has, at the first of these
// hosts (host:port, separated by commas) that gives one. The error is the last one's.
func Renew(ctx context.Context, hosts string, source Source) (s *SVID, err error) {
	for address := range strings.SplitSeq(hosts, ",") {
		if s, err = renewAt(ctx, strings.TrimSpace(address), source); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

func renewAt(ctx context.Context, address string, source Source) (*SVID, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	mine, err := source.GetX509SVID()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(ClientTLS(source))), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("renewal at %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	s, err := issue(ctx, conn, &donav1.IssueSvidRequest{})
	if err == nil && s.ID() != mine.ID {
		err = fmt.Errorf("it is for %s", s.ID())
	}
	if err != nil {
		return nil, fmt.Errorf("renewal at %s: %w", address, err)
	}
	return s, nil
}

// issue makes a key, has it certified, and checks what came back as any peer will.
func issue(ctx context.Context, conn grpc.ClientConnInterface, req *donav1.IssueSvidRequest) (*SVID, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	req.CsrPem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	reply, err := donav1.NewIdentityClient(conn).IssueSvid(ctx, req)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return parse(reply.CertPem, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), reply.BundlePem)
}

// parse joins the parts of an SVID and checks that they belong together.
func parse(cert, key, bundle []byte) (*SVID, error) {
	own, err := x509svid.Parse(cert, key)
	if err != nil {
		return nil, err
	}
	trusted, err := x509bundle.Parse(own.ID.TrustDomain(), bundle)
	if err != nil {
		return nil, err
	}
	if trusted.Empty() {
		return nil, errors.New("the bundle is empty")
	}
	// At its own time: whether it has expired is not the question here.
	if _, _, err := x509svid.Verify(own.Certificates, trusted, x509svid.WithTime(own.Certificates[0].NotAfter)); err != nil {
		return nil, err
	}
	return &SVID{X509: own, Bundle: trusted, got: time.Now()}, nil
}
