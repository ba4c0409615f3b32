package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

// onData are the kinds of what data needs: endpoints, decisions, identities, the store,
// plugins. They go on when a chain is damaged.
var onData = map[string]bool{
	"endpoint.register": true, "endpoint.gone": true, "call.decision": true, "flag.exposure": true, "stats.gap": true,
	"plugin.start": true, "plugin.crash": true, "plugin.quarantine": true, "plugin.reject": true,
	"svid.issue": true, "clock.step": true, "log.recovered": true, "store.adopt": true, "store.replicas": true,
}

// damage is what is known to be wrong, by chain.
type damage struct {
	mu     sync.RWMutex
	chains map[string]damagedChain
}

type damagedChain struct {
	cause error
	ends  bool // it does not end where its head says, so no entry can follow
}

// admit says whether an entry may be written to a chain. A damaged one takes no
// control action: what it would prove could not be proven. Data goes on: its
// entries follow the head, and where none can follow they are left out.
func (l *Log) admit(chain, kind string) (goOn bool, err error) {
	l.damage.mu.RLock()
	d, bad := l.damage.chains[chain]
	l.damage.mu.RUnlock()
	switch {
	case !bad:
		return true, nil
	case onData[kind]:
		return !d.ends, nil
	}
	return false, &refusal.Error{Kind: refusal.Unavailable, Reason: "audit", Cause: d.cause,
		Text: fmt.Sprintf("the audit log is damaged, so nothing was done: %v; restore a backup of the store, dona store check says more", d.cause)}
}

// Damaged lists what is wrong with chains, the chain's name in each.
func (l *Log) Damaged() (causes []string) {
	l.damage.mu.RLock()
	defer l.damage.mu.RUnlock()
	for _, chain := range slices.Sorted(maps.Keys(l.damage.chains)) {
		causes = append(causes, l.damage.chains[chain].cause.Error())
	}
	return causes
}

// set notes what was found of a chain; nil is that it holds. It returns whether
// that is news.
func (d *damage) set(chain string, cause error, ends bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	old, was := d.chains[chain]
	if cause == nil {
		delete(d.chains, chain)
		return was
	}
	if d.chains == nil {
		d.chains = map[string]damagedChain{}
	}
	d.chains[chain] = damagedChain{cause, ends}
	return !was || old.cause.Error() != cause.Error()
}

// ScrubOptions configure a Scrub.
type ScrubOptions struct {
	Store  store.Store
	Log    *Log
	Chains func(tx store.ReadTx) ([]string, error) // those of services
	Every  time.Duration                           // from the end of a look at everything to the next; 0 = 10 minutes
	Ends   time.Duration                           // between two looks at where chains end; 0 = 10 seconds
	Logger hclog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// A Scrub reads every chain again and again in the background and re-computes every
// hash, from the host's start on. What it finds is named in the log, the alarms and
// a metric, and from then on the chain takes no control action.
type Scrub struct {
	o       ScrubOptions
	entries prometheus.Counter
}

// NewScrub makes one; Run runs it.
func NewScrub(o ScrubOptions) (*Scrub, error) {
	if o.Every <= 0 {
		o.Every = 10 * time.Minute
	}
	if o.Ends <= 0 {
		o.Ends = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	s := &Scrub{o: o, entries: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dona_audit_scrubbed_entries_total", Help: "Audit entries whose hash was computed again.",
	})}
	if o.Registerer == nil {
		return s, nil
	}
	damaged := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dona_audit_damaged_chains", Help: "Audit chains that do not hold; they take no control action.",
	}, func() float64 { return float64(len(o.Log.Damaged())) })
	return s, errors.Join(o.Registerer.Register(s.entries), o.Registerer.Register(damaged))
}

// Run scrubs until ctx ends.
func (s *Scrub) Run(ctx context.Context) error {
	ends := time.NewTicker(s.o.Ends)
	defer ends.Stop()
	all := time.NewTimer(0)
	defer all.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-all.C:
			s.each(ctx, s.chain)
			all.Reset(s.o.Every)
		case <-ends.C:
			s.each(ctx, s.end)
		}
	}
}

