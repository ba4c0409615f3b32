package dona

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/name"
)

// OwnEndpoint is an endpoint that this process offers.
type OwnEndpoint struct {
	Service  string
	ID       string // unique in the service; keep it over restarts
	Address  string // host:port where it takes requests
	Variant  string
	Region   string // may be empty
	Zone     string // may be empty
	Labels   map[string]string
	Capacity uint32 // requests it can have in flight; 0 = not said
}

func (e *OwnEndpoint) check() error {
	if err := name.Service(e.Service); err != nil {
		return fmt.Errorf("service %w", err)
	}
	if err := name.ID(e.ID); err != nil {
		return fmt.Errorf("endpoint id %w", err)
	}
	if err := name.Name(e.Variant); err != nil {
		return fmt.Errorf("variant %w", err)
	}
	for what, v := range map[string]string{"region": e.Region, "zone": e.Zone} {
		if v != "" {
			if err := name.Name(v); err != nil {
				return fmt.Errorf("%s %w", what, err)
			}
		}
	}
	if err := name.Address(e.Address); err != nil {
		return fmt.Errorf("address %w", err)
	}
	return nil
}

// defaultHeartbeat is the cadence until a host names one.
const defaultHeartbeat = 5 * time.Second

// Registration announces an endpoint for as long as it is open: it beats at the
// cadence that the host asks for and comes back by itself when a stream breaks.
type Registration struct {
	client   *Client
	endpoint OwnEndpoint
	cancel   context.CancelFunc
	ended    chan struct{} // the loop has ended
	accepted chan struct{} // closed with the first acceptance
	refused  chan struct{} // closed when a host refuses what no retry can cure
	nudge    chan struct{} // beat now
	leave    chan struct{} // Close has begun

	mu          sync.Mutex
	utilization float64
	inFlight    uint32
	draining    bool
	leaving     bool
	leaseID     string
	beats       uint64 // acknowledged at the end
	problem     error
}

// Register announces an endpoint and keeps it announced until Close of the
// registration or of the client. It does not wait for a host: an application
// starts also when none can be reached; Registration.Wait waits. An error means
// that the endpoint is described wrongly. ctx is for the call only.
func (c *Client) Register(ctx context.Context, e OwnEndpoint) (*Registration, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("register %s: %w", e.ID, err)
	}
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	e.Labels = maps.Clone(e.Labels)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("register %s: %w", e.ID, ErrClosed)
	}
	loop, cancel := context.WithCancel(c.ctx)
	r := &Registration{client: c, endpoint: e, cancel: cancel, ended: make(chan struct{}), accepted: make(chan struct{}),
		refused: make(chan struct{}), nudge: make(chan struct{}, 1), leave: make(chan struct{})}
	c.registrations[r] = struct{}{}
	c.work.Go(func() { r.run(loop) })
	return r, nil
}

// Wait waits until a host has accepted the endpoint for the first time. The error
// says why none has.
func (r *Registration) Wait(ctx context.Context) error {
	select {
	case <-r.accepted:
		return nil
	case <-r.refused:
		return r.Problem()
	case <-r.ended:
		// A refusal ends the loop too, and both may be seen at once.
		select {
		case <-r.refused:
			return r.Problem()
		default:
			return ErrClosed
		}
	case <-ctx.Done():
		if p := r.Problem(); p != nil {
			return fmt.Errorf("register %s: %w: %w", r.endpoint.ID, context.Cause(ctx), p)
		}
		return fmt.Errorf("register %s: %w", r.endpoint.ID, context.Cause(ctx))
	}
}

// Problem returns why the endpoint is not registered at the moment, nil when it is
// or nothing was tried yet.
func (r *Registration) Problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// LeaseID returns the lease of the current stream, or the last one; empty before
// the first acceptance.
func (r *Registration) LeaseID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaseID
}

