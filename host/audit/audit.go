// Package audit keeps the hash-chained log of what happened and why.
//
// One chain per service, and two for what belongs to none: [HostChain] and
// [PoolChain]. An entry is one line of JSON and its hash is the SHA-256 of
// exactly that line's bytes, so any language, or sha256sum, can check a chain
// without encoding anything again. [Log.Append] writes an entry inside the
// caller's store transaction: the action and its entry are one commit, neither
// exists without the other. Callers are the host's packages that change state;
// formats and kinds are in docs/formats.md.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

// Chains that belong to no service.
const (
	HostChain = attest.HostChain // plugins, identities, the clock
	PoolChain = attest.PoolChain // the egress plane
)

const (
	// MaxLine is the most bytes an entry's line may have.
	MaxLine = attest.MaxLine
	// MaxEvidence is the most bytes of one piece of evidence.
	MaxEvidence = 64 << 10
)

// ErrRefused marks an entry that must not be written: an unknown kind or key,
// invalid UTF-8, too long. The transaction that carries it is refused whole.
var ErrRefused = errors.New("audit: entry refused")

// ErrBroken marks what [Log.Check] has found wrong with a chain.
var ErrBroken = errors.New("audit: chain broken")

// broken is an ErrBroken whose text says where already.
type broken struct{ error }

func (broken) Is(target error) bool { return target == ErrBroken }

// Entry is what a caller says; the log adds seq, time and prev.
type Entry struct {
	Kind     string            // one of the table in kinds.go
	Actor    string            // SPIFFE ID of the peer; "local:dev" in dev; "host:<id>" for what the host does by itself
	Detail   map[string]string // keys of the kind's row; empty values are left out
	Evidence []Evidence
}

// Evidence is what a decision was based on, as it was received. The entry
// carries its hash and length; the bytes are kept beside the log.
type Evidence struct {
	Kind string // a word, such as "query:latency"
	Data []byte // at most MaxEvidence bytes
}

// Log appends to the chains of one trust domain. Safe for concurrent use. It knows
// nothing of the chains but which of them a [Scrub] has found damaged.
type Log struct {
	trustDomain string
	damage      damage
}

// New returns the log of a trust domain. The domain is part of each chain's
// genesis, so chains of two domains never continue one another.
func New(trustDomain string) *Log { return &Log{trustDomain: trustDomain} }

// Genesis is the hash that seq 1 of a chain names as its previous one.
func (l *Log) Genesis(chain string) [32]byte {
	return attest.Genesis(l.trustDomain, chain)
}

// Append adds an entry to chain inside tx. It fails, and with it the whole
// transaction, when the entry is not of a known form (ErrRefused), when the store
// does, or when the entry is of a control action and the chain is damaged.
func (l *Log) Append(tx store.Tx, chain string, e Entry) error {
	if err := check(chain, e); err != nil {
		return err
	}
	if goOn, err := l.admit(chain, e.Kind); err != nil || !goOn {
		return err
	}
	head, err := loadHead(tx, chain)
	if err != nil {
		return err
	}
	now := tx.Now().UnixMilli()
	// The store's clock never falls while one store serves; after a restore or
	// a fail-over it may. Time never decides order, but a reader must be told.
	if now < head.GetTimeMs() && e.Kind != "clock.step" {
		step := Entry{Kind: "clock.step", Actor: e.Actor, Detail: map[string]string{
			"delta_ms": fmt.Sprint(now - head.GetTimeMs()),
		}}
		if err := l.Append(tx, HostChain, step); err != nil {
			return err
		}
		if chain == HostChain {
			if head, err = loadHead(tx, chain); err != nil {
				return err
			}
		}
	}
	prev := l.Genesis(chain)
	if head.GetSeq() > 0 {
		prev = [32]byte(head.GetHash())
	}
	line, err := encode(line{seq: head.GetSeq() + 1, timeMS: now, chain: chain, entry: e, prev: prev})
	if err != nil {
		return err
	}
	seq, err := tx.Append(logName(chain), line)
	if err != nil {
		return err
	}
	if seq != head.GetSeq()+1 {
		return fmt.Errorf("audit: chain %s: head says %d entries, the log has %d: the chain is damaged", chain, head.GetSeq(), seq-1)
	}
	for _, ev := range e.Evidence {
		key := blobKey(chain, sha256.Sum256(ev.Data))
		if err := store.Save(tx, key, &statev1.EvidenceBlob{Kind: ev.Kind, Data: ev.Data}); err != nil {
			return err
		}
	}
	hash := sha256.Sum256(line)
	return store.Save(tx, headKey(chain), &statev1.ChainHead{Seq: seq, Hash: hash[:], TimeMs: now})
}