// each looks at every chain. A store that cannot be read is nothing of a chain's.
func (s *Scrub) each(ctx context.Context, look func(ctx context.Context, chain string) error) {
	var chains []string
	if err := s.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		chains, err = s.o.Chains(tx)
		return err
	}); err != nil {
		return
	}
	for _, chain := range append([]string{HostChain, PoolChain}, chains...) {
		if err := look(ctx, chain); err != nil {
			return
		}
	}
}

// pause lets others have the processor after each page.
const pause = 5 * time.Millisecond

// chain reads a whole chain.
func (s *Scrub) chain(ctx context.Context, chain string) error {
	var v attest.Chain
	for begun, done := false, false; !done; begun = true {
		err := s.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
			older, err := s.o.Log.Start(tx, chain)
			if err != nil {
				return err
			}
			if !begun || older.Seq() > v.Seq() { // or entries moved away while it was read
				v = older
			}
			before := v.Seq()
			v, done, err = s.o.Log.CheckOn(tx, chain, v, page)
			s.entries.Add(float64(v.Seq() - before))
			return err
		})
		if err != nil {
			return s.found(ctx, chain, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	s.sound(chain)
	return nil
}

// end looks whether a chain ends where its head says; it says nothing of the rest.
func (s *Scrub) end(ctx context.Context, chain string) error {
	err := s.o.Store.View(ctx, func(tx store.ReadTx) error { return s.o.Log.checkEnd(tx, chain) })
	if err != nil {
		return s.found(ctx, chain, err)
	}
	return nil
}

// checkEnd returns an errEnd when the head record and the newest entry disagree.
func (l *Log) checkEnd(tx store.ReadTx, chain string) error {
	seq, hash, err := l.Head(tx, chain)
	if err != nil {
		return err
	}
	lines, err := tx.ReadLog(logName(chain), max(seq, 1), 2)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return errEnd{broken{fmt.Errorf("audit: chain %s: "+format, append([]any{chain}, args...)...)}}
	}
	switch {
	case seq == 0 && len(lines) == 0:
		return nil
	case seq == 0:
		return bad("its head says that it is empty, and entry %d is there", lines[0].Seq)
	case len(lines) == 0 || lines[0].Seq != seq:
		return bad("entry %d, its head, is missing", seq)
	case len(lines) == 2:
		return bad("entry %d follows its head, %d", lines[1].Seq, seq)
	case hashText(lines[0].Payload) != fmt.Sprintf("%x", hash):
		return bad("entry %d is not what its head says: it was changed", seq)
	}
	return nil
}

// errEnd marks that no entry can follow.
type errEnd struct{ error }

func (e errEnd) Unwrap() error { return e.error }

// found judges an error: the store's own ends the look, everything else is the
// chain's.
func (s *Scrub) found(ctx context.Context, chain string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, own := range []error{store.ErrClosed, store.ErrUnavailable, store.ErrForeign, store.ErrUnknown, store.ErrRefused, context.DeadlineExceeded} {
		if errors.Is(err, own) {
			return err
		}
	}
	// Whether entries can follow is told by the end alone.
	var end errEnd
	ends := errors.As(err, &end)
	if !ends {
		_ = s.o.Store.View(ctx, func(tx store.ReadTx) error {
			ends = errors.As(s.o.Log.checkEnd(tx, chain), &end)
			return nil
		})
	}
	if s.o.Log.damage.set(chain, err, ends) {
		s.o.Logger.Error("the audit log is damaged; the chain takes no control action until it is restored", "chain", chain, "error", err)
	}
	return nil
}

func (s *Scrub) sound(chain string) {
	if s.o.Log.damage.set(chain, nil, false) {
		s.o.Logger.Info("the audit log holds again", "chain", chain)
	}
}
