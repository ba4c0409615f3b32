package redis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// In a Cluster all keys of a store lie in one slot, whoever of the nodes is asked
// for it; and when the slot moves, the store moves with it.
func TestCluster(t *testing.T) {
	settings := append([]string{"cluster-enabled", "yes", "cluster-require-full-coverage", "no"}, redistest.Safe...)
	left, right := redistest.Start(t, settings...), redistest.Start(t, settings...)
	left.Do("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
	right.Do("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
	left.Do("CLUSTER", "MEET", "127.0.0.1", right.Port())
	redistest.Await(t, "the nodes know each other's slots", func() bool {
		for _, s := range []*redistest.Server{left, right} {
			info := fmt.Sprint(s.Do("CLUSTER", "INFO"))
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_assigned:16384") {
				return false
			}
		}
		return true
	})
	at := map[string]int{}
	for range 8 {
		cluster := newCluster()
		o := options(t, "redis+cluster://"+left.Addr, cluster)
		s := open(t, o)
		for i := range 5 {
			must(t, count(s, store.Hard, fmt.Sprint(i)))
		}
		counted(t, s)
		if d := s.Info().Durability; !strings.HasPrefix(d, "not durable: store.redis.replicas is 0") {
			t.Errorf("durability: %s", d)
		}
		if left.Do("CLUSTER", "KEYSLOT", "{dona:"+cluster+"}:meta").(int64) < 8192 {
			at["left"]++
		} else {
			at["right"]++
		}
	}
	if len(at) != 2 {
		t.Errorf("all stores are at one node: %v", at)
	}
	// A whole Cluster is not one server.
	o := options(t, url(left), newCluster())
	o.CallTimeout = 100 * time.Millisecond
	s, err := redis.Open(t.Context(), o)
	must(t, err)
	_ = s.Close()
	o = options(t, "redis+cluster://"+redistest.Start(t, redistest.Safe...).Addr, newCluster())
	s, err = redis.Open(t.Context(), o)
	must(t, err)
	defer s.Close()
	if !strings.Contains(state(s), "use redis:// in store") {
		t.Errorf("a server that is no node of a Cluster: %s", state(s))
	}
}

// authority signs certificates for tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(dir, name+".pem")}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	must(t, err)
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	must(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// issue makes a server's certificate and key and returns their files.
func (a *authority) issue(t *testing.T, dir, name string, ends time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	must(t, err)
	text, err := x509.MarshalECPrivateKey(k)
	must(t, err)
	cert, key = filepath.Join(dir, name+"-cert.pem"), filepath.Join(dir, name+"-key.pem")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600))
	return cert, key
}

// With rediss only a server that the authority vouches for is spoken to, and never
// in plain text.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	good, other := newAuthority(t, dir, "good"), newAuthority(t, dir, "other")
	serve := func(name string, ends time.Time) string {
		cert, key := good.issue(t, dir, name, ends)
		server := redistest.Start(t, append([]string{"tls-port", "0", "tls-cert-file", cert, "tls-key-file", key,
			"tls-ca-cert-file", good.file, "tls-auth-clients", "no"}, redistest.Safe...)...)
		addr, err := loopback.Free()
		must(t, err)
		_, port, _ := net.SplitHostPort(addr)
		server.Do("CONFIG", "SET", "tls-port", port)
		return addr
	}
	fresh := serve("redis.test", time.Now().Add(time.Hour))
	expired := serve("old.test", time.Now().Add(-time.Hour))
	plain := redistest.Start(t, redistest.Safe...).Addr
	for _, tt := range []struct {
		name, addr, ca, server, want string
	}{
		{"as it should be", fresh, good.file, "", "ready"},
		{"by its name", fresh, good.file, "redis.test", "ready"},
		{"another name", fresh, good.file, "else.test", "certificate"},
		{"another authority", fresh, other.file, "", "certificate"},
		{"nobody known", fresh, "", "", "certificate"},
		{"expired", expired, good.file, "", "certificate"},
		{"a server without TLS", plain, good.file, "", "not available"},
	} {
		o := options(t, "rediss://"+tt.addr, newCluster())
		o.Target.CAFile, o.Target.ServerName = tt.ca, tt.server
		o.CallTimeout = time.Second
		s, err := redis.Open(t.Context(), o)
		must(t, err)
		if !strings.Contains(state(s), tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, state(s), tt.want)
		}
		if tt.want == "ready" {
			must(t, put(s, store.Hard, "k", "v"))
		} else if err := put(s, store.Hard, "k", "v"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: a write: %v", tt.name, err)
		}
		must(t, s.Close())
	}
}
