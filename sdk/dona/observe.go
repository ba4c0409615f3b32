package dona

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/bits"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// Observer sees what a client decides and what came of it, for telemetry; package
// donaotel has one. Its methods are called by whoever picks, so they must be fast,
// must not block and must be safe for concurrent use.
type Observer interface {
	// Decided is called after each decision. What it returns is called when the pick
	// ends, with used false when nothing was sent; nil = nobody wants to know. It is
	// not called when the decision is an error.
	Decided(ctx context.Context, o Observation) (ended func(o Outcome, used bool))
	// Evaluated is called after each Service.Flag that found the flag.
	Evaluated(ctx context.Context, service string, configVersion uint64, unitDigest string, f FlagGave)
}

// Observation is a decision as an Observer sees it.
type Observation struct {
	Service    string
	Decision   Decision
	Endpoint   Endpoint // empty with an error
	Err        error
	UnitDigest string     // hex of the unit's SHA-256, as in exposures; empty without a unit
	Flags      []FlagGave // flags evaluated for it: of those that gave nothing, among the first 64
}

// FlagGave is what a flag gave.
type FlagGave struct {
	Flag    string
	Variant string // empty = none
	Reason  donav1.Reason
}

// WithObserver sets who sees decisions. Each then costs what the observer does, and
// memory; without one it costs nothing.
func WithObserver(o Observer) Option { return func(opts *options) { opts.observer = o } }

// observe tells the observer of a decision. It gets copies: nothing of a request is
// kept, so that callers may have it on their stack.
func (s *Service) observe(ctx context.Context, p *decide.Program, res decide.Result, unit string, pick Pick) func(Outcome, bool) {
	o := Observation{Service: s.name, Decision: pick.Decision, Endpoint: pick.Endpoint, Err: res.Err, UnitDigest: digestOf(unit)}
	for left := res.Missed; left != 0; left &= left - 1 {
		o.Flags = append(o.Flags, FlagGave{Flag: p.Flag(int32(bits.TrailingZeros64(left))), Reason: donav1.Reason_REASON_DEFAULT})
	}
	if res.Flag >= 0 && res.Err == nil {
		o.Flags = append(o.Flags, FlagGave{Flag: pick.Decision.Flag, Variant: pick.Decision.Variant, Reason: res.Reason})
	}
	return s.client.opts.observer.Decided(ctx, o)
}

func digestOf(unit string) string {
	if unit == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(unit))
	return hex.EncodeToString(sum[:])
}
