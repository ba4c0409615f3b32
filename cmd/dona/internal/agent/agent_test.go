package agent_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/cmd/dona/internal/agent"
	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

const domain = "example.org"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// source is an SVID that a test replaces.
type source struct {
	now chan current
}

type current struct {
	svid    *identity.SVID
	changed chan struct{}
}

func newSource(s *identity.SVID) *source {
	f := &source{now: make(chan current, 1)}
	f.now <- current{s, make(chan struct{})}
	return f
}

func (f *source) Current() (*identity.SVID, <-chan struct{}) {
	c := <-f.now
	f.now <- c
	return c.svid, c.changed
}

func (f *source) replace(s *identity.SVID) {
	c := <-f.now
	f.now <- current{s, make(chan struct{})}
	close(c.changed)
}

func svid(ca *svidtest.CA, life time.Duration) *identity.SVID {
	return &identity.SVID{X509: ca.Issue("/svc/web", svidtest.Lasting(life)), Bundle: ca.Bundle()}
}

// serve runs an agent until the test ends.
func serve(t *testing.T, path string, f *source) {
	t.Helper()
	listener, err := agent.Listen(path)
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Serve(ctx, listener, f) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // t.TempDir's are longer than a socket's path may be
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "private", "a.sock")
}

// TestWorkloadAPI: go-spiffe's own client takes what the agent serves, and follows it.
func TestWorkloadAPI(t *testing.T) {
	ca, path := svidtest.NewCA(t, domain), socketPath(t)
	first := svid(ca, time.Hour)
	f := newSource(first)
	serve(t, path, f)
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(name)
		fatal(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr("unix://"+path)))
	fatal(t, err)
	defer func() { _ = x.Close() }()
	for n := range 20 {
		got, err := x.GetX509SVID()
		fatal(t, err)
		now, _ := f.Current()
		if got.ID != now.ID() || !got.Certificates[0].Equal(now.X509.Certificates[0]) {
			t.Fatalf("rotation %d: it is %s, serial %s", n, got.ID, got.Certificates[0].SerialNumber)
		}
		bundle, err := x.GetX509BundleForTrustDomain(now.ID().TrustDomain())
		fatal(t, err)
		if !bundle.Equal(now.Bundle) {
			t.Fatalf("rotation %d: another bundle", n)
		}
		if n == 10 { // with another authority beside the first
			more := ca.Bundle()
			more.AddX509Authority(svidtest.NewCA(t, domain).Bundle().X509Authorities()[0])
			f.replace(&identity.SVID{X509: svid(ca, time.Hour).X509, Bundle: more})
		} else {
			f.replace(svid(ca, time.Hour))
		}
		select {
		case <-x.Updated():
		case <-ctx.Done():
			t.Fatalf("rotation %d was not told", n)
		}
	}
	only, err := workloadapi.FetchX509Bundles(ctx, workloadapi.WithAddr("unix://"+path))
	fatal(t, err)
	if len(only.Bundles()) != 1 {
		t.Errorf("the bundles are %v", only.Bundles())
	}
}

// TestHeader: a call without the header is refused, whatever else it is.
func TestHeader(t *testing.T) {
	ca, path := svidtest.NewCA(t, domain), socketPath(t)
	serve(t, path, newSource(svid(ca, time.Hour)))
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	defer func() { _ = conn.Close() }()
	client := workload.NewSpiffeWorkloadAPIClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, md := range map[string]metadata.MD{"none": nil, "false": metadata.Pairs("workload.spiffe.io", "false"), "two": metadata.Pairs("workload.spiffe.io", "true", "workload.spiffe.io", "x")} {
		s, err := client.FetchX509SVID(metadata.NewOutgoingContext(ctx, md), &workload.X509SVIDRequest{})
		fatal(t, err)
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		b, err := client.FetchX509Bundles(metadata.NewOutgoingContext(ctx, md), &workload.X509BundlesRequest{})
		fatal(t, err)
		if _, err := b.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := client.FetchJWTBundles(metadata.NewOutgoingContext(ctx, md), &workload.JWTBundlesRequest{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExpired: an SVID that has ended is not handed out.
func TestExpired(t *testing.T) {
	ca, path := svidtest.NewCA(t, domain), socketPath(t)
	f := newSource(svid(ca, -time.Second))
	serve(t, path, f)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "workload.spiffe.io", "true"), time.Minute)
	defer cancel()
	s, err := workload.NewSpiffeWorkloadAPIClient(conn).FetchX509SVID(ctx, &workload.X509SVIDRequest{})
	fatal(t, err)
	if _, err := s.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an expired SVID: %v", err)
	}
	f.replace(svid(ca, time.Hour))
	s, err = workload.NewSpiffeWorkloadAPIClient(conn).FetchX509SVID(ctx, &workload.X509SVIDRequest{})
	fatal(t, err)
	if reply, err := s.Recv(); err != nil || reply.Svids[0].SpiffeId != "spiffe://example.org/svc/web" {
		t.Errorf("the next one: %v, %v", reply, err)
	}
}

// TestListen: where a socket is not opened, and that one left behind is no hindrance.
func TestListen(t *testing.T) {
	path := socketPath(t)
	listener, err := agent.Listen(path)
	fatal(t, err)
	if _, err := agent.Listen(path); err == nil || !strings.Contains(err.Error(), "serves it already") {
		t.Errorf("a second agent: %v", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // as one that is killed
	fatal(t, listener.Close())
	again, err := agent.Listen(path)
	fatal(t, err)
	fatal(t, again.Close())

	fatal(t, os.WriteFile(path, []byte("x"), 0o600))
	if _, err := agent.Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	fatal(t, os.Remove(path))
	fatal(t, os.Chmod(filepath.Dir(path), 0o755))
	if _, err := agent.Listen(path); err == nil || !strings.Contains(err.Error(), "0755") {
		t.Errorf("a folder for all: %v", err)
	}
	if _, err := agent.Listen("/" + strings.Repeat("a", 108)); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a long path: %v", err)
	}
}
