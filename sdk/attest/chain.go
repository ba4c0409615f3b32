package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
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

// AddAll adds lines in their order, the work shared between processors, and returns
// how many are good: all, or those before the one that the error is about.
func (c *Chain) AddAll(lines [][]byte) (good int, err error) {
	return c.addAll(lines, func(int, *line) error { return nil })
}

// linesAtOnce is how many lines are taken apart before they are linked.
const linesAtOnce = 2048

// addAll calls each with every line that was added, in their order; its error ends it.
func (c *Chain) addAll(lines [][]byte, each func(i int, l *line) error) (good int, err error) {
	workers := runtime.GOMAXPROCS(0)
	parts := make([]part, min(len(lines), linesAtOnce))
	for begin := 0; begin < len(lines); begin += linesAtOnce {
		some := lines[begin:min(begin+linesAtOnce, len(lines))]
		share := (len(some) + workers - 1) / workers
		if share < 64 {
			share = len(some) // not worth a goroutine
		}
		var wg sync.WaitGroup
		for from := share; from < len(some); from += share {
			wg.Go(func() { takeApart(some[from:min(from+share, len(some))], parts[from:]) })
		}
		takeApart(some[:share], parts)
		wg.Wait()
		for i := range some {
			if err := c.link(&parts[i]); err != nil {
				return begin + i, err
			}
			if err := each(begin+i, &parts[i].line); err != nil {
				return begin + i + 1, err
			}
		}
	}
	return len(lines), nil
}

// part is a line by itself: what it says and what it hashes to.
type part struct {
	line
	err  error
	hash [32]byte
}

func takeApart(lines [][]byte, parts []part) {
	for i, raw := range lines {
		parts[i].line, parts[i].err = parseLine(raw)
		parts[i].hash = sha256.Sum256(raw)
	}
}

func (c *Chain) add(raw []byte) (line, error) {
	var p [1]part
	takeApart([][]byte{raw}, p[:])
	return p[0].line, c.link(&p[0])
}

// link checks that a line is the next one of the chain, and goes on to it.
func (c *Chain) link(p *part) error {
	bad := func(unlinked bool, format string, args ...any) error {
		return &Fault{Chain: c.name, Seq: c.seq + 1, Cause: fmt.Sprintf(format, args...), unlinked: unlinked}
	}
	if p.err != nil {
		return bad(false, "%v", p.err)
	}
	var hex [64]byte
	switch {
	case string(p.service) != c.name:
		return bad(false, "belongs to the chain %.64q", p.service)
	case p.seq != c.seq+1:
		return bad(false, "says it is number %d", p.seq)
	case !bytes.Equal(p.prev, appendHex(&hex, &c.hash)):
		return bad(true, "does not continue the one before it: its prev is %s, the hash of entry %d is %x", p.prev, c.seq, c.hash)
	}
	c.seq, c.hash = p.seq, p.hash
	return nil
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
