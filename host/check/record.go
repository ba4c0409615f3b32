package check

import (
	"errors"
	"strings"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

const (
	scopeIndex   = "check-scope"   // member plane/scope: those with tasks, by the first of their due indexes
	troubleIndex = "check-trouble" // member plane/scope: those that have to be judged
	checkerIndex = "checker"       // member id, by end

	maxPlace = 384 // bytes of a place: more than any has, and fewer than a key may have
)

// place is where a target's record lives. Planes, scopes and ids hold no slash.
type place struct{ plane, scope, id string }

func (p place) member() string { return p.plane + "/" + p.scope + "/" + p.id }
func (p place) key() string    { return "check/" + p.member() }

func parsePlace(member string) (place, bool) {
	parts := strings.Split(member, "/")
	if len(parts) != 3 || len(member) > maxPlace {
		return place{}, false
	}
	return place{plane: parts[0], scope: parts[1], id: parts[2]}, true
}

// group is a scope of a plane.
type group struct{ plane, scope string }

func (g group) member() string { return g.plane + "/" + g.scope }
func (g group) key() string    { return "check/" + g.member() }     // also the index of the ids
func (g group) due() string    { return "check-due/" + g.member() } // index of the ids, by due or end of lease

func (g group) bad(lane string) string { return "check-bad/" + g.member() + "/" + lane } // index of the ids that fail, by when they began

// capOf is a bound that scopes of a plane share.
type capOf struct{ plane, name string }

func (c capOf) member() string { return c.plane + "/" + c.name }
func (c capOf) key() string    { return "check-cap/" + c.member() }
func (c capOf) leased() string { return "check-leased/" + c.member() } // index of scope/id, by end of lease

func checkerKey(id string) string { return "checker/" + id }

func parseGroup(member string) (group, bool) {
	plane, scope, ok := strings.Cut(member, "/")
	return group{plane: plane, scope: scope}, ok
}

// loadCheck reads a record; nil when there is none, or a damaged one, which the next
// look at its scope makes anew: what it held is measured again.
func loadCheck(tx store.ReadTx, p place) (*statev1.Check, error) {
	c := new(statev1.Check)
	version, err := store.Load(tx, p.key(), c)
	if errors.Is(err, store.ErrDamaged) {
		return nil, nil
	}
	if err != nil || version == 0 {
		return nil, err
	}
	return c, nil
}

// saveCheck writes a record and when it is looked at next: when it is due, or, while
// it is leased, when the lease ends. The caller settles the scope.
func saveCheck(tx store.Tx, p place, c *statev1.Check) error {
	if err := store.Save(tx, p.key(), c); err != nil {
		return err
	}
	return schedule(tx, p, c)
}

func schedule(tx store.Tx, p place, c *statev1.Check) error {
	return tx.IndexPut(group{p.plane, p.scope}.due(), p.id, lookedAt(c))
}

// lookedAt is when a task is looked at next, ms.
func lookedAt(c *statev1.Check) uint64 {
	if c.Token != "" {
		return uint64(max(c.LeaseMs, 0))
	}
	return uint64(max(c.DueMs, 0))
}

// settle writes when a scope's next task is looked at, after tasks of it were
// scheduled. Where two hosts do so at the same moment it may be late, until somebody
// does again.
func settle(tx store.Tx, g group) error {
	first, err := tx.Scan(g.due(), 0, store.MaxScore, 1)
	if err != nil {
		return err
	}
	at := uint64(store.MaxScore) // nobody to check
	if len(first) > 0 {
		at = first[0].Score
	}
	return tx.IndexPut(scopeIndex, g.member(), at)
}

// each does something for several, and goes on after an error: what all of them ask
// of a shared store is then read in one round trip. It returns the first error.
func each[T any](all []T, do func(T) error) (first error) {
	for _, one := range all {
		if err := do(one); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func deleteCheck(tx store.Tx, p place, c *statev1.Check) error {
	if err := letGo(tx, p, c); err != nil {
		return err
	}
	if err := tx.Delete(p.key()); err != nil {
		return err
	}
	g := group{p.plane, p.scope}
	for _, index := range []string{g.due(), g.bad(c.GetLane()), g.key()} {
		if err := tx.IndexDelete(index, p.id); err != nil {
			return err
		}
	}
	return nil
}

// checksOf reads all records of a scope, by id.
func checksOf(tx store.ReadTx, g group) (map[string]*statev1.Check, error) {
	entries, err := tx.Scan(g.key(), 0, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, func(id string) string { return place{g.plane, g.scope, id}.key() }); err != nil {
		return nil, err
	}
	all := make(map[string]*statev1.Check, len(entries))
	for _, e := range entries {
		c, err := loadCheck(tx, place{g.plane, g.scope, e.Member})
		if err != nil {
			return nil, err
		}
		if c != nil {
			all[e.Member] = c
		}
	}
	return all, nil
}
