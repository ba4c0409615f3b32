// Package dona is the SDK for applications: it discovers the endpoints of a
// service, decides for each request which variant and endpoint serve it, and
// reports what came of it. There is no proxy in between: a decision reads memory
// and makes no call.
//
// A Client watches each service that it is asked for and keeps the newest
// snapshot, of which hosts send what changed; Service.Pick decides on it; Pick.Done says how the call went. When no
// host can be reached, decisions go on with the last good snapshot, from memory or
// after a restart from disk, and are marked stale. Client.Register announces an
// endpoint of one's own, Client.Transport is an http.RoundTripper to services by
// name, and Client.Ingress brings HTTP requests from outside to services by an
// operator's rules. Package donagrpc does for gRPC what Transport does for HTTP.
//
//	client, err := dona.Dial(ctx, "127.0.0.1:7600")
//	checkout := client.Service("checkout")
//	err = checkout.Ready(ctx)
//	pick, err := checkout.Pick(ctx, dona.Request{Unit: userID})
//	// call pick.Endpoint.Address …
//	pick.Done(dona.Outcome{Success: true, Latency: took})
//
// # Several hosts
//
// Hosts that share a store are one deployment, and Dial takes the addresses of all
// of them. A client begins at a random one and keeps what it does on that one for as
// long as it works: its watches, its registrations and its reports. One that fails
// is left for another within half a second, and asked less and less while it stays
// away. One that stands still is found when it leaves a report without an answer for
// 10 s, and by pings after 40 s. When no other is there, waits follow full jitter up to 30 s; they begin anew
// only when a stream did what it is for, not when a connection stands.
//
// A client never goes back: a host that has an older snapshot than the client holds
// is told so, and the client takes another host or, when there is none, waits on
// the stream until this one has caught up. Decisions go on by the newer snapshot,
// marked stale. A snapshot is made of one host's frames alone. A report is sent
// again as it was, with its sequence, so that it counts once wherever it arrives. A
// registration moves under its endpoint id, and hosts go by the newest stream.
//
// Everything in the package is safe for concurrent use unless it says otherwise.
package dona

import (
	"errors"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/internal/report"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Request, Attribute, Endpoint and Kind are those of the decision core.
type (
	// Request is what a decision depends on besides the snapshot.
	Request = decide.Request
	// Attribute is a fact about a request that targeting rules look at.
	Attribute = decide.Attribute
	// Endpoint is an instance that can serve requests.
	Endpoint = decide.Endpoint
	// Kind says what decided the variant.
	Kind = decide.Kind
	// DeniedError says that residency left no endpoint.
	DeniedError = decide.DeniedError
	// UnavailableError says that nothing usable is left for another reason.
	UnavailableError = decide.UnavailableError
)

// The kinds of decision.
const (
	KindFlagTargeting = decide.KindFlagTargeting
	KindFlagRollout   = decide.KindFlagRollout
	KindWeight        = decide.KindWeight
	KindOnlyVariant   = decide.KindOnlyVariant
	KindDenied        = decide.KindDenied
	KindUnavailable   = decide.KindUnavailable
)

// String returns a text attribute.
func String(name, value string) Attribute { return decide.String(name, value) }

// Int returns an integer attribute.
func Int(name string, value int64) Attribute { return decide.Int(name, value) }

// Float returns a floating-point attribute.
func Float(name string, value float64) Attribute { return decide.Float(name, value) }

// Bool returns a boolean attribute.
func Bool(name string, value bool) Attribute { return decide.Bool(name, value) }

// ErrNoData says that no snapshot of the service is there yet: no host answered
// and none is on disk.
var ErrNoData = errors.New("no data")

// ErrClosed says that the client was closed.
var ErrClosed = errors.New("client is closed")

// Decision says what was decided and why.
type Decision struct {
	Kind          Kind
	Variant       string        // empty when there is no endpoint
	Flag          string        // the deciding flag, or empty
	Reason        donav1.Reason // of the flag or weight; unspecified without a variant
	ConfigVersion uint64        // of the snapshot that decided
	Stale         bool          // no host confirms the snapshot at the moment
}

// Pick is a decision for one request. It is a value; call Done once on one copy of
// it when the call has ended, so that its endpoint is not counted as busy.
type Pick struct {
	Endpoint Endpoint
	Decision Decision

	service *Service
	program *decide.Program
	load    *plan.Load
	ended   func(Outcome, bool) // of the observer, or nil
	index   int32
}

// Outcome says how a call went.
type Outcome struct {
	Success bool
	// Latency is how long the call took; 0 = not measured. It is reported with a
	// resolution of about 3 %. Under the strategy peak-ewma further picks go by it:
	// whoever leaves it out there gets least connections.
	Latency time.Duration
	// Code is the gRPC or HTTP status as text ("OK", "503"), at most 32 bytes.
	Code string
}

// Done ends the call: the endpoint has one request less in flight, and the outcome
// is queued for the host. It never blocks and does nothing the second time.
func (p *Pick) Done(o Outcome) {
	if p.load == nil {
		return
	}
	p.program.Observe(p.index, o.Latency, o.Success)
	p.load.End()
	p.load = nil
	p.service.client.reporter.Outcome(p.program, p.index, report.Outcome(o))
	if p.ended != nil {
		p.ended(o, true)
	}
}

// Cancel ends a pick that was not used: nothing is reported.
func (p *Pick) Cancel() {
	if p.load != nil {
		p.load.End()
		p.load = nil
		if p.ended != nil {
			p.ended(Outcome{}, false)
		}
	}
}
