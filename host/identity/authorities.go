package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

const (
	prepared = statev1.Authority_STATE_PREPARED
	active   = statev1.Authority_STATE_ACTIVE
	old      = statev1.Authority_STATE_OLD
)

const authoritiesKey = "identity/ca"

func lastLeafKey(keyID string) string {
	return "identity/leaf/" + strings.TrimPrefix(keyID, "sha256:")
}

func in(all *statev1.Authorities, state statev1.Authority_State) *statev1.Authority {
	for _, a := range all.GetAll() {
		if a.GetState() == state {
			return a
		}
	}
	return nil
}

// view is what this host knows of the authorities. Immutable.
type view struct {
	version  uint64 // of the record
	signer   *CA    // nil: this host has not the active one's key
	activeID string
	bundle   []*x509.Certificate // all that SVIDs are verified with
	pem      []byte              // the same
	mine     map[string]*CA      // whose keys are here, by key id
}

// found settles, at a host's start, which authority the trust domain has. The first
// host of a store says which; a later one has to have its key.
func (i *Issuer) found(ctx context.Context) error {
	mine, err := i.keys.load()
	if err != nil {
		return err
	}
	if g := i.o.Given; g != nil {
		mine[g.KeyID] = g
	}
	have, version, err := i.read(ctx)
	if err != nil {
		return err
	}
	switch {
	case version == 0:
		have, version, err = i.begin(ctx, mine)
	case i.o.ReplacedBy != "":
		have, version, err = i.replace(ctx, have, mine)
	}
	if err != nil {
		return err
	}
	v, err := i.viewOf(have, version, mine)
	if err != nil {
		return err
	}
	if err := i.judge(have, v); err != nil {
		if !i.o.Dev {
			return err
		}
		i.o.Logger.Warn("this host issues no identities", "error", err)
		v.signer = nil
	}
	i.now.Store(v)
	return nil
}

// judge refuses a host whose authorities are others than the store's.
func (i *Issuer) judge(have *statev1.Authorities, v *view) error {
	if g := i.o.Given; g != nil && !slices.ContainsFunc(have.GetAll(), func(a *statev1.Authority) bool { return a.GetKeyId() == g.KeyID }) {
		return fmt.Errorf("%w: identity.ca_cert has the authority %s, and the hosts of this store have %s: give all of them the same", store.ErrRefused, g.KeyID, v.activeID)
	}
	if v.signer == nil {
		return fmt.Errorf("%w: the authority of this store's hosts is %s, and its key is not here: copy %s from the data directory of a host that has it, or name its files with identity.ca_cert and identity.ca_key; when it is lost, dona-host operator --new-authority makes another one",
			store.ErrRefused, v.activeID, i.keys.file(v.activeID))
	}
	return nil
}

// begin makes the first authority of a store, or takes the one that is here.
func (i *Issuer) begin(ctx context.Context, mine map[string]*CA) (*statev1.Authorities, uint64, error) {
	ca := i.o.Given
	switch {
	case ca != nil:
	case len(mine) == 1:
		ca = slices.Collect(maps.Values(mine))[0]
	case len(mine) > 1:
		return nil, 0, fmt.Errorf("%w: %s has %d authorities, and the store does not say which signs: move all but that one away", store.ErrRefused, i.keys.path, len(mine))
	default:
		var err error
		if ca, err = NewCA(i.o.TrustDomain, i.o.Wall()); err != nil {
			return nil, 0, err
		}
		if err := i.keys.save(ca); err != nil {
			return nil, 0, err
		}
		i.o.Logger.Info("made the authority of the trust domain", "key_id", ca.KeyID, "file", i.keys.file(ca.KeyID))
	}
	mine[ca.KeyID] = ca
	err := i.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		version, err := store.Load(tx, authoritiesKey, &statev1.Authorities{})
		if err != nil || version != 0 {
			return err // another host was first: judge says what that means
		}
		return i.save(tx, "host:"+i.o.HostID, "create", ca.KeyID, &statev1.Authorities{All: []*statev1.Authority{
			{KeyId: ca.KeyID, Certificate: ca.Certificate.Raw, State: active, SinceMs: tx.Now().UnixMilli()},
		}})
	})
	if err != nil {
		return nil, 0, err
	}
	return i.read(ctx)
}

