package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// target is what one upstream proxy leads to. Each proxy has its own, so that what
// arrives there came through that proxy: as if it were the address that the proxy's
// traffic comes from.
type target struct {
	exit       string // the address that it calls its clients by
	plain, tls string // where it listens
	servers    [2]*http.Server
	serving    sync.WaitGroup

	mu      sync.Mutex
	got     int       // requests, without those that are held and those of checks
	last    time.Time // when the last of them came
	holding int
	slow    int           // answers of /slow under way, without TLS
	release chan struct{} // closed: what is held ends
}

// startTarget listens on two free ports, with TLS on the second.
func startTarget(exit string, certificate tls.Certificate) (*target, error) {
	t := &target{exit: exit, release: make(chan struct{})}
	for i := range t.servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.close()
			return nil, err
		}
		if i == 0 {
			t.plain = l.Addr().String()
		} else {
			t.tls = l.Addr().String()
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
		}
		server := &http.Server{Handler: t, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
		t.servers[i] = server
		t.serving.Go(func() { _ = server.Serve(l) })
	}
	return t, nil
}

func (t *target) close() {
	for _, s := range t.servers {
		if s != nil {
			_ = s.Close()
		}
	}
	t.serving.Wait()
}

// slowly is how long an answer of /slow takes.
const slowly = 200 * time.Millisecond

// ServeHTTP answers with the address that it calls its client by, /slow a little later.
// /hold goes on until it is released, and /repo.git is as much of a repository as git ls-remote asks for.
func (t *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Host == checkHost:
		fmt.Fprintln(w, t.exit)
		return
	case r.URL.Path == "/hold":
		t.hold(w, r)
		return
	}
	t.mu.Lock()
	t.got++
	t.last = time.Now()
	t.mu.Unlock()
	switch r.URL.Path {
	case "/repo.git/info/refs":
		fmt.Fprintf(w, "%s\trefs/heads/main\n", gitCommit)
	case "/repo.git/HEAD":
		fmt.Fprintln(w, "ref: refs/heads/main")
	case "/slow":
		if r.TLS == nil {
			t.count(1)
			defer t.count(-1)
		}
		select {
		case <-time.After(slowly):
		case <-r.Context().Done():
		}
		fmt.Fprintln(w, t.exit)
	default:
		fmt.Fprintln(w, t.exit)
	}
}

func (t *target) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slow += n
}

// busy reports whether somebody waits for an answer without TLS.
func (t *target) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slow > 0
}

func (t *target) hold(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	t.holding++
	release := t.release
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.holding--
		t.mu.Unlock()
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		fmt.Fprintln(w, "still here")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-tick.C:
		case <-release:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// letGo ends what is held.
func (t *target) letGo() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.release)
	t.release = make(chan struct{})
}

// seen is how many requests came, when the last did, and how many are held.
func (t *target) seen() (got int, last time.Time, holding int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.got, t.last, t.holding
}

// newCertificate makes a certificate for names and addresses, and what clients have to
// trust, in PEM.
func newCertificate(names []string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "example at " + names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// writeCertificate writes a new certificate and its key to a file.
func writeCertificate(file string, names []string) error {
	certificate, text, err := newCertificate(names)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), 0o600)
}
