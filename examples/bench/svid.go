package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/spire/pkg/common/health"
	"github.com/spiffe/spire/pkg/common/telemetry"
	spireca "github.com/spiffe/spire/pkg/server/ca"
	"github.com/spiffe/spire/pkg/server/credtemplate"
	"github.com/spiffe/spire/pkg/server/credvalidator"

	"github.com/dodona-project/dodona/host/identity"
)

const (
	svidDomain = "example.org"
	svidCalls  = 100 // of a turn
	svidTurns  = 45
)

// svidJob measures what issuing one SVID costs in CPU time: from the request in PEM,
// which is parsed and checked, to the certificate, which is signed. Keys are P-256 on
// all sides. What is kept of it (tokens, the audit log) is not in it.
func svidJob() ([]row, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	ours, err := ourSVID(request)
	if err != nil {
		return nil, err
	}
	library, err := librarySVID(request)
	if err != nil {
		return nil, err
	}
	spire, err := spireSVID(request)
	if err != nil {
		return nil, err
	}
	m, err := turns(svidTurns, nsPerOp(svidCalls, ours), nsPerOp(svidCalls, library), nsPerOp(svidCalls, spire))
	if err != nil {
		return nil, err
	}
	const allocs = 200
	return []row{
		{"check a request and issue", m[0] / 1000, m[1] / 1000, "µs", "crypto/x509: the same steps, without what is checked beside the signature", 1, false, nil},
		{"the same", m[0] / 1000, m[2] / 1000, "µs", "SPIRE's pkg/server/ca, after the same check of the request", 1, false, nil},
		{"allocations of the same", testing.AllocsPerRun(allocs, ours), testing.AllocsPerRun(allocs, spire), "allocs", "SPIRE", 0.75, false, nil},
		{"allocations of the same", testing.AllocsPerRun(allocs, ours), testing.AllocsPerRun(allocs, library), "allocs", "crypto/x509", 0, false, nil},
	}, nil
}

func ourSVID(request []byte) (op func(), err error) {
	ca, err := identity.NewCA(svidDomain, time.Now())
	if err != nil {
		return nil, err
	}
	id := identity.ID{TrustDomain: svidDomain, Kind: identity.Service, Name: "checkout"}
	return func() {
		csr, err := identity.ParseCSR(request)
		if err != nil {
			panic(err)
		}
		if _, err := ca.Sign(id, csr.Key, time.Now(), time.Hour, time.Minute); err != nil {
			panic(err)
		}
	}, nil
}

// authority is one that the peers sign with.
func authority() (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench authority 0123456789abcdef"}, // as long as ours
		URIs: []*url.URL{{Scheme: "spiffe", Host: svidDomain}}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

func checked(request []byte) *x509.CertificateRequest {
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		panic(err)
	}
	return csr
}

func librarySVID(request []byte) (op func(), err error) {
	cert, key, err := authority()
	if err != nil {
		return nil, err
	}
	return func() {
		csr := checked(request)
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
		if err != nil {
			panic(err)
		}
		now := time.Now()
		if _, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: serial, Subject: pkix.Name{Organization: []string{"bench"}}, URIs: []*url.URL{{Scheme: "spiffe", Host: svidDomain, Path: "/svc/checkout"}},
			DNSNames: []string{"checkout"}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		}, cert, csr.PublicKey, key); err != nil {
			panic(err)
		}
	}, nil
}

func spireSVID(request []byte) (op func(), err error) {
	domain := spiffeid.RequireTrustDomainFromString(svidDomain)
	builder, err := credtemplate.NewBuilder(credtemplate.Config{TrustDomain: domain, X509SVIDTTL: time.Hour})
	if err != nil {
		return nil, err
	}
	validator, err := credvalidator.New(credvalidator.Config{TrustDomain: domain})
	if err != nil {
		return nil, err
	}
	cert, key, err := authority()
	if err != nil {
		return nil, err
	}
	log := logrus.New()
	log.SetLevel(logrus.ErrorLevel)
	ca := spireca.NewCA(spireca.Config{Log: log, Metrics: telemetry.Blackhole{}, TrustDomain: domain, CredBuilder: builder, CredValidator: validator, HealthChecker: noHealth{}})
	ca.SetX509CA(&spireca.X509CA{Signer: key, Certificate: cert})
	id := spiffeid.RequireFromPath(domain, "/svc/checkout")
	ctx := context.Background()
	return func() {
		csr := checked(request)
		certs, err := ca.SignWorkloadX509SVID(ctx, spireca.WorkloadX509SVIDParams{PublicKey: csr.PublicKey, SPIFFEID: id, DNSNames: []string{"checkout"}, TTL: time.Hour})
		if err != nil || len(certs) == 0 {
			panic(fmt.Sprint("SPIRE's authority gave nothing: ", err))
		}
	}, nil
}

type noHealth struct{}

func (noHealth) AddCheck(string, health.Checkable) error { return nil }
