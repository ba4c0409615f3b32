package cli

import (
	"crypto/tls"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/sdk/dona/svidfile"
)

// secure returns how connections to hosts are secured: by the identity that --identity
// or DONA_IDENTITY names, and without one not at all. done ends its use.
func (a *app) secure() (creds credentials.TransportCredentials, done func(), err error) {
	dir, from := a.identity, "--identity"
	if dir == "" {
		dir, from = a.getenv("DONA_IDENTITY"), "DONA_IDENTITY"
	}
	if dir == "" {
		return insecure.NewCredentials(), func() {}, nil
	}
	id, err := svidfile.Open(dir, svidfile.Options{})
	if err != nil {
		return nil, nil, configuration("%s: %v", from, err)
	}
	own := id.ID().TrustDomain()
	c := tlsconfig.MTLSClientConfig(id, id, tlsconfig.AdaptMatcher(func(peer spiffeid.ID) error {
		name, isHost := strings.CutPrefix(peer.Path(), "/host/")
		if peer.TrustDomain() != own || !isHost || strings.Contains(name, "/") {
			return fmt.Errorf("%s answers, which is no host of %s", peer, own)
		}
		return nil
	}))
	c.MinVersion = tls.VersionTLS13
	return credentials.NewTLS(c), func() { _ = id.Close() }, nil
}