// replace puts another authority into the place of the active one, without its key: the
// one that the configuration names, or a new one. The one before stays in bundles as the
// old one. One that was old or prepared before is dropped.
func (i *Issuer) replace(ctx context.Context, have *statev1.Authorities, mine map[string]*CA) (*statev1.Authorities, uint64, error) {
	ca := i.o.Given
	switch {
	case ca != nil && slices.ContainsFunc(have.GetAll(), func(a *statev1.Authority) bool { return a.GetKeyId() == ca.KeyID }):
		return nil, 0, fmt.Errorf("%w: identity.ca_cert has the authority %s, which the hosts of this store have already: name another, or none to have a new one made", store.ErrRefused, ca.KeyID)
	case ca == nil:
		var err error
		if ca, err = NewCA(i.o.TrustDomain, i.o.Wall()); err != nil {
			return nil, 0, err
		}
		if err := i.keys.save(ca); err != nil {
			return nil, 0, err
		}
	}
	mine[ca.KeyID] = ca
	err := i.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		have := new(statev1.Authorities)
		if _, err := store.Load(tx, authoritiesKey, have); err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		next := &statev1.Authorities{All: []*statev1.Authority{{KeyId: ca.KeyID, Certificate: ca.Certificate.Raw, State: active, SinceMs: now}}}
		for _, a := range have.GetAll() {
			if a.GetState() == active {
				a.State, a.SinceMs = old, now
				next.All = append(next.All, a)
			} else if err := tx.Delete(lastLeafKey(a.GetKeyId())); err != nil {
				return err
			}
		}
		return i.save(tx, i.o.ReplacedBy, "replace", ca.KeyID, next)
	})
	if err != nil {
		if i.o.Given == nil && !errors.Is(err, store.ErrUnknown) {
			_ = i.keys.remove(ca.KeyID) // nothing knows it
		}
		return nil, 0, err
	}
	return i.read(ctx)
}

func (i *Issuer) save(tx store.Tx, actor, step, keyID string, all *statev1.Authorities) error {
	if err := store.Save(tx, authoritiesKey, all); err != nil {
		return err
	}
	return i.o.Audit.Append(tx, audit.HostChain, audit.Entry{Kind: "ca.rollover", Actor: actor,
		Detail: map[string]string{"step": step, "key_id": keyID}})
}

func (i *Issuer) read(ctx context.Context) (*statev1.Authorities, uint64, error) {
	var have *statev1.Authorities
	var version uint64
	err := i.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		have = new(statev1.Authorities)
		version, err = store.Load(tx, authoritiesKey, have)
		return err
	})
	return have, version, err
}

func (i *Issuer) viewOf(have *statev1.Authorities, version uint64, mine map[string]*CA) (*view, error) {
	v := &view{version: version, mine: mine}
	for _, a := range have.GetAll() {
		cert, err := parseAuthority(i.o.TrustDomain, a.GetCertificate())
		if err != nil {
			return nil, fmt.Errorf("%w: the authority %s of the store %w", store.ErrRefused, a.GetKeyId(), err)
		}
		v.bundle = append(v.bundle, cert)
		v.pem = append(v.pem, certPEM(cert.Raw)...)
		if a.GetState() == active {
			v.activeID = a.GetKeyId()
			v.signer = mine[v.activeID]
		}
	}
	return v, nil
}

// lookForKeys takes over keys that were copied here since the start.
func (i *Issuer) lookForKeys() {
	i.refreshing.Lock()
	defer i.refreshing.Unlock()
	here, err := i.keys.load()
	if err != nil {
		i.o.Logger.Warn("cannot look for keys of authorities", "error", err)
		return
	}
	v := *i.now.Load()
	v.mine = maps.Clone(v.mine)
	maps.Copy(v.mine, here)
	if v.signer == nil {
		v.signer = v.mine[v.activeID]
	}
	i.now.Store(&v)
}

