package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/dodona-project/dodona/sdk/dona"
)

// Variant is one process of the demo's service: some endpoints of one variant.
type Variant struct {
	Target       string                           // the host
	Credentials  credentials.TransportCredentials // of connections to it; nil = plaintext
	Service      string
	Name         string
	Endpoints    int
	Region       string
	Latency      time.Duration // of an answer, about
	ErrorPercent int           // of the answers are 500
}

// Serve runs the endpoints of a variant: an HTTP server each, registered through
// the SDK. It ends when ctx or stdin does, and deregisters before it stops
// answering.
func Serve(ctx context.Context, v Variant, stdin io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // its end is what counts
		cancel()
	}()
	options := []dona.Option{dona.WithoutCache(), dona.WithCaller(v.Service, v.Region)}
	if v.Credentials != nil {
		options = append(options, dona.WithTransportCredentials(v.Credentials))
	}
	client, err := dona.Dial(ctx, v.Target, options...)
	if err != nil {
		return fmt.Errorf("demo-service: %w", err)
	}
	server := &http.Server{Handler: v.handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, v.Endpoints)
	for i := range v.Endpoints {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return errors.Join(fmt.Errorf("demo-service: %w", err), client.Close(), server.Close())
		}
		go func() { served <- server.Serve(listener) }()
		_, err = client.Register(ctx, dona.OwnEndpoint{
			Service: v.Service, ID: fmt.Sprintf("%s-%c", v.Name, 'a'+i), Address: listener.Addr().String(),
			Variant: v.Name, Region: v.Region,
		})
		if err != nil {
			return errors.Join(fmt.Errorf("demo-service: %w", err), client.Close(), server.Close())
		}
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-served:
		failed = fmt.Errorf("demo-service: %w", failed)
	}
	// First nobody picks the endpoints any more, then they stop.
	err = client.Close()
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	return errors.Join(failed, err, server.Shutdown(grace))
}

// handler answers after about the variant's latency, some of the time with 500.
func (v Variant) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := time.Duration(float64(v.Latency) * (0.5 + rand.Float64()))
		select {
		case <-r.Context().Done():
			return
		case <-time.After(wait):
		}
		w.Header().Set("X-Variant", v.Name)
		if rand.IntN(100) < v.ErrorPercent {
			http.Error(w, v.Name+" failed", http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "%s of %s\n", v.Service, v.Name)
	})
}
