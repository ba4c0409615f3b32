package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Options of an Issuer.
type Options struct {
	Store       store.Store // guarded: what acts writes here
	Audit       *audit.Log
	TrustDomain string
	HostID      string
	DataDir     string        // the authorities' files are in its folder ca
	Given       *CA           // the authority that the configuration names; nil: one of DataDir, made at the first start
	TTL         time.Duration // of an SVID
	MinTTL      time.Duration // an SVID that would have less left is refused
	HostKeys    bool          // makes keys for workloads that send no request for a certificate
	ReplacedBy  string        // actor on whose behalf another authority takes the active one's place now; empty: none does
	Dev         bool          // a host with another authority than its store's serves on, without issuing
	Logger      hclog.Logger
	Wall        func() time.Time // what certificates are judged by; nil = time.Now
	Registerer  prometheus.Registerer

	// Lacks lists hosts that have not the key of an authority; nil: there are no others.
	Lacks func(tx store.ReadTx, keyID string) ([]string, error)
}

// An Issuer issues the SVIDs of a trust domain. Safe for concurrent use.
type Issuer struct {
	o    Options
	keys keyDir
	now  atomic.Pointer[view]

	refreshing sync.Mutex
	issued     *prometheus.CounterVec
}

// Open makes the issuer of a host, and the authority of the trust domain when its store
// has none. A host that has another authority than its store, or not the key, is
// refused with store.ErrRefused; with Dev it is told and issues nothing.
func Open(ctx context.Context, o Options) (*Issuer, error) {
	if o.Wall == nil {
		o.Wall = time.Now
	}
	i := &Issuer{o: o, keys: keyDir{path: filepath.Join(o.DataDir, "ca"), trustDomain: o.TrustDomain}}
	i.issued = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dona_svids_issued_total", Help: "SVIDs issued, by what for: token, renewal.",
	}, []string{"via"})
	for _, via := range []string{"token", "renewal"} {
		i.issued.WithLabelValues(via)
	}
	if err := i.found(ctx); err != nil {
		return nil, err // nothing is registered: Open may be called again
	}
	if o.Registerer != nil {
		if err := o.Registerer.Register(i.issued); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// TrustDomain is whose identities are issued.
func (i *Issuer) TrustDomain() string { return i.o.TrustDomain }

// Bundle is what SVIDs of the trust domain are verified with now. Not to be changed.
func (i *Issuer) Bundle() []*x509.Certificate { return i.now.Load().bundle }

// soonEnds is how long before an authority's end its operator is told.
const soonEnds = 30 * 24 * time.Hour

// Alarms are what an operator has to do for identities to be issued here, now and in a
// month.
func (i *Issuer) Alarms() []string {
	v := i.now.Load()
	if v.signer == nil {
		return []string{fmt.Sprintf("no identities are issued here: the key of the authority %s is not in %s; copy it from a host that has it", v.activeID, i.keys.path)}
	}
	if end := v.signer.Certificate.NotAfter; i.o.Wall().After(end.Add(-soonEnds)) {
		return []string{fmt.Sprintf("the authority %s ends at %s, and all SVIDs before it: put another in its place, with dona svid ca", v.activeID, end.UTC().Format(time.RFC3339))}
	}
	return nil
}

// A Request asks for an SVID.
type Request struct {
	Service string // its identity; or Path; neither: the one that the token, or the caller, has
	Path    string
	CSR     []byte // PKCS#10 in PEM; empty: the host makes the key, when it may
}

// An SVID is what is issued, in PEM.
type SVID struct {
	ID      ID
	Cert    []byte
	Key     []byte // PKCS#8; empty unless the host made it
	Bundle  []byte
	Expires time.Time
}

// WithToken issues an SVID for one use of a token. Refusals: Invalid; Denied, with one
// text for whatever is wrong with the token; Precondition; Unavailable.
func (i *Issuer) WithToken(ctx context.Context, token string, req Request) (*SVID, error) {
	want := ""
	if req.Service != "" || req.Path != "" {
		id, err := i.named(req.Service, req.Path)
		if err != nil {
			return nil, err
		}
		want = id.String()
	}
	csr, key, err := i.key(req.CSR)
	if err != nil {
		return nil, err
	}
	var id ID
	if err := i.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		_, id, err = i.granted(tx, token, want)
		return err
	}); err != nil {
		return nil, err
	}
	return i.issue(ctx, store.Hard, "token", id, csr, key, func(tx store.Tx) (which string, err error) {
		t, _, err := i.granted(tx, token, id.String()) // again: another may have had it
		if err != nil {
			return "", err
		}
		return " " + t.GetId(), spend(tx, t)
	})
}

// Renew issues the next SVID to who has one, and to nobody else: the caller's identity
// was verified by the connection. Refusals: as WithToken.
func (i *Issuer) Renew(ctx context.Context, caller ID, req Request) (*SVID, error) {
	if req.Service != "" || req.Path != "" {
		id, err := i.named(req.Service, req.Path)
		if err != nil {
			return nil, err
		}
		if id != caller {
			return nil, refusal.New(refusal.Denied, "an SVID is renewed for its own identity only: another one needs a token, at the bootstrap listener")
		}
	}
	csr, key, err := i.key(req.CSR)
	if err != nil {
		return nil, err
	}
	return i.issue(ctx, store.Hard, "renewal", caller, csr, key, nothingSpent)
}