// refresh takes over what the store says now. An authority that was retired or dropped
// has its file removed.
func (i *Issuer) refresh(ctx context.Context) error {
	i.refreshing.Lock()
	defer i.refreshing.Unlock()
	have, version, err := i.read(ctx)
	before := i.now.Load()
	if err != nil || version == before.version {
		return err
	}
	mine := maps.Clone(before.mine)
	v, err := i.viewOf(have, version, mine)
	if err != nil {
		return err
	}
	for _, cert := range before.bundle {
		id := keyID(cert)
		if slices.ContainsFunc(have.GetAll(), func(a *statev1.Authority) bool { return a.GetKeyId() == id }) {
			continue
		}
		delete(mine, id)
		if err := i.keys.remove(id); err != nil {
			i.o.Logger.Warn("cannot remove the file of an authority that is no more; remove it", "file", i.keys.file(id), "error", err)
		}
	}
	if v.signer == nil {
		i.o.Logger.Warn("this host issues no identities: it has not the key of the active authority; copy it from another host and restart", "file", i.keys.file(v.activeID))
	}
	i.now.Store(v)
	i.o.Logger.Info("authorities changed", "active", v.activeID, "in_bundle", len(v.bundle))
	return nil
}

// Run follows what other hosts do to the authorities, until ctx ends.
func (i *Issuer) Run(ctx context.Context) error {
	for range i.o.Store.Watch(ctx, authoritiesKey) {
		i.complete()
		if err := i.refresh(ctx); err != nil && ctx.Err() == nil {
			i.o.Logger.Warn("cannot read the authorities", "error", err)
		}
	}
	return nil
}

// complete looks for keys when some are not here.
func (i *Issuer) complete() {
	v := i.now.Load()
	if slices.ContainsFunc(v.bundle, func(c *x509.Certificate) bool { return v.mine[keyID(c)] == nil }) {
		i.lookForKeys()
	}
}

// Keys lists the authorities whose keys this host has, for the other hosts.
func (i *Issuer) Keys() []string {
	i.complete()
	return slices.Sorted(maps.Keys(i.now.Load().mine))
}

// Authorities is how the authorities stand. Key ids are empty where there is none.
type Authorities struct {
	Active, Prepared, Old string
	OldUntil              time.Time // when the last SVID of the old one expires
}

// Status tells how the authorities stand.
func (i *Issuer) Status(ctx context.Context) (a Authorities, err error) {
	err = i.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		a, err = i.status(tx)
		return err
	})
	return a, err
}

func (i *Issuer) status(tx store.ReadTx) (Authorities, error) {
	var have statev1.Authorities
	if _, err := store.Load(tx, authoritiesKey, &have); err != nil {
		return Authorities{}, err
	}
	a := Authorities{Active: in(&have, active).GetKeyId(), Prepared: in(&have, prepared).GetKeyId(), Old: in(&have, old).GetKeyId()}
	if a.Old == "" {
		return a, nil
	}
	var last statev1.LastLeaf
	if _, err := store.Load(tx, lastLeafKey(a.Old), &last); err != nil {
		return a, err
	}
	a.OldUntil = time.UnixMilli(last.GetExpiresMs())
	return a, nil
}

// Prepare makes another authority and puts it into bundles. It signs nothing yet.
func (i *Issuer) Prepare(ctx context.Context, actor string) (Authorities, error) {
	if a, err := i.Status(ctx); err != nil {
		return a, err
	} else if a.Prepared != "" {
		return a, alreadyPrepared(a.Prepared)
	}
	ca, err := NewCA(i.o.TrustDomain, i.o.Wall())
	if err != nil {
		return Authorities{}, err
	}
	if err := i.keys.save(ca); err != nil { // first: what is in the store has a key
		return Authorities{}, err
	}
	a, err := i.change(ctx, func(tx store.Tx, have *statev1.Authorities) error {
		if p := in(have, prepared); p != nil {
			return alreadyPrepared(p.GetKeyId())
		}
		have.All = append(have.All, &statev1.Authority{KeyId: ca.KeyID, Certificate: ca.Certificate.Raw, State: prepared, SinceMs: tx.Now().UnixMilli()})
		return i.save(tx, actor, "prepare", ca.KeyID, have)
	})
	var refused *refusal.Error
	if errors.As(err, &refused) && refused.Kind == refusal.Precondition {
		_ = i.keys.remove(ca.KeyID) // nothing knows it
	}
	return a, err
}

