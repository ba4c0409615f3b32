package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
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
	// Say is told in a line what goes on: who is served, or that no host has
	// accepted the endpoints yet. It is called by one goroutine; nil = nobody is told.
	Say func(line string)
}

// sayAfter is how long endpoints may wait for a host before somebody is told.
const sayAfter = 3 * time.Second

// Serve runs the endpoints of a variant: an HTTP server each, registered through
// the SDK. It ends when ctx or stdin does, and deregisters before it stops
// answering. An error means that it could not serve, or that a host refused an
// endpoint; one that is away is waited for.
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
	var registered []*dona.Registration
	var where []string
	for i := range v.Endpoints {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return errors.Join(fmt.Errorf("demo-service: %w", err), client.Close(), server.Close())
		}
		go func() { served <- server.Serve(listener) }()
		e := dona.OwnEndpoint{
			Service: v.Service, ID: fmt.Sprintf("%s-%c", v.Name, 'a'+i), Address: listener.Addr().String(),
			Variant: v.Name, Region: v.Region,
		}
		r, err := client.Register(ctx, e)
		if err != nil {
			return errors.Join(fmt.Errorf("demo-service: %w", err), client.Close(), server.Close())
		}
		registered, where = append(registered, r), append(where, e.ID+" at "+e.Address)
	}
	refused := make(chan error, 1)
	told := make(chan struct{})
	go func() {
		defer close(told)
		if err := v.accepted(ctx, registered, where); err != nil && ctx.Err() == nil {
			refused <- err
		}
	}()
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-served:
		failed = fmt.Errorf("demo-service: %w", failed)
	case failed = <-refused:
		failed = fmt.Errorf("demo-service: %w", failed)
	}
	cancel()
	<-told
	// First nobody picks the endpoints any more, then they stop.
	err = client.Close()
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	return errors.Join(failed, err, server.Shutdown(grace))
}

// accepted waits until a host has accepted every endpoint, and says so. The error is
// the refusal of one.
func (v Variant) accepted(ctx context.Context, registered []*dona.Registration, where []string) error {
	say := func(format string, args ...any) {
		if v.Say != nil {
			v.Say(fmt.Sprintf(format, args...))
		}
	}
	patience, stop := context.WithTimeout(ctx, sayAfter)
	defer stop()
	for _, r := range registered {
		err := r.Wait(patience)
		if err != nil && patience.Err() != nil && ctx.Err() == nil {
			problem := r.Problem()
			if problem == nil {
				problem = fmt.Errorf("the host at %s does not answer", v.Target)
			}
			say("%s of %s is not registered yet, and tries again: %v", v.Name, v.Service, problem)
			patience = ctx
			err = r.Wait(ctx)
		}
		if err != nil {
			return err
		}
	}
	say("serves %s of %s until its input ends (Ctrl-D): %s", v.Name, v.Service, strings.Join(where, ", "))
	return nil
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
