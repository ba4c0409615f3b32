// Package agent serves an SVID to the programs of its machine over the SPIFFE Workload
// API on a unix socket, so that any SPIFFE client takes it and follows its rotation.
// dona svid agent runs it. Whoever may open the socket gets the SVID with its key, so
// the socket and its folder are for their owner only.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/sdk/dona/identity"
)

// maxSocketLen is what the kernel takes of a socket's path, in bytes.
const maxSocketLen = 107

// Listen opens the socket: mode 0600 in a folder that is made with mode 0700, or that
// only its owner can write. A socket that an agent left behind is replaced.
func Listen(path string) (net.Listener, error) {
	if len(path) > maxSocketLen {
		return nil, fmt.Errorf("its path has %d bytes: allowed are at most %d", len(path), maxSocketLen)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("the folder %s has mode %04o, others than its owner must have no access: use one of its own, or chmod 700 %s", dir, mode, dir)
	}
	if err := makeWay(path); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// makeWay removes a socket that nobody serves any more.
func makeWay(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return errors.New("it is there and no socket; name another path")
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return errors.New("an agent serves it already")
	}
	return os.Remove(path)
}

// Source gives the SVID, and a channel that is closed when there is another one: an
// identity.Rotating.
type Source interface {
	Current() (*identity.SVID, <-chan struct{})
}

// Serve serves an SVID on the listener until ctx ends.
func Serve(ctx context.Context, listener net.Listener, svid Source) error {
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := meant(ctx); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := meant(ss.Context()); err != nil {
				return err
			}
			return handler(srv, ss)
		}),
		grpc.MaxRecvMsgSize(64<<10), grpc.MaxHeaderListSize(8<<10), grpc.MaxConcurrentStreams(250), grpc.ConnectionTimeout(5*time.Second),
	)
	workload.RegisterSpiffeWorkloadAPIServer(server, &api{svid: svid, stopping: ctx.Done()})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		server.Stop()
		return <-served
	}
}

// meant refuses a call without the header that a program sets which means this API, and
// that one does not set which was talked into a request.
func meant(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if !slices.Equal(md.Get("workload.spiffe.io"), []string{"true"}) {
		return status.Error(codes.InvalidArgument, "security header missing from request: set workload.spiffe.io to true")
	}
	return nil
}

type api struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	svid     Source
	stopping <-chan struct{}
}

// FetchX509SVID sends the SVID, and each one that takes its place.
func (a *api) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	return a.each(stream.Context(), func(s *identity.SVID) error {
		certs, key, err := s.X509.MarshalRaw()
		if err != nil {
			return status.Error(codes.Internal, "the SVID cannot be written")
		}
		return stream.Send(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{
			{SpiffeId: s.ID().String(), X509Svid: certs, X509SvidKey: key, Bundle: authorities(s)},
		}})
	})
}

// FetchX509Bundles sends the bundle of the trust domain, and each one that takes its
// place.
func (a *api) FetchX509Bundles(_ *workload.X509BundlesRequest, stream workload.SpiffeWorkloadAPI_FetchX509BundlesServer) error {
	return a.each(stream.Context(), func(s *identity.SVID) error {
		return stream.Send(&workload.X509BundlesResponse{Bundles: map[string][]byte{s.ID().TrustDomain().IDString(): authorities(s)}})
	})
}

func (a *api) each(ctx context.Context, send func(*identity.SVID) error) error {
	for {
		s, changed := a.svid.Current()
		if !time.Now().Before(s.Expires()) {
			return status.Error(codes.PermissionDenied, "no identity issued: the SVID has expired, and no host has renewed it yet")
		}
		if err := send(s); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-a.stopping:
			return status.Error(codes.Unavailable, "the agent stops")
		}
	}
}

// authorities is a bundle as the API has it: one DER after another.
func authorities(s *identity.SVID) (all []byte) {
	for _, c := range s.Bundle.X509Authorities() {
		all = append(all, c.Raw...)
	}
	return all
}
