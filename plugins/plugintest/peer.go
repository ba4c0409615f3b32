package plugintest

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
)

// targetMark is what a configuration has where the suite's server is meant.
const targetMark = "${TARGET}"

func substitute(v *structpb.Value, address string) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		k.StringValue = strings.ReplaceAll(k.StringValue, targetMark, address)
	case *structpb.Value_StructValue:
		for _, f := range k.StructValue.GetFields() {
			substitute(f, address)
		}
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			substitute(e, address)
		}
	}
}

// A peer is a server that a plugin under test may ask.
type peer struct {
	address string
	close   func()
}

// talking answers every HTTP request with 200.
func talking() (*peer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	return &peer{address: l.Addr().String(), close: func() { _ = s.Close(); <-served }}, nil
}

// silent takes connections and never says anything.
func silent() (*peer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var held []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			held = append(held, c)
			mu.Unlock()
		}
	}()
	return &peer{address: l.Addr().String(), close: func() {
		_ = l.Close()
		<-done
		for _, c := range held {
			_ = c.Close()
		}
	}}, nil
}

// absent is an address at which nobody listens.
func absent() (*peer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &peer{address: l.Addr().String(), close: func() {}}, l.Close()
}
