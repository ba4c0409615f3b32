package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/metadata"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/session"
)

// endCap bounds the transaction that gives a lease up: the stream's own context
// is over by then.
const endCap = 2 * time.Second

// RegisterEndpoint keeps an endpoint in the snapshots for as long as the stream
// and its heartbeats last.
func (s *ControlPlane) RegisterEndpoint(stream donav1.ControlPlane_RegisterEndpointServer) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return refusal.Field("service", "is absent: the first message registers the endpoint, and none came")
	}
	if err != nil {
		return err
	}
	if err := checkEndpoint(first); err != nil {
		return err
	}
	if err := who(stream.Context()).is(identity.Service, "service", first.Service); err != nil {
		return err
	}
	lease, err := s.Sessions.Register(stream.Context(), session.Registration{
		Scope: first.Service, ID: first.EndpointId, Report: load(first), Payload: first,
	})
	if err != nil {
		return err
	}
	ack, reason, err := s.serveEndpoint(stream, first, lease)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stream.Context()), endCap)
	defer cancel()
	beats, endErr := lease.End(ctx, reason)
	if err != nil {
		return err
	}
	if endErr != nil {
		return endErr
	}
	ack.Heartbeats = beats
	return stream.SendAndClose(ack)
}

// serveEndpoint takes heartbeats until the stream has to end, and says why.
func (s *ControlPlane) serveEndpoint(stream donav1.ControlPlane_RegisterEndpointServer, first *donav1.EndpointHeartbeat, lease *session.Stream) (*donav1.RegisterAck, session.Reason, error) {
	// Acceptance goes out at once; the reply only comes at the end.
	if err := stream.SendHeader(metadata.Pairs(
		"dona-lease-id", lease.LeaseID(),
		"dona-heartbeat-ms", strconv.FormatInt(s.Sessions.Heartbeat().Milliseconds(), 10),
	)); err != nil {
		return nil, session.Broken, err
	}
	beats := receive(stream)
	for {
		select {
		case <-lease.Done():
			err := lease.Err()
			if refusal.Is(err, refusal.Unavailable) {
				return nil, session.ByHost, err
			}
			return nil, session.Broken, err // replaced or expired: nothing of it is left to end
		case <-stream.Context().Done():
			why := session.Broken
			if errors.Is(context.Cause(stream.Context()), errExpired) {
				why = session.ByHost // it is told to come again with a new certificate
			}
			return nil, why, stream.Context().Err()
		case m := <-beats:
			if errors.Is(m.err, io.EOF) {
				return &donav1.RegisterAck{LeaseId: lease.LeaseID()}, session.Goodbye, nil
			}
			if m.err != nil {
				return nil, session.Broken, m.err
			}
			if err := checkBeat(first, m.beat); err != nil {
				return nil, session.Refused, err
			}
			if err := lease.Beat(stream.Context(), load(m.beat), m.beat); err != nil {
				var refused *refusal.Error
				if errors.As(err, &refused) {
					return nil, session.Refused, err
				}
				// The store is not well; the lease stands and the next beat may work.
			}
		}
	}
}

type received struct {
	beat *donav1.EndpointHeartbeat
	err  error
}

// receive reads the stream beside the handler, so that the host can end it while
// the client is silent. It ends with the stream: a handler's return makes Recv
// fail.
func receive(stream donav1.ControlPlane_RegisterEndpointServer) <-chan received {
	beats := make(chan received)
	go func() {
		for {
			beat, err := stream.Recv()
			select {
			case beats <- received{beat, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return beats
}

func load(b *donav1.EndpointHeartbeat) session.Report {
	return session.Report{Sequence: b.Sequence, Utilization: b.Utilization, InFlight: b.InFlight, Capacity: b.Capacity}
}

func checkEndpoint(b *donav1.EndpointHeartbeat) error {
	for _, c := range []struct {
		field string
		err   error
	}{
		{"service", limits.Service(b.Service)},
		{"endpoint_id", limits.ID(b.EndpointId)},
		{"address", limits.Address(b.Address)},
		{"variant", limits.Name(b.Variant)},
		{"region", limits.OptionalName(b.Region)},
		{"zone", limits.OptionalName(b.Zone)},
	} {
		if err := refusal.Check(c.field, c.err); err != nil {
			return err
		}
	}
	if len(b.Labels) > limits.Labels {
		return refusal.Field("labels", "has %d entries: allowed are at most %d", len(b.Labels), limits.Labels)
	}
	for key, value := range b.Labels {
		if err := refusal.Check(fmt.Sprintf("labels[%s]", limits.Quote(key)), limits.Label(key, value)); err != nil {
			return err
		}
	}
	return checkLoad(b)
}

func checkLoad(b *donav1.EndpointHeartbeat) error {
	if u := b.Utilization; math.IsNaN(u) || u < 0 || u > 1 {
		return refusal.Field("utilization", "is %v: allowed are 0 to 1", u)
	}
	return nil
}

// checkBeat holds a later message to what the first one fixed. A field left
// empty repeats nothing, which is allowed.
func checkBeat(first, b *donav1.EndpointHeartbeat) error {
	for _, c := range []struct{ field, fixed, now string }{
		{"service", first.Service, b.Service},
		{"endpoint_id", first.EndpointId, b.EndpointId},
		{"address", first.Address, b.Address},
		{"variant", first.Variant, b.Variant},
		{"region", first.Region, b.Region},
		{"zone", first.Zone, b.Zone},
	} {
		if c.now != "" && c.now != c.fixed {
			return refusal.Field(c.field, "is %s and was %s: it is fixed by a stream's first message; register again to change it",
				limits.Brief(c.now), limits.Brief(c.fixed))
		}
	}
	return checkLoad(b)
}