// Own issues this host's own next SVID, for a request in PEM. d is how its audit entry is
// written. Soft is for a store that takes no hard writes while a replica is down: hosts
// live on through that, and the entry is durable with the next hard write. Refusals: as
// WithToken.
func (i *Issuer) Own(ctx context.Context, csr []byte, d store.Durability) (*SVID, error) {
	c, err := ParseCSR(csr)
	if err := refusal.Check("csr_pem", err); err != nil {
		return nil, err
	}
	return i.issue(ctx, d, "renewal", i.OwnID(), c, nil, nothingSpent)
}

// OwnID is the identity of this host.
func (i *Issuer) OwnID() ID { return ID{TrustDomain: i.o.TrustDomain, Kind: Host, Name: i.o.HostID} }

func nothingSpent(store.Tx) (string, error) { return "", nil }

// named is the identity that a request names.
func (i *Issuer) named(service, path string) (ID, error) {
	switch {
	case service == "" && path == "":
		return ID{}, refusal.Field("service", "is empty, and so is path: name one identity")
	case service != "" && path != "":
		return ID{}, refusal.Field("path", "is set, and so is service: name one identity")
	case service != "":
		if err := refusal.Check("service", limits.Service(service)); err != nil {
			return ID{}, err
		}
		return ID{TrustDomain: i.o.TrustDomain, Kind: Service, Name: service}, nil
	}
	id, err := ParsePath(i.o.TrustDomain, path)
	if err := refusal.Check("path", err); err != nil {
		return ID{}, err
	}
	if id.Kind == Service {
		return ID{}, refusal.Field("path", "is a service's: name it with service")
	}
	return id, nil
}

// key is what an SVID is to be for: the request's key, or a new one, whose PEM is then
// returned.
func (i *Issuer) key(csr []byte) (*CSR, []byte, error) {
	if len(csr) > 0 {
		c, err := ParseCSR(csr)
		if err := refusal.Check("csr_pem", err); err != nil {
			return nil, nil, err
		}
		return c, nil, nil
	}
	if !i.o.HostKeys {
		return nil, nil, refusal.Field("csr_pem", "is empty: send a PKCS#10 request, so that the key never leaves its workload; this host makes none (identity.host_keys)")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return &CSR{Key: key.Public(), Asked: "a key of the host"}, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// errOvertaken ends a transaction whose SVID was signed by an authority that is not the
// active one any more.
var errOvertaken = errors.New("identity: another authority is active")

// issue signs, and hands out what it has signed only once its audit entry is written as d
// says. allow says, in its transaction, whether it may be, and which of what it is issued for.
func (i *Issuer) issue(ctx context.Context, d store.Durability, via string, id ID, csr *CSR, key []byte, allow func(tx store.Tx) (which string, err error)) (*SVID, error) {
	for try := 0; ; try++ {
		v := i.now.Load()
		if v.signer == nil {
			return nil, &refusal.Error{Kind: refusal.Unavailable, Reason: "ca", Text: "this host has not the key of the authority: ask another host; this one's log says what to do"}
		}
		leaf, err := v.signer.Sign(id, crypto.PublicKey(csr.Key), i.o.Wall(), i.o.TTL, i.o.MinTTL)
		if err != nil {
			return nil, err
		}
		err = i.o.Store.Update(ctx, d, func(tx store.Tx) error {
			if _, err := tx.GetMany(authoritiesKey, lastLeafKey(v.signer.KeyID)); err != nil { // in one round trip
				return err
			}
			var have statev1.Authorities
			if _, err := store.Load(tx, authoritiesKey, &have); err != nil {
				return err
			}
			if in(&have, active).GetKeyId() != v.signer.KeyID {
				return errOvertaken
			}
			which, err := allow(tx)
			if err != nil {
				return err
			}
			if err := i.noteLeaf(tx, v.signer.KeyID, leaf.NotAfter); err != nil {
				return err
			}
			return i.o.Audit.Append(tx, audit.HostChain, audit.Entry{Kind: "svid.issue", Actor: id.String(), Detail: map[string]string{
				"spiffe_id": id.String(), "serial": hex.EncodeToString(leaf.Serial.Bytes()),
				"not_after_ms": strconv.FormatInt(leaf.NotAfter.UnixMilli(), 10), "via": via + which, "asked": csr.Asked,
			}})
		})
		if errors.Is(err, errOvertaken) && try < 3 {
			if err := i.refresh(ctx); err != nil {
				return nil, fmt.Errorf("follow the authorities: %w", err)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		i.issued.WithLabelValues(via).Inc()
		return &SVID{ID: id, Cert: certPEM(leaf.Raw), Key: key, Bundle: v.pem, Expires: leaf.NotAfter}, nil
	}
}

// noteLeaf remembers when an authority's last SVID expires. It writes ahead, so that a
// busy host writes it once in a while.
func (i *Issuer) noteLeaf(tx store.Tx, keyID string, expires time.Time) error {
	var last statev1.LastLeaf
	if _, err := store.Load(tx, lastLeafKey(keyID), &last); err != nil {
		return err
	}
	if expires.UnixMilli() <= last.GetExpiresMs() {
		return nil
	}
	ahead := min(time.Minute, i.o.TTL/10)
	return store.Save(tx, lastLeafKey(keyID), &statev1.LastLeaf{ExpiresMs: expires.Add(ahead).UnixMilli()})
}
