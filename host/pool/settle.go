package pool

import (
	"context"
	"slices"

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
// written, some at a time.
func (p *Pool) Settle(ctx context.Context, refs []string, decide func(ref string, v secret.Version) secret.Version) (map[string]uint32, error) {
	numbers := make(map[string]uint32, len(refs))
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
