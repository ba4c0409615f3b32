package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// Format is the format of an audit entry; it is its first member.
const Format = "dona-audit-v1"

// Chains that belong to no service.
const (
	HostChain = "@host" // plugins, identities, the clock
	PoolChain = "@pool" // the egress plane
)

// Genesis is the hash that entry 1 of a chain names as its previous one. The trust
// domain is part of it, so chains of two domains never continue one another.
func Genesis(trustDomain, chain string) [32]byte {
	return sha256.Sum256([]byte(Format + "|" + trustDomain + "|" + chain))
}

// A Chain checks the entries of one audit chain in their order. It needs nothing
// but the lines: no host, no store. Copies go on by themselves. Not safe for
// concurrent use.
type Chain struct {
	name string
	seq  uint64
	hash [32]byte
}

// NewChain begins before entry 1 of a chain.
func NewChain(trustDomain, chain string) *Chain {
	return &Chain{name: chain, hash: Genesis(trustDomain, chain)}
}

// ChainAfter begins after entry seq, whose hash is known.
func ChainAfter(chain string, seq uint64, hash [32]byte) *Chain {
	return &Chain{name: chain, seq: seq, hash: hash}
}

// Seq is the number of the last good entry.
func (c *Chain) Seq() uint64 { return c.seq }

// Hash is the hash of the last good entry; before entry 1 the genesis.
func (c *Chain) Hash() [32]byte { return c.hash }

// Add checks that line is entry Seq()+1 of the chain: one line laid out as an
// entry, of this chain, with this number, and that it names the hash of the one
// before. The error, a [*Fault], names the entry and what does not hold; the chain
// then stays where it was.
func (c *Chain) Add(raw []byte) error {
	_, err := c.add(raw)
	return err
}

func (c *Chain) add(raw []byte) (line, error) {
	bad := func(unlinked bool, format string, args ...any) (line, error) {
		return line{}, &Fault{Chain: c.name, Seq: c.seq + 1, Cause: fmt.Sprintf(format, args...), unlinked: unlinked}
	}
	l, err := parseLine(raw)
	if err != nil {
		return bad(false, "%v", err)
	}
	var hex [64]byte
	switch {
	case string(l.service) != c.name:
		return bad(false, "belongs to the chain %.64q", l.service)
	case l.seq != c.seq+1:
		return bad(false, "says it is number %d", l.seq)
	case !bytes.Equal(l.prev, appendHex(&hex, &c.hash)):
		return bad(true, "does not continue the one before it: its prev is %s, the hash of entry %d is %x", l.prev, c.seq, c.hash)
	}
	c.seq, c.hash = l.seq, sha256.Sum256(raw)
	return l, nil
}

// An Entry is what whoever looks through a chain wants to know of an entry.
type Entry struct {
	Seq    uint64
	TimeMS int64
	Kind   string
	Actor  string
	Prev   [32]byte // hash of the entry before
}

// ParseEntry reads one line, which must be laid out as an entry.
func ParseEntry(raw []byte) (Entry, error) {
	l, err := parseLine(raw)
	if err != nil {
		return Entry{}, err
	}
	return Entry{l.seq, l.timeMS, l.plain(l.kind), l.plain(l.actor), [32]byte(must(hex.DecodeString(string(l.prev))))}, nil
}

// A Fault is the first thing found that does not hold.
type Fault struct {
	Page  string // the report or segment file it is in; may be empty
	Chain string // may be empty, when not known
	Seq   uint64 // the entry; 0 when it is not in one
	Cause string

	unlinked bool // the entry and the one before it do not fit; either may be wrong
}

func (f *Fault) Error() string {
	var b strings.Builder
	if f.Page != "" {
		b.WriteString(f.Page + ": ")
	}
	if f.Chain != "" {
		b.WriteString("chain " + f.Chain + ": ")
	}
	if f.Seq != 0 {
		fmt.Fprintf(&b, "entry %d ", f.Seq)
	}
	b.WriteString(f.Cause)
	return b.String()
}

// unescape decodes what is between the quotes of a JSON string.
func unescape(text []byte) string {
	var s string
	if json.Unmarshal(append(append([]byte{'"'}, text...), '"'), &s) != nil {
		return string(text) // cannot be: it was checked
	}
	return s
}
