package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/name"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// ProtocolVersion is the version of the worker protocol that this package speaks.
const ProtocolVersion = 1

// DefaultSafetyMargin is how long after its snapshot became stale a worker may have
// things running, where neither the host nor the configuration says.
const DefaultSafetyMargin = 10 * time.Second

// Config says who a worker is and whom it asks.
type Config struct {
	// Target is host:port of a control-plane host, or several of one deployment, separated
	// by commas.
	Target string

	ClusterID  string // of the deployment: a snapshot of another one is refused
	WorkerID   string // the logical node; a second process with it replaces the first
	InstanceID string // this process
	Zone       string // may be empty
	Build      string // for people; may be empty
	// MaxConnections is how much this worker takes at once; 0 = it does not say.
	MaxConnections uint32

	// Credentials secure the connections; nil = plaintext, for loopback.
	Credentials credentials.TransportCredentials
	// Dialer replaces how connections are opened; nil = by TCP.
	Dialer func(ctx context.Context, address string) (net.Conn, error)

	// SafetyMargin is the longest time between Stale and Ended; 0 = what the host says. It
	// shortens what the host says and never lengthens it: the host gives the proxies to
	// others then.
	SafetyMargin time.Duration
	// Own is where this worker listens itself: no target policy lets anybody there.
	Own target.Own

	// OnView is called after each swap and before the snapshot is acknowledged, with the
	// View before (nil at first) and the one now. It delays the acknowledgement, so it is
	// fast. nil = nobody.
	OnView func(old, now *View)
	// OnState is called when the State changes, one call at a time. nil = nobody.
	OnState func(State)

	Log *slog.Logger // nil = nowhere

	random func() float64 // in [0, 1), for waits; nil = random
}

// margin is the time between Stale and Ended, by what a host said, nil = nothing.
func (c *Config) margin(said *durationpb.Duration) time.Duration {
	if said.CheckValid() != nil || said.AsDuration() < 0 {
		return cmp.Or(c.SafetyMargin, DefaultSafetyMargin)
	}
	if c.SafetyMargin > 0 {
		return min(c.SafetyMargin, said.AsDuration())
	}
	return said.AsDuration()
}

// fill checks a configuration and sets what it leaves out.
func (c *Config) fill() (addresses []string, err error) {
	var wrong []error
	if addresses, err = hosts.Parse(c.Target); err != nil {
		wrong = append(wrong, fmt.Errorf("target %w", err))
	}
	for _, f := range []struct {
		what, value string
		check       func(string) error
		optional    bool
	}{
		{"cluster id", c.ClusterID, name.Name, false},
		{"worker id", c.WorkerID, name.Name, false},
		{"instance id", c.InstanceID, name.ID, false},
		{"zone", c.Zone, name.Name, true},
	} {
		if f.optional && f.value == "" {
			continue
		}
		if err := f.check(f.value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s %w", f.what, err))
		}
	}
	if c.SafetyMargin < 0 {
		wrong = append(wrong, fmt.Errorf("safety margin is %v: allowed is 0 or more", c.SafetyMargin))
	}
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.random == nil {
		c.random = rand.Float64
	}
	return addresses, errors.Join(wrong...)
}
