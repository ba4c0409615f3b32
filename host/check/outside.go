package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// InsidePrefix is what the ids of hosts' own checkers begin with.
const InsidePrefix = "host-"

const (
	basic  = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	target = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET
)

// Registration is what a checker outside the hosts says of itself.
type Registration struct {
	Checker  string // [A-Za-z0-9._-]
	Instance string // one process of it
	Levels   []controlplanev1.CheckLevel
	Probes   []string
	Window   uint32 // tasks that it wants to hold at once
}

// Register lets a checker outside the hosts take tasks, and returns how many it may
// hold at once. Another instance of the same checker, or another set of probes,
// takes the place of the former; what the checker holds it goes on holding.
// Refusals: Invalid, Exhausted.
func (b *Broker) Register(ctx context.Context, r Registration) (window uint32, err error) {
	if strings.HasPrefix(r.Checker, InsidePrefix) {
		return 0, refusal.Field("checker_id", "begins with %s, as those of hosts' own checkers do: choose another", InsidePrefix)
	}
	window = min(r.Window, uint32(b.o.Window))
	return window, b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		var own statev1.Checker
		version, err := store.Load(tx, checkerKey(r.Checker), &own)
		if err != nil {
			return err
		}
		if version == 0 {
			all, err := tx.Scan(checkerIndex, 0, store.MaxScore, limits.Checkers)
			if err != nil {
				return err
			}
			if len(all) >= limits.Checkers {
				return refusal.New(refusal.Exhausted, "there are %d checkers: allowed are at most %d; those that are gone are forgotten after a while", len(all), limits.Checkers)
			}
		}
		// It is there once it asks for tasks.
		own.UntilMs = max(own.UntilMs, tx.Now().UnixMilli())
		own.Outside, own.InstanceId, own.Window, own.Levels, own.Probes = true, r.Instance, window, r.Levels, r.Probes
		if err := store.Save(tx, checkerKey(r.Checker), &own); err != nil {
			return err
		}
		return tx.IndexPut(checkerIndex, r.Checker, uint64(own.UntilMs))
	})
}

func heldIndex(checker string) string { return "check-held/" + checker }
func heldKey(checker string) string   { return "check-held/" + checker }

// windowed makes a claim of a checker outside what its registration and the tasks
// that it holds leave room for, whatever stream it asks on.
func (b *Broker) windowed(tx store.Tx, c *Claim, own *statev1.Checker, now int64) error {
	if !own.Outside || own.InstanceId != c.Instance {
		return notRegistered("this instance of the checker")
	}
	for i, level := range c.Levels {
		if !slices.Contains(own.Levels, level) {
			return refusal.Field(fmt.Sprintf("levels[%d]", i), "is %s, which this checker did not register: register again with it", level)
		}
	}
	if _, err := counted(tx, heldKey(c.Checker)); err != nil {
		return err
	}
	index := heldIndex(c.Checker)
	past, err := tx.Scan(index, 0, uint64(now), 2*limits.CheckWindow)
	if err != nil {
		return err
	}
	for _, e := range past {
		if err := tx.IndexDelete(index, e.Member); err != nil {
			return err
		}
	}
	held, err := tx.Scan(index, uint64(now)+1, store.MaxScore, 0)
	if err != nil {
		return err
	}
	window := min(int(own.Window), b.o.Window) // other hosts may give more
	if c.Most > 0 {
		window = min(window, c.Most)
	}
	c.Most, c.Scope = max(window-len(held), 0), (window+1)/2
	c.Held = map[string]int{}
	for _, e := range held {
		if p, ok := parsePlace(e.Member); ok {
			c.Held[group{p.plane, p.scope}.member()]++
		}
	}
	return nil
}

func notRegistered(what string) error {
	return refusal.New(refusal.Precondition, "%s is not registered, or was forgotten: register again", what)
}

// checkedOutside reports whether a checker outside can make checks with a probe at a
// level.
func checkedOutside(c *statev1.Checker, probe string, level controlplanev1.CheckLevel) bool {
	return c.Outside && slices.Contains(c.Probes, probe) && slices.Contains(c.Levels, level)
}

// checkedInside reports whether a host's own checker can.
func checkedInside(c *statev1.Checker, probe string) bool {
	return !c.Outside && (len(c.Probes) == 0 || slices.Contains(c.Probes, probe))
}

// hold counts a task into its holder's window and under its cap.
func hold(tx store.Tx, p place, t *statev1.Check) error {
	if t.Capped {
		if err := tx.IndexPut(capOf{p.plane, t.Cap}.leased(), p.scope+"/"+p.id, uint64(t.LeaseMs)); err != nil {
			return err
		}
	}
	if !t.Windowed {
		return nil
	}
	return tx.IndexPut(heldIndex(t.Holder), p.member(), uint64(t.LeaseMs))
}

// letGo takes a task, which may not be held, out of its holder's window and its cap.
func letGo(tx store.Tx, p place, t *statev1.Check) error {
	if t == nil || t.Token == "" {
		return nil
	}
	if t.Capped {
		if err := tx.IndexDelete(capOf{p.plane, t.Cap}.leased(), p.scope+"/"+p.id); err != nil {
			return err
		}
	}
	if !t.Windowed {
		return nil
	}
	return tx.IndexDelete(heldIndex(t.Holder), p.member())
}

// ReportOutside is Report for a checker that registered. Refusals: Precondition.
func (b *Broker) ReportOutside(ctx context.Context, checker string, reports []Report) ([]Receipt, error) {
	return b.take(ctx, checker, reports, func(tx store.ReadTx) error {
		var own statev1.Checker
		_, err := store.Load(tx, checkerKey(checker), &own)
		if err == nil && !own.Outside {
			err = notRegistered("the checker")
		}
		return err
	})
}
