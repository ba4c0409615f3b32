// Ingress is an example of an HTTP server at the edge: it brings requests from
// outside to services by the ingress rules that an operator set with
//
//	dona ingress set checkout shop.example.com/api
//
// It calls as a service of its own, so that what it asks for can be told apart,
// and a user stays with a variant by a cookie.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dodona-project/dodona/sdk/dona"
)

func main() {
	host := flag.String("host", "127.0.0.1:7600", "host:port of the control plane; several with commas")
	listen := flag.String("listen", "127.0.0.1:8080", "where to listen")
	caller := flag.String("caller", "edge", "the service that this one calls as")
	region := flag.String("region", "", "where it runs")
	refresh := flag.Duration("refresh", 0, "how often the rules are read again; 0 = 5s")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *host, *listen, *caller, *region, *refresh); err != nil {
		fmt.Fprintln(os.Stderr, "ingress:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, host, listen, caller, region string, refresh time.Duration) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client, err := dona.Dial(ctx, host, dona.WithCaller(caller, region), dona.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	edge, err := client.Ingress(dona.IngressConfig{Refresh: refresh, Request: request})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	server := &http.Server{Handler: edge, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// request keeps a user with a variant, and lets flags look at the language.
func request(r *http.Request) dona.Request {
	req := dona.Request{Attributes: []dona.Attribute{dona.String("language", r.Header.Get("Accept-Language"))}}
	if c, err := r.Cookie("user"); err == nil && len(c.Value) <= 1024 {
		req.Unit = c.Value
	}
	return req
}
