package session

import (
	"fmt"
	"strings"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// WholePlane is the scope of a freeze that holds every scope of a plane.
const WholePlane = "*"

const (
	leaseIndex  = "lease"  // member plane/scope/id, by deadline
	freezeIndex = "freeze" // member plane/scope, by end
)

// A name is where a lease lives; its member is what the index knows it by.
type name struct{ plane, scope, id string }

func (n name) member() string { return n.plane + "/" + n.scope + "/" + n.id }
func (n name) key() string    { return "lease/" + n.member() }

// check keeps the parts of a key apart.
func (n name) check() error {
	for _, part := range []string{n.plane, n.scope, n.id} {
		if part == "" || part == WholePlane || strings.Contains(part, "/") {
			return fmt.Errorf("session: lease %q: plane, scope and id must not be empty, %q, or hold a slash", n.member(), WholePlane)
		}
	}
	return nil
}

func parseMember(member string) (name, bool) {
	parts := strings.Split(member, "/")
	if len(parts) != 3 {
		return name{}, false
	}
	return name{plane: parts[0], scope: parts[1], id: parts[2]}, true
}

func servingKey(plane, host string) string { return "serving/" + plane + "/" + host }
func scopeKey(plane, scope string) string  { return "leases/" + plane + "/" + scope }
func freezeKey(plane, scope string) string { return "freeze/" + plane + "/" + scope }

func loadLease(tx store.ReadTx, n name) (*statev1.Lease, error) {
	l := new(statev1.Lease)
	version, err := store.Load(tx, n.key(), l)
	if err != nil || version == 0 {
		return nil, err
	}
	return l, nil
}

func saveLease(tx store.Tx, l *statev1.Lease) error {
	n := name{l.GetPlane(), l.GetScope(), l.GetId()}
	if err := store.Save(tx, n.key(), l); err != nil {
		return err
	}
	return tx.IndexPut(leaseIndex, n.member(), uint64(max(l.GetDeadlineMs(), 0)))
}

func deleteLease(tx store.Tx, n name) error {
	if err := tx.Delete(n.key()); err != nil {
		return err
	}
	return tx.IndexDelete(leaseIndex, n.member())
}

func loadFreeze(tx store.ReadTx, plane, scope string) (*statev1.Freeze, error) {
	f := new(statev1.Freeze)
	version, err := store.Load(tx, freezeKey(plane, scope), f)
	if err != nil || version == 0 {
		return nil, err
	}
	return f, nil
}

func saveFreeze(tx store.Tx, plane, scope string, f *statev1.Freeze) error {
	if err := store.Save(tx, freezeKey(plane, scope), f); err != nil {
		return err
	}
	return tx.IndexPut(freezeIndex, plane+"/"+scope, uint64(max(f.GetUntilMs(), 0)))
}

func deleteFreeze(tx store.Tx, plane, scope string) error {
	if err := tx.Delete(freezeKey(plane, scope)); err != nil {
		return err
	}
	return tx.IndexDelete(freezeIndex, plane+"/"+scope)
}

// saveScope writes the scope's counts, or removes them with its last lease.
func saveScope(tx store.Tx, plane, scope string, s *statev1.LeaseScope) error {
	if s.GetLeases() == 0 {
		return tx.Delete(scopeKey(plane, scope))
	}
	return store.Save(tx, scopeKey(plane, scope), s)
}
