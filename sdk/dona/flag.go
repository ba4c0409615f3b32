package dona

import (
	"context"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// ErrNoFlag says that a service has no flag of that name.
var ErrNoFlag = decide.ErrNoFlag

// ErrUnit says that a unit is longer than 1,024 bytes or has a zero byte.
var ErrUnit = bucket.ErrUnit

// Evaluation is what one flag gives a request, whatever other flags and the weights
// give it.
type Evaluation struct {
	Variant       string        // empty when the flag gives none that can serve
	Reason        donav1.Reason // TARGETING_MATCH, SPLIT, DEFAULT, DISABLED or ERROR
	Everyone      bool          // no rule decided, and the flag gives the variant to all others
	Ruled         bool          // the flag has rules
	Problem       string        // what is wrong, with REASON_ERROR
	Broken        bool          // it is that this client cannot follow the flag
	ConfigVersion uint64        // of the snapshot
	Stale         bool          // no host confirms the snapshot at the moment
}

// Flag evaluates one flag, for applications that ask what is switched on without
// making a call. By the rules of decisions, a variant that is quarantined or has no
// endpoint that may serve is not given. Exposures are recorded for requests with a
// unit; nothing else is. The error is ErrNoFlag, ErrNoData, or says what is wrong
// with the unit.
func (s *Service) Flag(ctx context.Context, key string, req Request) (Evaluation, error) {
	if err := ctx.Err(); err != nil {
		return Evaluation{}, err
	}
	st := s.current.Load()
	if st == nil {
		return Evaluation{}, s.noData()
	}
	out := Evaluation{ConfigVersion: st.program.Version(), Stale: st.stale}
	res, err := st.program.EvaluateFlag(key, &req)
	if err != nil {
		return out, fmt.Errorf("flag %.130q of service %s: %w", key, s.name, err)
	}
	if res.TypeErrors != 0 {
		s.attributeErrors.Add(uint64(res.TypeErrors))
	}
	switch res.Reason {
	case donav1.Reason_REASON_DISABLED, donav1.Reason_REASON_ERROR:
	default:
		if req.Unit != "" {
			s.client.reporter.Evaluation(st.program, &res, req.Unit)
		}
	}
	if o := s.client.opts.observer; o != nil {
		o.Evaluated(ctx, s.name, out.ConfigVersion, digestOf(req.Unit), FlagGave{Flag: key, Variant: res.Variant, Reason: res.Reason})
	}
	out.Variant, out.Reason, out.Everyone, out.Ruled = res.Variant, res.Reason, res.Everyone, res.Ruled
	out.Problem, out.Broken = res.Why, res.Broken
	return out, nil
}
