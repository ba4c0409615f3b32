package badplugins

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// theBroker is go-plugin's way from a plugin back into the host; only raw
// plugins have it.
var theBroker *goplugin.GRPCBroker

// dialBroker asks the host for a service that it was not given, and answers
// with the error that it gets.
func dialBroker(_ context.Context, arg string, reply *pluginv1.EvaluateReply) error {
	if theBroker == nil {
		return fmt.Errorf("no broker here")
	}
	conn, err := theBroker.Dial(uint32(number(arg)))
	if err == nil {
		reply.Detail = "connected"
		return conn.Close()
	}
	return fmt.Errorf("no service: %w", err)
}

// floodBroker offers the host very many services that nobody asked for.
func floodBroker(_ context.Context, arg string, reply *pluginv1.EvaluateReply) error {
	if theBroker == nil {
		return fmt.Errorf("no broker here")
	}
	most := number(arg)
	var offered atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for offered.Load() < int64(most) {
			l, err := theBroker.Accept(uint32(offered.Load() + 10))
			if err != nil {
				return
			}
			_ = l.Close()
			offered.Add(1)
		}
	}()
	select {
	case <-done:
	case <-time.After(3 * time.Second): // nobody listens
	}
	reply.Detail = fmt.Sprintf("offered %d", offered.Load())
	return nil
}

// intrude is another process of the same user: it connects to the socket of a
// plugin and calls it, without TLS and with a certificate of its own making,
// and prints what came of it.
func intrude(socket string) {
	own, err := certificate()
	if err != nil {
		fmt.Println("no certificate:", err)
		return
	}
	for _, try := range []struct {
		how   string
		creds credentials.TransportCredentials
	}{
		{"plaintext", insecure.NewCredentials()},
		{"no certificate", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})},
		{"own certificate", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own}})},
	} {
		fmt.Printf("%s: %s\n", try.how, describeOver(socket, try.creds))
	}
}

func describeOver(socket string, creds credentials.TransportCredentials) string {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(creds))
	if err != nil {
		return "refused: " + err.Error()
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := pluginv1.NewLifecycleClient(conn).Describe(ctx, &pluginv1.DescribeRequest{})
	if err != nil {
		return "refused: " + err.Error()
	}
	return "answered: " + d.GetName()
}

func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
