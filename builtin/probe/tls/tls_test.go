package tls_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	probe "github.com/dodona-project/dodona/builtin/probe/tls"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const day = 24 * time.Hour

// certificate makes a self-signed one for shop.example, valid for so long from now,
// or from then.
func certificate(t *testing.T, from, until time.Duration) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shop"}, DNSNames: []string{"shop.example"},
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func withCertificate(t *testing.T, cert tls.Certificate) string {
	address, _ := talk.Serve(t, func(c net.Conn) {
		conn := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		_ = conn.Handshake()
		_, _ = io.Copy(io.Discard, conn)
	})
	return address
}

func check(t *testing.T, c probe.Config, address string, within time.Duration) *pluginv1.CheckReply {
	t.Helper()
	c.Allow = []string{reach.Loopback}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return probe.Probe{}.CheckWith(ctx, c, &pluginv1.CheckRequest{EndpointAddress: address})
}

func TestCertificates(t *testing.T) {
	for _, tc := range []struct {
		name        string
		from, until time.Duration
		config      probe.Config
		trusted     bool
		good        bool
		says        string
	}{
		{"good", -day, 30*day + time.Hour, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}}, true, true, "30 days"},
		{"good for long enough", -day, 30*day + time.Hour, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}, MinDays: 30}, true, true, "30 days"},
		{"not for long enough", -day, 30 * day, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}, MinDays: 31}, true, false, "expires"},
		{"expired", -2 * day, -day, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}}, true, false, "expired"},
		{"expired, and who signed it does not matter", -2 * day, -day, probe.Config{TLS: reach.TLS{SkipVerify: true}}, false, false, "expires"},
		{"not valid yet", day, 30 * day, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}}, true, false, "not yet valid"},
		{"not valid yet, and who signed it does not matter", day, 30 * day, probe.Config{TLS: reach.TLS{SkipVerify: true}}, false, false, "not valid before"},
		{"not trusted", -day, 30 * day, probe.Config{TLS: reach.TLS{ServerName: "shop.example"}}, false, false, "unknown authority"},
		{"another name", -day, 30 * day, probe.Config{TLS: reach.TLS{ServerName: "pay.example"}}, true, false, "pay.example"},
		{"the address is no name of it", -day, 30 * day, probe.Config{}, true, false, "127.0.0.1"},
		{"whatever", -day, 30*day + time.Hour, probe.Config{TLS: reach.TLS{SkipVerify: true}}, false, true, "30 days"},
	} {
		cert, ca := certificate(t, tc.from, tc.until)
		if tc.trusted {
			tc.config.CA = ca
		}
		r := check(t, tc.config, withCertificate(t, cert), 20*time.Second)
		want := controlplanev1.ErrorClass_ERROR_CLASS_TLS
		if tc.good {
			want = 0
		}
		if (r.Result == controlplanev1.HealthObservation_RESULT_SUCCESS) != tc.good || r.ErrorClass != want || !strings.Contains(r.Detail, tc.says) {
			t.Errorf("%s: %v, want %v, %q", tc.name, r, want, tc.says)
		}
	}
}

func TestBadServers(t *testing.T) {
	endless := func(c net.Conn) {
		talk.Endless(c, strings.Repeat("\x16\x03\x03\x00\x04\x02\x00\x00\x00", 500), 0)
	}
	for _, tc := range []struct {
		name   string
		talk   func(net.Conn)
		class  controlplanev1.ErrorClass
		within time.Duration
	}{
		{"plain text", func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, controlplanev1.ErrorClass_ERROR_CLASS_TLS, 20 * time.Second},
		{"silence", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, 500 * time.Millisecond},
		{"hangs up", func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }, controlplanev1.ErrorClass_ERROR_CLASS_RESET, 20 * time.Second},
		{"without end", endless, controlplanev1.ErrorClass_ERROR_CLASS_TLS, 20 * time.Second},
	} {
		address, _ := talk.Serve(t, tc.talk)
		if r := check(t, probe.Config{}, address, tc.within); r.Result != controlplanev1.HealthObservation_RESULT_FAILURE || r.ErrorClass != tc.class {
			t.Errorf("%s: %v, want %v", tc.name, r, tc.class)
		}
	}
	address, _ := talk.Serve(t, func(net.Conn) { t.Error("connected") })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r := (probe.Probe{}).CheckWith(ctx, probe.Config{}, &pluginv1.CheckRequest{EndpointAddress: address}); r.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE {
		t.Errorf("loopback: %v", r)
	}
}
