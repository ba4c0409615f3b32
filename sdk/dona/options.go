package dona

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/internal/name"
)

// Option changes how a client is made.
type Option func(*options)

type options struct {
	credentials   credentials.TransportCredentials
	dialer        func(context.Context, string) (net.Conn, error)
	private       bool // connections of this client alone
	trustDomain   string
	cacheDir      string
	noCache       bool
	callerService string
	callerRegion  string
	interval      time.Duration
	log           *slog.Logger
	observer      Observer // nil = nobody
	random        func() float64
}

// WithTransportCredentials sets how connections are secured; plaintext without it.
// A client with it shares no connection with other clients.
func WithTransportCredentials(c credentials.TransportCredentials) Option {
	return func(o *options) { o.credentials, o.private = c, true }
}

// WithIdentity secures connections with mTLS: each new one shows the SVID that the source
// has then, and the other side has to be a host of the same trust domain. The source is
// an identity.Rotating, a svidfile.Source, or any of go-spiffe's. A client with it
// shares no connection with other clients.
func WithIdentity(source identity.Source) Option {
	return WithTransportCredentials(credentials.NewTLS(identity.ClientTLS(source)))
}

// WithDialer replaces how connections are opened. A client with it shares no
// connection with other clients.
func WithDialer(dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dialer, o.private = dial, true }
}

// WithTrustDomain names the trust domain of the hosts. The last good snapshots are
// then kept in $XDG_CACHE_HOME/dona/<trust domain>/<service>.
//
// Without a trust domain nothing says which deployment a file belongs to, so
// nothing is kept on disk unless WithCacheDir names a folder.
func WithTrustDomain(domain string) Option { return func(o *options) { o.trustDomain = domain } }

// WithCacheDir keeps the last good snapshots in dir, one file per service. Clients
// and processes of the same deployment may share it.
func WithCacheDir(dir string) Option { return func(o *options) { o.cacheDir = dir } }

// WithoutCache keeps nothing on disk.
func WithoutCache() Option { return func(o *options) { o.noCache = true } }

// WithCaller says on behalf of which service and region this process calls. Either
// may be empty.
func WithCaller(service, region string) Option {
	return func(o *options) { o.callerService, o.callerRegion = service, region }
}

// WithReportInterval sets how long outcomes are gathered before they are sent; 1 s
// without it, at least 10 ms.
func WithReportInterval(d time.Duration) Option { return func(o *options) { o.interval = d } }

// WithLogger sets where the client logs; nowhere without it.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

func newOptions(opts []Option) (*options, error) {
	o := &options{credentials: insecure.NewCredentials(), interval: time.Second, log: slog.New(slog.DiscardHandler), random: rand.Float64}
	for _, opt := range opts {
		opt(o)
	}
	o.interval = max(o.interval, 10*time.Millisecond)
	if o.callerService != "" {
		if err := name.Service(o.callerService); err != nil {
			return nil, fmt.Errorf("caller service %w", err)
		}
	}
	if o.callerRegion != "" {
		if err := name.Name(o.callerRegion); err != nil {
			return nil, fmt.Errorf("caller region %w", err)
		}
	}
	if o.noCache {
		o.cacheDir = ""
		return o, nil
	}
	if o.cacheDir == "" && o.trustDomain != "" {
		if strings.ContainsAny(o.trustDomain, `/\:`) || strings.HasPrefix(o.trustDomain, ".") {
			return nil, fmt.Errorf("trust domain %q: allowed is a name like prod.example.org", o.trustDomain)
		}
		base := os.Getenv("XDG_CACHE_HOME")
		if base == "" {
			var err error
			if base, err = os.UserCacheDir(); err != nil {
				o.log.Warn("no folder for snapshots: they are not kept on disk", "error", err)
				return o, nil
			}
		}
		o.cacheDir = filepath.Join(base, "dona", o.trustDomain)
	}
	return o, nil
}