// SetLoad says how busy the endpoint is: utilization from 0 to 1 (0 = not said)
// and the requests in flight. The next heartbeat carries it.
func (r *Registration) SetLoad(utilization float64, inFlight uint32) {
	if math.IsNaN(utilization) {
		utilization = 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.utilization, r.inFlight = min(1, max(0, utilization)), inFlight
}

// Drain says at once that the endpoint takes no new requests. Calls that run may
// end; then Close.
func (r *Registration) Drain() {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	select {
	case r.nudge <- struct{}{}:
	default:
	}
}

// Close takes the endpoint back and waits until the host has confirmed it, or ctx
// ends; then the host notices by the stream. It does nothing the second time.
func (r *Registration) Close(ctx context.Context) error {
	r.mu.Lock()
	first := !r.leaving
	r.leaving = true
	if first {
		close(r.leave)
	}
	r.mu.Unlock()
	var err error
	select {
	case <-r.ended:
	case <-ctx.Done():
		err = fmt.Errorf("deregister %s: %w", r.endpoint.ID, context.Cause(ctx))
	}
	r.cancel()
	<-r.ended
	r.client.mu.Lock()
	delete(r.client.registrations, r)
	r.client.mu.Unlock()
	return err
}

// errLeft ends the loop: the host has confirmed.
var errLeft = errors.New("deregistered")

func (r *Registration) run(ctx context.Context) {
	defer close(r.ended)
	defer r.cancel()
	retry := backoff.Backoff{Random: r.client.opts.random}
	for avoid := hosts.None; ; {
		h := r.client.next(avoid)
		err := r.stream(ctx, h, func() {
			retry.Applied()
			r.client.note(h, nil)
		})
		select {
		case <-r.leave:
			return
		default:
		}
		if ctx.Err() != nil {
			return
		}
		r.client.note(h, err)
		avoid = h.place
		r.failed(fmt.Errorf("register %s at host %s: %w", r.endpoint.ID, h.address, err))
		switch status.Code(err) {
		case codes.InvalidArgument:
			close(r.refused) // another attempt would send the same
			return
		case codes.Aborted:
			// A newer stream has this id. To come back at once would only start a
			// fight of two processes over it.
			retry.Longest()
		}
		wait := time.NewTimer(retry.Next(r.client.another(h)))
		select {
		case <-wait.C:
		case <-r.leave:
			wait.Stop()
			return
		case <-ctx.Done():
			wait.Stop()
			return
		}
	}
}

func (r *Registration) failed(err error) {
	r.mu.Lock()
	r.problem = err
	r.mu.Unlock()
	r.client.opts.log.Warn("endpoint is not registered", "endpoint", r.endpoint.ID, "service", r.endpoint.Service, "error", err)
}

// stream registers on one host and beats until the stream ends.
func (r *Registration) stream(ctx context.Context, h *host, accepted func()) error {
	api, err := r.client.api(ctx, h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(firstFrame, func() { cancel(errSilent) })
	defer late.Stop()
	leave := r.client.stay(h, cancel)
	defer leave()

	stream, err := api.RegisterEndpoint(ctx)
	if err != nil {
		return err
	}
	var sequence uint64
	if err := stream.Send(r.beat(&sequence)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	header, err := stream.Header()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	lease := header.Get("dona-lease-id")
	if err != nil || len(lease) == 0 {
		// Refused without acceptance: the status says why.
		if err := stream.RecvMsg(&donav1.RegisterAck{}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return errors.New("the host ended the stream without accepting")
	}
	late.Stop()
	every := defaultHeartbeat
	if ms := header.Get("dona-heartbeat-ms"); len(ms) > 0 {
		if n, err := strconv.ParseUint(ms[0], 10, 31); err == nil && n > 0 {
			every = time.Duration(n) * time.Millisecond
		}
	}
	r.mu.Lock()
	r.leaseID, r.problem = lease[0], nil
	r.mu.Unlock()
	accepted()
	select {
	case <-r.accepted:
	default:
		close(r.accepted)
	}

	// The host answers once, at the end.
	ended := make(chan error, 1)
	go func() {
		ack := &donav1.RegisterAck{}
		err := stream.RecvMsg(ack)
		if err == nil {
			r.mu.Lock()
			r.beats = ack.GetHeartbeats()
			r.mu.Unlock()
			err = errLeft
		}
		ended <- err
	}()
	defer func() {
		cancel(nil)
		<-ended
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.nudge:
		case <-r.leave:
			if err := stream.CloseSend(); err != nil {
				return err
			}
			select {
			case err := <-ended:
				ended <- err
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		case err := <-ended:
			ended <- err
			if errors.Is(err, errLeft) {
				return errors.New("the host ended the registration")
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// A send that fails shows its reason at the receiving end.
		if err := stream.Send(r.beat(&sequence)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

func (r *Registration) beat(sequence *uint64) *donav1.EndpointHeartbeat {
	*sequence++
	e := &r.endpoint
	r.mu.Lock()
	defer r.mu.Unlock()
	return &donav1.EndpointHeartbeat{Service: e.Service, EndpointId: e.ID, Address: e.Address, Variant: e.Variant, Region: e.Region,
		Zone: e.Zone, Labels: e.Labels, Capacity: e.Capacity, Utilization: r.utilization, InFlight: r.inFlight, Draining: r.draining, Sequence: *sequence}
}
