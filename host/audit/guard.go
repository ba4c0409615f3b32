package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Wait is how long a control action waits for its entry to be durable.
const Wait = 2 * time.Second

// Guard returns st with the rule that nothing is done which cannot be proven:
// a hard Update, which carries an action and its entry, ends within [Wait], and
// where the store does not take it the error is a refusal that says so:
// Unavailable with reason "audit". Soft updates and views pass as they are.
func Guard(st store.Store) store.Store { return guarded{st} }

type guarded struct{ store.Store }

func (g guarded) Update(ctx context.Context, d store.Durability, fn func(tx store.Tx) error) error {
	if d != store.Hard {
		return g.Store.Update(ctx, d, fn)
	}
	within, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	err := g.Store.Update(within, d, fn)
	if err == nil {
		return nil
	}
	refuse := func(text string) error {
		return &refusal.Error{Kind: refusal.Unavailable, Reason: "audit", Text: text, Cause: err}
	}
	for _, cause := range []error{store.ErrFull, store.ErrReadOnly, store.ErrClosed, store.ErrUnavailable, store.ErrForeign, store.ErrRefused} {
		if errors.Is(err, cause) && !errors.Is(err, store.ErrUnknown) {
			return refuse(fmt.Sprintf("the audit entry cannot be written, so nothing was done: %s", cause))
		}
	}
	switch {
	case errors.Is(err, store.ErrUnknown):
		return refuse("outcome unknown: the write was sent and not confirmed; send the same request again")
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return refuse(fmt.Sprintf("outcome unknown: the audit entry was not durable within %s; look at the state, then send the same request again", Wait))
	}
	return err
}
