// Package fsck checks what a store holds: that the records of every service and of the
// egress plane parse and agree with one another, and that every audit chain holds from its first entry
// to its head. It changes nothing, and runs on any store: host/api runs it on the one
// that a host has open, cmd/dona on the file of a host that does not run.
package fsck

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

// MaxProblems bounds the problems of a Report.
const MaxProblems = 100

// A Report is what a check has found.
type Report struct {
	Services int
	Records  int     // that were read and parse
	Chains   []Chain // those that hold
	Problems []string
}

// A Chain is an audit chain that holds.
type Chain struct {
	Name    string
	Entries uint64
	Head    string // hash of the newest entry, hex
}

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < MaxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Run checks a store. Each service and each upstream is looked at as of one revision, and its chain up
// to the head that it then has; what is written meanwhile is no harm. Chains of
// services that are gone are not found. An error means that the store could not be
// read, and that nothing is known.
func Run(ctx context.Context, st store.Store, trustDomain string) (Report, error) {
	var r Report
	log := audit.New(trustDomain)
	plane := service.New(st, log, "")
	var services []string
	if err := st.View(ctx, func(tx store.ReadTx) (err error) {
		services, err = plane.Services(tx)
		return err
	}); err != nil {
		return r, fmt.Errorf("list the services: %w", err)
	}
	r.Services = len(services)
	for _, name := range services {
		var records int
		var problems []string
		if err := st.View(ctx, func(tx store.ReadTx) (err error) {
			records, problems, err = plane.Verify(tx, name)
			return err
		}); err != nil {
			return r, fmt.Errorf("service %s: %w", name, err)
		}
		r.Records += records
		for _, p := range problems {
			r.problem("service %s: %s", name, p)
		}
	}
	if err := r.pool(ctx, st); err != nil {
		return r, fmt.Errorf("egress plane: %w", err)
	}
	for _, chain := range append([]string{audit.HostChain, audit.PoolChain}, services...) {
		if err := r.chain(ctx, st, log, chain); err != nil {
			return r, fmt.Errorf("audit chain %s: %w", chain, err)
		}
	}
	return r, nil
}

// pool checks the records of the egress plane.
func (r *Report) pool(ctx context.Context, st store.Store) error {
	look := func(what string, verify func(tx store.ReadTx) (int, []string, error)) error {
		var records int
		var problems []string
		if err := st.View(ctx, func(tx store.ReadTx) (err error) {
			records, problems, err = verify(tx)
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		r.Records += records
		for _, p := range problems {
			r.problem("%s: %s", what, p)
		}
		return nil
	}
	var upstreams []string
	if err := st.View(ctx, func(tx store.ReadTx) (err error) {
		upstreams, err = pool.Upstreams(tx)
		return err
	}); err != nil {
		return err
	}
	for _, name := range upstreams {
		if err := look("upstream "+name, func(tx store.ReadTx) (int, []string, error) { return pool.VerifyUpstream(tx, name) }); err != nil {
			return err
		}
	}
	return look("pool", pool.Verify)
}

// pageLen is how many entries of a chain one transaction reads.
const pageLen = 1000

func (r *Report) chain(ctx context.Context, st store.Store, log *audit.Log, chain string) error {
	var v attest.Chain
	err := st.View(ctx, func(tx store.ReadTx) (err error) {
		v, err = log.Start(tx, chain)
		return err
	})
	if err != nil {
		return err
	}
	for done := false; !done; {
		var next attest.Chain
		err := st.View(ctx, func(tx store.ReadTx) (err error) {
			next, done, err = log.CheckOn(tx, chain, v, pageLen)
			return err
		})
		if errors.Is(err, audit.ErrBroken) {
			r.problem("%v", err)
			return nil
		}
		if err != nil {
			return err
		}
		v = next
	}
	if v.Seq() > 0 {
		hash := v.Hash()
		r.Chains = append(r.Chains, Chain{Name: chain, Entries: v.Seq(), Head: hex.EncodeToString(hash[:])})
	}
	return nil
}
