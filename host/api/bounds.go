package api

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/refusal"
)

// Bounds are of what one peer sends and keeps open. What is 0 has its default.
type Bounds struct {
	MessageBytes   int           // of one message received; 0 = 4 MiB. Rules may allow less
	Streams        uint32        // calls at once on one connection: gRPC lets more wait at the client; 0 = 250
	StreamDuration time.Duration // of a stream of a worker or checker; 0 = no bound

	KeepaliveTime    time.Duration // without a byte, until the host asks whether the peer is there; 0 = 20 s
	KeepaliveTimeout time.Duration // for the answer; 0 = 10 s
	KeepaliveMinTime time.Duration // that a peer has to wait between two such questions; 0 = 10 s
}

func (b Bounds) filled() Bounds {
	b.MessageBytes = min(cmp.Or(b.MessageBytes, statsMessage), statsMessage)
	b.Streams = cmp.Or(b.Streams, 250)
	b.KeepaliveTime = cmp.Or(b.KeepaliveTime, 20*time.Second)
	b.KeepaliveTimeout = cmp.Or(b.KeepaliveTimeout, 10*time.Second)
	b.KeepaliveMinTime = cmp.Or(b.KeepaliveMinTime, 10*time.Second)
	return b
}

// lasts is how long a stream may last; 0 = as long as it likes.
func (g *guard) lasts(method string) time.Duration {
	for _, service := range []string{controlplanev1.WorkerControlPlane_ServiceDesc.ServiceName, controlplanev1.CheckerControlPlane_ServiceDesc.ServiceName} {
		if strings.HasPrefix(method, "/"+service+"/") {
			return g.longest
		}
	}
	return 0
}

// errLongEnough ends a stream that lasted as long as one may.
var errLongEnough = errors.New("the stream lasted as long as one may")

func longEnough(lasts time.Duration) error {
	return &refusal.Error{Kind: refusal.Unavailable, Cause: errLongEnough,
		Text: fmt.Sprintf("this stream has lasted %s, as long as a stream may: open another one, on any host", lasts)}
}
