package pool

import (
	"context"
	"maps"
	"slices"
	"strings"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/store"
)

// InForce is the configuration in force, with what operators switched; nil when none
// is published. Nobody changes it.
func (p *Pool) InForce(ctx context.Context) (c *poolconfig.Config, err error) {
	err = p.o.Store.View(ctx, func(tx store.ReadTx) error {
		have, err := p.lookUp(tx)
		if c = nil; have != nil {
			c = have.config
		}
		return err
	})
	return c, err
}

// Settled tells of new versions of credentials, whoever of the hosts made them, until ctx
// ends.
func (p *Pool) Settled(ctx context.Context) <-chan struct{} {
	return p.o.Store.Watch(ctx, credentialPrefix)
}

// Settle agrees with the other hosts on the versions of credentials. decide is given
// what the store has of a reference, and returns what it has to have; it may be called
// several times. The answer is the version of each reference. Only what changes is
// written, some at a time. Proxies whose credential is a later version are checked at
// once.
func (p *Pool) Settle(ctx context.Context, refs []string, decide func(ref string, v secret.Version) secret.Version) (map[string]uint32, error) {
	numbers, risen := make(map[string]uint32, len(refs)), map[string]bool{}
	defer func() {
		if len(risen) > 0 {
			p.report("check proxies with new credentials at once", p.checkAgain(ctx, risen))
		}
	}()
	for some := range slices.Chunk(refs, batch) {
		var changed []string
		if err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
			changed = changed[:0]
			return eachVersion(tx, some, func(ref string, v secret.Version) error {
				next := decide(ref, v)
				if numbers[ref] = next.Number; next.Number != v.Number {
					changed = append(changed, ref)
				}
				return nil
			})
		}); err != nil {
			return nil, err
		}
		if len(changed) == 0 {
			continue
		}
		if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
			return eachVersion(tx, changed, func(ref string, v secret.Version) error {
				next := decide(ref, v)
				if numbers[ref] = next.Number; next.Number == v.Number {
					return nil
				}
				risen[ref] = v.Number > 0
				record := &statev1.CredentialVersion{SecretRef: ref, Version: next.Number, Digest: next.Digest[:]}
				for _, d := range next.Past {
					record.Past = append(record.Past, slices.Clone(d[:]))
				}
				return store.Save(tx, credentialKey(ref), record)
			})
		}); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// InlineRef is the reference of a credential that stands in a list of an upstream, of the
// proxy with that id. No document may name one.
func InlineRef(upstream, id string) string { return inlinePrefix(upstream) + id }

func inlinePrefix(upstream string) string { return "list:" + upstream + "/" }

// checkAgain has the proxies of credentials checked now: they may be the reason for which
// one was out, and one that is in may be out with them. What is not told here for a store
// that fails is checked when it is due.
func (p *Pool) checkAgain(ctx context.Context, refs map[string]bool) error {
	if p.o.Checks == nil {
		return nil
	}
	ids := map[string][]string{} // by upstream
	if err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		clear(ids)
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		for _, u := range have.config.Upstreams {
			if !u.Enabled || !refs[u.SecretRef] && !inlineOf(u.Name, refs) {
				continue
			}
			entries, err := tx.Scan(proxiesIndex(u.Name), 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			proxies, err := loadProxies(tx, entries)
			if err != nil {
				return err
			}
			for _, s := range proxies {
				if refs[s.SecretRef] && checked(s.State) {
					ids[u.Name] = append(ids[u.Name], s.Id)
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, upstream := range slices.Sorted(maps.Keys(ids)) {
		for some := range slices.Chunk(ids[upstream], batch) {
			if err := p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
				for _, level := range []string{basicScope, egressScope} {
					if err := p.o.Checks.Again(tx, CheckPlane, scopeOf(upstream, level), some); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// inlineOf reports whether a list of the upstream has one of these credentials.
func inlineOf(upstream string, refs map[string]bool) bool {
	for ref, on := range refs {
		if on && strings.HasPrefix(ref, inlinePrefix(upstream)) {
			return true
		}
	}
	return false
}

// eachVersion reads the versions of references.
func eachVersion(tx store.ReadTx, refs []string, do func(ref string, v secret.Version) error) error {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = credentialKey(ref)
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return err
	}
	for i, ref := range refs {
		record := new(statev1.CredentialVersion)
		if _, err := store.Load(tx, keys[i], record); err != nil {
			return err
		}
		v := secret.Version{Number: record.Version, Past: make([]secret.Digest, len(record.Past))}
		copy(v.Digest[:], record.Digest)
		for i, d := range record.Past {
			copy(v.Past[i][:], d)
		}
		if err := do(ref, v); err != nil {
			return err
		}
	}
	return nil
}
