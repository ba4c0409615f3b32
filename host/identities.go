package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/store"
)

// openIssuer makes the issuer and the server where tokens are taken, when this host
// issues identities. With replacedBy another authority takes the present one's place, on
// behalf of that actor.
func (h *Host) openIssuer(ctx context.Context, replacedBy string) error {
	c := h.config
	if !c.Identities || h.issuer != nil {
		return nil
	}
	o := identity.Options{
		Store: audit.Guard(h.store), Audit: h.ledger, TrustDomain: c.TrustDomain, HostID: h.id, DataDir: c.DataDir,
		TTL: c.SVIDTTL, MinTTL: c.SVIDMinTTL, ReplacedBy: replacedBy, HostKeys: c.HostKeys, Dev: c.Dev, Logger: h.log.Named("identity"), Registerer: h.metrics,
	}
	if c.CACert != "" {
		given, err := identity.LoadCA(c.TrustDomain, c.CACert, c.CAKey)
		if err != nil {
			var file *fs.PathError
			if errors.As(err, &file) {
				err = fmt.Errorf("%s: %w", file.Path, file.Err)
			}
			return &config.Error{Problems: []config.Problem{{Where: "identity.ca_cert", Text: err.Error()}}}
		}
		o.Given = given
	}
	if h.shared() {
		o.Lacks = h.lacks
	}
	issuer, err := identity.Open(ctx, o)
	if err != nil {
		return fmt.Errorf("identities: %w", err)
	}
	h.issuer = issuer
	h.bootstrap = api.NewBootstrap(h.issuer, h.log.Named("bootstrap"))
	return nil
}

// listenBootstrap opens the listener for tokens.
func (h *Host) listenBootstrap() (err error) {
	if h.bootstrap == nil {
		return nil
	}
	if h.bootstrapListener, err = net.Listen("tcp", h.config.BootstrapListen); err != nil {
		return fmt.Errorf("bootstrap.listen: %w; choose another address with --bootstrap-listen", err)
	}
	return nil
}

// authorities lists those whose keys this host has, for the other hosts.
func (h *Host) authorities() []string {
	if h.issuer == nil {
		return nil
	}
	return h.issuer.Keys()
}

// lacks lists the other hosts that issue identities and have not the key of an
// authority. Those that went silent are not waited for.
func (h *Host) lacks(tx store.ReadTx, keyID string) (hosts []string, err error) {
	since := tx.Now().Add(-memberGone).UnixMilli()
	entries, err := tx.Scan(memberIndex, uint64(max(since, 0)), store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		var m statev1.HostRecord
		if _, err := store.Load(tx, memberKey(e.Member), &m); err != nil {
			return nil, err
		}
		if m.Id != h.id && len(m.Authorities) > 0 && !slices.Contains(m.Authorities, keyID) {
			hosts = append(hosts, m.Id)
		}
	}
	return hosts, nil
}