// Head returns the newest entry's number and hash; 0 and the genesis when the
// chain is empty.
func (l *Log) Head(tx store.ReadTx, chain string) (seq uint64, hash [32]byte, err error) {
	head, err := loadHead(tx, chain)
	if err != nil || head.GetSeq() == 0 {
		return 0, l.Genesis(chain), err
	}
	return head.GetSeq(), [32]byte(head.GetHash()), nil
}

// loadHead reads a chain's head; an empty one when there is none. What it returns has
// a whole hash, or number 0.
func loadHead(tx store.ReadTx, chain string) (*statev1.ChainHead, error) {
	head := new(statev1.ChainHead)
	version, err := store.Load(tx, headKey(chain), head)
	if err == nil && version != 0 && (head.GetSeq() == 0 || len(head.GetHash()) != sha256.Size) {
		err = fmt.Errorf("%w: audit: the head of chain %s has no number or no hash", store.ErrDamaged, chain)
	}
	return head, err
}

// Check re-reads a whole chain and re-computes every hash. An [ErrBroken] names the
// first entry that does not hold; any other error is the store's.
func (l *Log) Check(tx store.ReadTx, chain string) (entries uint64, err error) {
	v, err := l.Start(tx, chain)
	if err != nil {
		return 0, err
	}
	for done := false; !done; {
		if v, done, err = l.CheckOn(tx, chain, v, 10_000); err != nil {
			return v.Seq(), err
		}
	}
	return v.Seq(), nil
}

// Start returns a chain as it begins in the store: before entry 1, or after the
// last entry that moved to segment files.
func (l *Log) Start(tx store.ReadTx, chain string) (attest.Chain, error) {
	older, err := l.Older(tx, chain)
	if err != nil || older == nil {
		return *attest.NewChain(l.trustDomain, chain), err
	}
	return *attest.ChainAfter(chain, older.LastSeq, [32]byte(must(hex.DecodeString(older.LastHash)))), nil
}

// CheckOn checks up to limit entries of a chain that follow what v has seen, and
// returns where it then is; done when that is the head. So a long chain can be
// checked in many short transactions while it grows.
func (l *Log) CheckOn(tx store.ReadTx, chain string, v attest.Chain, limit int) (next attest.Chain, done bool, err error) {
	headSeq, headHash, err := l.Head(tx, chain)
	if err != nil {
		return v, false, err
	}
	lines, err := tx.ReadLog(logName(chain), v.Seq()+1, limit)
	if err != nil {
		return v, false, err
	}
	payloads := make([][]byte, len(lines))
	for i, line := range lines {
		payloads[i] = line.Payload
	}
	if _, err := v.AddAll(payloads); err != nil {
		return v, false, broken{fmt.Errorf("audit: %w", err)}
	}
	if len(lines) == limit {
		return v, false, nil
	}
	if v.Seq() != headSeq || v.Hash() != headHash {
		return v, false, broken{fmt.Errorf("audit: chain %s: ends at entry %d (%x), its head says %d (%x)",
			chain, v.Seq(), v.Hash(), headSeq, headHash)}
	}
	return v, true, nil
}

func headKey(chain string) string { return "audit/" + chain + "/head" }
func logName(chain string) string { return "audit/" + chain }
func blobKey(chain string, hash [32]byte) string {
	return "audit/" + chain + "/blob/" + hex.EncodeToString(hash[:])
}

// Value joins what a detail holds several of: sorted input stays sorted.
func Value(values []string) string { return strings.Join(values, ",") }
