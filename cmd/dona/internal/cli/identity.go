package cli

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/sdk/dona/identity"
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
	return credentials.NewTLS(identity.ClientTLS(id)), func() { _ = id.Close() }, nil
}
