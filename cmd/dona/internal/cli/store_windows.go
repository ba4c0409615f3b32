package cli

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

var errNoHosts = failed("UNIMPLEMENTED", "hosts do not run on Windows: do this on the machine of the host")

func checkOffline(context.Context, string, string, string) (*donav1.CheckStoreReply, error) {
	return nil, errNoHosts
}

func restoreOffline(string, string) error { return errNoHosts }