func alreadyPrepared(keyID string) error {
	return refusal.New(refusal.Precondition, "the authority %s is prepared: activate it, or drop it", keyID)
}

// Activate has the prepared authority sign from now on. What the one before has signed
// stays valid until it expires.
func (i *Issuer) Activate(ctx context.Context, actor string) (Authorities, error) {
	return i.change(ctx, func(tx store.Tx, have *statev1.Authorities) error {
		next, was := in(have, prepared), in(have, active)
		if next == nil {
			return refusal.New(refusal.Precondition, "no authority is prepared: prepare one, and wait until workloads have renewed their SVIDs and know it")
		}
		if o := in(have, old); o != nil {
			return refusal.New(refusal.Precondition, "the authority %s is still there as the old one: retire it first", o.GetKeyId())
		}
		if i.now.Load().mine[next.GetKeyId()] == nil {
			return refusal.New(refusal.Precondition, "this host has not the key of the authority %s: activate it at the host where it was prepared, or copy its file from there; when it is lost, drop this one and prepare another", next.GetKeyId())
		}
		if i.o.Lacks != nil {
			hosts, err := i.o.Lacks(tx, next.GetKeyId())
			if err != nil {
				return err
			}
			if len(hosts) > 0 {
				return refusal.New(refusal.Precondition, "hosts that have not the key of the authority %s: %s; copy %s into their data directories first",
					next.GetKeyId(), strings.Join(hosts[:min(len(hosts), 8)], ", "), "ca/"+strings.TrimPrefix(next.GetKeyId(), "sha256:")+".pem")
			}
		}
		now := tx.Now().UnixMilli()
		next.State, next.SinceMs = active, now
		was.State, was.SinceMs = old, now
		return i.save(tx, actor, "activate", next.GetKeyId(), have)
	})
}

// Drop takes the prepared authority out of bundles again. It has signed nothing, so
// nobody misses it.
func (i *Issuer) Drop(ctx context.Context, actor string) (Authorities, error) {
	return i.change(ctx, func(tx store.Tx, have *statev1.Authorities) error {
		gone := in(have, prepared)
		if gone == nil {
			return refusal.New(refusal.Precondition, "no authority is prepared: nothing to drop")
		}
		have.All = slices.DeleteFunc(have.All, func(a *statev1.Authority) bool { return a == gone })
		return i.save(tx, actor, "drop", gone.GetKeyId(), have)
	})
}

// Retire takes the old authority out of bundles, once everything that it signed has
// expired.
func (i *Issuer) Retire(ctx context.Context, actor string) (Authorities, error) {
	return i.change(ctx, func(tx store.Tx, have *statev1.Authorities) error {
		gone := in(have, old)
		if gone == nil {
			return refusal.New(refusal.Precondition, "there is no old authority: nothing to retire")
		}
		var last statev1.LastLeaf
		if _, err := store.Load(tx, lastLeafKey(gone.GetKeyId()), &last); err != nil {
			return err
		}
		if until := time.UnixMilli(last.GetExpiresMs()); tx.Now().Before(until) {
			return refusal.New(refusal.Precondition, "the authority %s has signed SVIDs that are valid until %s: retire it after that", gone.GetKeyId(), until.UTC().Format(time.RFC3339))
		}
		have.All = slices.DeleteFunc(have.All, func(a *statev1.Authority) bool { return a == gone })
		if err := tx.Delete(lastLeafKey(gone.GetKeyId())); err != nil {
			return err
		}
		return i.save(tx, actor, "retire", gone.GetKeyId(), have)
	})
}

// change makes one step, follows it, and tells how the authorities then stand.
func (i *Issuer) change(ctx context.Context, step func(tx store.Tx, have *statev1.Authorities) error) (Authorities, error) {
	i.lookForKeys()
	var a Authorities
	err := i.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		have := new(statev1.Authorities)
		if _, err := store.Load(tx, authoritiesKey, have); err != nil {
			return err
		}
		err := step(tx, have)
		if err != nil {
			return err
		}
		a, err = i.status(tx)
		return err
	})
	if err != nil {
		return Authorities{}, err
	}
	return a, i.refresh(ctx)
}
