package attest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// A Page is one report as a host has sent it, and its signature. An attestation is
// one page or, when the host said where to go on, several.
type Page struct {
	Name      string // for errors, such as a file's
	Report    []byte
	Signature []byte
}

// Options say what an attestation is checked against.
type Options struct {
	// Key is the signer's, from whom the verifier trusts: never from the reply.
	Key ed25519.PublicKey
	// Service and Nonce are what was asked for; nil = anything.
	Service, Nonce *string
	// Seen is what was verified of this chain before; nil = nothing is remembered.
	// Which chain it is says the first page, see [Parse].
	Seen *Seen
	// AllowGap accepts a report that begins after what was seen, or, when nothing was and
	// it was not asked for from a time on, after the beginning of its chain: the entries
	// before it are not checked. Without it that is a fault.
	AllowGap bool
}

// A Result is what a verified attestation shows.
type Result struct {
	TrustDomain string
	Service     string
	Nonce       string
	IssuedMS    int64 // of the last page
	KeyID       string
	Pages       int
	FirstSeq    uint64 // 0 when there is no entry
	LastSeq     uint64
	Entries     uint64
	Gaps        uint64
	Head        Head // of the last page
	Older       *Older
	Decisions   []Decisions
	Checked     []string // what holds, a sentence each
	NotProvable []string // what this attestation does not show, a sentence each
	Now         Seen     // what to remember
}

// Verify checks an attestation: for each page the signature with the key of the
// options, the layout, the counts, then of each entry its number, that it names the
// hash of the one before, and its hash, and last the head; that the pages continue
// one another; that they continue what was seen; and that no call was allowed into
// a region outside those allowed. An error is a [*Fault] and names the first entry
// that does not hold.
func Verify(pages []Page, o Options) (*Result, error) {
	if len(pages) == 0 {
		return nil, &Fault{Cause: "there is no report"}
	}
	v := verifier{o: o, decisions: newDecisions()}
	for _, p := range pages {
		if err := v.page(p); err != nil {
			var f *Fault
			if errors.As(err, &f) && f.Page == "" {
				f.Page = p.Name
			}
			return nil, err
		}
	}
	last := v.last
	if last.NextSeq != 0 {
		return nil, &Fault{Page: pages[len(pages)-1].Name, Chain: last.Service, Seq: last.NextSeq,
			Cause: "is missing: the report says to go on there, and there is no further report"}
	}
	return v.result(len(pages))
}

type verifier struct {
	o         Options
	last      *Report // the page before
	first     *Report
	from      *Report // the first page that has entries
	chain     *Chain  // after the entries so far
	entries   uint64
	gaps      uint64
	seenHash  string // of the entry that is remembered, once it is passed
	decisions *decisions
}

func (v *verifier) page(p Page) error {
	r, err := Parse(p.Report)
	if !ed25519.Verify(v.o.Key, p.Report, p.Signature) {
		return v.forged(r, err)
	}
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return &Fault{Chain: r.Service, Cause: fmt.Sprintf(format, args...)}
	}
	switch id := KeyID(v.o.Key); {
	case r.KeyID != id:
		return bad("the signer is said to be %.80s, the key that signed is %s", r.KeyID, id)
	case v.o.Service != nil && r.Service != *v.o.Service:
		return bad("it is about %.80q, asked was for %.80q", r.Service, *v.o.Service)
	case v.o.Nonce != nil && r.Nonce != *v.o.Nonce:
		return bad("the nonce is %.80q, asked was with %.80q: this is an answer to another question", r.Nonce, *v.o.Nonce)
	}
	if err := v.follows(r); err != nil {
		return err
	}
	chain, gaps, err := v.run(r, v.decisions)
	if err != nil {
		return err
	}
	if gaps != r.Gaps {
		return bad("gaps is %d, the entries tell of %d", r.Gaps, gaps)
	}
	if err := checkHead(r); err != nil {
		return err
	}
	v.entries += uint64(len(r.Entries))
	v.gaps += gaps
	v.last = r
	if v.first == nil {
		v.first = r
	}
	if v.from == nil && len(r.Entries) > 0 {
		v.from = r
	}
	if chain != nil {
		v.chain = chain
	}
	return nil
}

// forged says why a signature does not hold, as exactly as the bytes let it: the
// first bad entry, or another key.
func (v *verifier) forged(r *Report, err error) error {
	const cause = "the signature does not fit the report and the pinned key"
	var f *Fault
	if err == nil {
		if id := KeyID(v.o.Key); r.KeyID != id {
			return &Fault{Chain: r.Service, Cause: fmt.Sprintf("%s: it names the signer %.80s, pinned is %s", cause, r.KeyID, id)}
		}
		if _, _, err = v.run(r, newDecisions()); err == nil {
			err = checkHead(r)
		}
	}
	if errors.As(err, &f) {
		why := f.Cause
		if f.Seq != 0 {
			why = fmt.Sprintf("entry %d %s", f.Seq, f.Cause)
		}
		return &Fault{Chain: f.Chain, Seq: f.Seq, Cause: "is not what was signed: " + why}
	}
	return &Fault{Cause: cause + ": a byte of either was changed"}
}

// follows checks that a page is the one after those before.
func (v *verifier) follows(r *Report) error {
	if v.last == nil {
		return nil
	}
	bad := func(format string, args ...any) error {
		return &Fault{Chain: r.Service, Seq: r.FirstSeq, Cause: fmt.Sprintf(format, args...)}
	}
	switch l := v.last; {
	case l.NextSeq == 0:
		return bad("is on a page too many: the one before says that it is the last")
	case r.TrustDomain != l.TrustDomain || r.Service != l.Service:
		return bad("is of the chain %.80q of %.80q, the page before of %.80q of %.80q", r.Service, r.TrustDomain, l.Service, l.TrustDomain)
	case r.Nonce != l.Nonce:
		return bad("is on a page with the nonce %.80q, the page before has %.80q", r.Nonce, l.Nonce)
	case r.FirstSeq != l.NextSeq:
		return bad("begins this page, the one before says to go on at %d", l.NextSeq)
	case r.FirstPrev != l.LastHash:
		return bad("begins this page and does not continue the one before: first_prev is %s, its last_hash is %s", r.FirstPrev, l.LastHash)
	case r.Head.Seq < l.Head.Seq:
		return bad("is on a page whose head is entry %d, the page before had %d", r.Head.Seq, l.Head.Seq)
	}
	return nil
}

// run checks the entries of one page: numbers, links, hashes.
func (v *verifier) run(r *Report, counts *decisions) (chain *Chain, gaps uint64, err error) {
	bad := func(seq uint64, format string, args ...any) (*Chain, uint64, error) {
		return nil, 0, &Fault{Chain: r.Service, Seq: seq, Cause: fmt.Sprintf(format, args...)}
	}
	if len(r.Entries) == 0 {
		if r.FirstSeq != 0 || r.LastSeq != 0 || r.FirstPrev != "" || r.LastHash != "" || r.NextSeq != 0 {
			return bad(0, "there is no entry, and first_seq, last_seq, first_prev, last_hash or next_seq says that there is")
		}
		return nil, 0, nil
	}
	if r.FirstSeq == 0 || r.LastSeq != r.FirstSeq+uint64(len(r.Entries))-1 {
		return bad(0, "first_seq %d and last_seq %d do not go with %d entries", r.FirstSeq, r.LastSeq, len(r.Entries))
	}
	prev, err := hex.DecodeString(r.FirstPrev)
	if err != nil || !isHash([]byte(r.FirstPrev)) {
		return bad(0, "first_prev is %.80q: expected 64 hex digits", r.FirstPrev)
	}
	if genesis := Genesis(r.TrustDomain, r.Service); r.FirstSeq == 1 && !bytes.Equal(prev, genesis[:]) {
		return bad(0, "first_prev is %s, the chain begins with %x", r.FirstPrev, genesis)
	}
	chain = ChainAfter(r.Service, r.FirstSeq-1, [32]byte(prev))
	i, err := chain.addAll(r.Entries, func(_ int, l *line) error {
		if v.o.Seen != nil && l.seq == v.o.Seen.Seq {
			hash := chain.Hash()
			v.seenHash = hex.EncodeToString(hash[:])
		}
		lost, cause := counts.add(l)
		if cause != "" {
			return &Fault{Chain: r.Service, Seq: l.seq, Cause: cause}
		}
		gaps += lost
		return nil
	})
	if err != nil {
		return nil, 0, blame(r, i, err)
	}
	if hash := chain.Hash(); hex.EncodeToString(hash[:]) != r.LastHash {
		if r.Head.Seq == r.LastSeq && r.Head.Hash == hex.EncodeToString(hash[:]) {
			return bad(0, "last_hash is %.80q, the last entry hashes to %x", r.LastHash, hash)
		}
		return bad(r.LastSeq, "hashes to %x, last_hash is %.80q", hash, r.LastHash)
	}
	return chain, gaps, nil
}

// blame decides which of two entries that do not fit is the bad one: the later is
// good when what follows names its hash.
func blame(r *Report, i int, err error) error {
	var f *Fault
	if !errors.As(err, &f) || !f.unlinked {
		return err
	}
	hash := sha256.Sum256(r.Entries[i])
	next := r.LastHash
	if i+1 < len(r.Entries) {
		l, err := parseLine(r.Entries[i+1])
		if err != nil {
			return f
		}
		next = string(l.prev)
	}
	if next != hex.EncodeToString(hash[:]) {
		return f
	}
	if i == 0 {
		return &Fault{Chain: r.Service, Cause: fmt.Sprintf("first_prev is %s, and entry %d names another hash", r.FirstPrev, f.Seq)}
	}
	before := sha256.Sum256(r.Entries[i-1])
	return &Fault{Chain: r.Service, Seq: f.Seq - 1, Cause: fmt.Sprintf("was changed: it hashes to %x, and entry %d, which holds, names another hash", before, f.Seq)}
}

// checkHead checks a page's head and next_seq against its entries.
func checkHead(r *Report) error {
	bad := func(format string, args ...any) error {
		return &Fault{Chain: r.Service, Cause: fmt.Sprintf(format, args...)}
	}
	genesis := Genesis(r.TrustDomain, r.Service)
	switch {
	case !isHash([]byte(r.Head.Hash)):
		return bad("the head's hash is %.80q: expected 64 hex digits", r.Head.Hash)
	case r.Head.Seq < r.LastSeq:
		return bad("the head is entry %d, before the last entry here, %d", r.Head.Seq, r.LastSeq)
	case r.Head.Seq == r.LastSeq && len(r.Entries) > 0 && r.Head.Hash != r.LastHash:
		return bad("the head is entry %d with hash %s, that entry hashes to %s", r.Head.Seq, r.Head.Hash, r.LastHash)
	case r.Head.Seq == 0 && r.Head.Hash != hex.EncodeToString(genesis[:]):
		return bad("the chain is empty and its head is not its beginning, %x", genesis)
	case r.NextSeq != 0 && (r.NextSeq != r.LastSeq+1 || r.NextSeq > r.Head.Seq):
		return bad("next_seq is %d, after last_seq %d with head %d", r.NextSeq, r.LastSeq, r.Head.Seq)
	case r.NextSeq == 0 && r.FromUnix == 0 && r.ToUnix == 0 && len(r.Entries) > 0 && r.LastSeq != r.Head.Seq:
		return bad("the tail is cut: asked was for all up to now, it ends at entry %d, and the head is %d", r.LastSeq, r.Head.Seq)
	case r.Older != nil && (!isHash([]byte(r.Older.LastHash)) || len(r.Entries) > 0 && r.FirstSeq <= r.Older.LastSeq):
		return bad("older names entry %d with hash %.80q, and the first here is %d", r.Older.LastSeq, r.Older.LastHash, r.FirstSeq)
	case r.Older != nil && len(r.Entries) > 0 && r.FirstSeq == r.Older.LastSeq+1 && r.FirstPrev != r.Older.LastHash:
		return bad("first_prev is %s, the entry before it is said to hash to %s", r.FirstPrev, r.Older.LastHash)
	}
	return nil
}

// begins checks that nothing is left out before the first entry, when a report was asked
// for from no time on and nothing is remembered that it could continue: whoever asked from
// an entry on, which the report does not tell, accepts the gap.
func (v *verifier) begins() error {
	f := v.first
	if f.FromUnix != 0 || v.o.Seen != nil || v.o.AllowGap {
		return nil
	}
	begin := uint64(1)
	if f.Older != nil {
		begin = f.Older.LastSeq + 1
	}
	first := f.FirstSeq
	if first == 0 && f.ToUnix == 0 { // it says that there is nothing up to its head
		first = f.Head.Seq + 1
	}
	if first <= begin {
		return nil
	}
	return &Fault{Chain: f.Service, Seq: begin,
		Cause: fmt.Sprintf("is missing: asked was from the beginning, and there is no entry before %d; if it was fetched with --from-seq, accept that with --allow-gap", first)}
}

func (v *verifier) result(pages int) (*Result, error) {
	if err := v.begins(); err != nil {
		return nil, err
	}
	l := v.last
	r := &Result{
		TrustDomain: l.TrustDomain, Service: l.Service, Nonce: l.Nonce, IssuedMS: l.IssuedMS, KeyID: l.KeyID, Pages: pages,
		Entries: v.entries, Gaps: v.gaps, Head: l.Head, Older: v.first.Older, Decisions: v.decisions.list(),
	}
	checked := func(format string, args ...any) { r.Checked = append(r.Checked, fmt.Sprintf(format, args...)) }
	open := func(format string, args ...any) { r.NotProvable = append(r.NotProvable, fmt.Sprintf(format, args...)) }
	checked("the signature of %s is by the pinned key %s", counted(uint64(pages), "report"), l.KeyID)
	if v.from != nil {
		r.FirstSeq, r.LastSeq = v.from.FirstSeq, v.chain.Seq()
		checked("entries %d to %d are there, in order, unchanged, each continuing the one before", r.FirstSeq, r.LastSeq)
	}
	if r.FirstSeq == 1 {
		checked("entry 1 begins the chain %s of %s", r.Service, r.TrustDomain)
	}
	if r.LastSeq == l.Head.Seq && r.Entries > 0 {
		checked("the last entry is the head of the chain when the report was made")
	}
	allowed, denied, unnamed := v.decisions.totals()
	checked("%s allowed, each into a region that its rule allows; %d denied", counted(allowed, "call"), denied)

	if err := v.continues(r, checked, open); err != nil {
		return nil, err
	}
	switch {
	case r.Entries == 0:
		open("anything about entries: there is none in the range asked for")
	case r.FirstSeq > 1 && r.Older != nil:
		open("what happened up to entry %d: it moved to segment files, %s on the host; check those with dona attest verify-segments and compare the last hash with %s", r.Older.LastSeq, r.Older.Segments, r.Older.LastHash)
	case r.FirstSeq > 1:
		open("what happened before entry %d: it was not asked for, or is not here", r.FirstSeq)
	}
	if r.LastSeq < l.Head.Seq {
		open("what happened after entry %d, up to the head %d: it was not asked for", r.LastSeq, l.Head.Seq)
	}
	if unnamed > 0 {
		open("where %s was allowed to go: their entries name no allowed regions", counted(unnamed, "call"))
	}
	if r.Gaps > 0 {
		open("what %s of clients said: they got lost before they reached the host", counted(r.Gaps, "batch"))
	}
	if v.o.Nonce == nil {
		open("that this is the newest report: that needs the nonce that it was asked for with")
	}
	open("that nothing was rewritten which nobody had seen: whoever holds the signing key can sign another history")
	open("that clients reported every decision: the log holds what was reported")
	return r, nil
}

// continues compares with what was seen before, and says what to remember.
func (v *verifier) continues(r *Result, checked, open func(string, ...any)) error {
	r.Now = Seen{Head: r.Head, IssuedMS: r.IssuedMS, Nonce: r.Nonce}
	seen := v.o.Seen
	if seen == nil {
		open("that the tail was not cut and history not rewritten: nothing is remembered of this chain yet; from now on its head is")
		return nil
	}
	bad := func(seq uint64, format string, args ...any) error {
		return &Fault{Chain: r.Service, Seq: seq, Cause: fmt.Sprintf(format, args...)}
	}
	when := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
	switch {
	case r.Head.Seq < seen.Seq:
		if r.IssuedMS < seen.IssuedMS {
			return bad(0, "this is an older report played again: it was issued at %s (nonce %.80q) with head %d; one of %s (nonce %.80q) with head %d was seen",
				when(r.IssuedMS), r.Nonce, r.Head.Seq, when(seen.IssuedMS), seen.Nonce, seen.Seq)
		}
		return bad(r.Head.Seq+1, "is missing: the chain now ends at entry %d, and entry %d was seen before: the tail was cut", r.Head.Seq, seen.Seq)
	case r.Head.Seq == seen.Seq && r.Head.Hash != seen.Hash,
		v.seenHash != "" && v.seenHash != seen.Hash:
		return bad(seen.Seq, "had the hash %s when it was seen before, and has another now: history was rewritten there or before", seen.Hash)
	case v.from != nil && v.from.FirstSeq == seen.Seq+1 && v.from.FirstPrev != seen.Hash:
		return bad(v.from.FirstSeq, "does not continue entry %d as it was seen before: history was rewritten", seen.Seq)
	case v.seenHash != "" || v.from != nil && v.from.FirstSeq == seen.Seq+1 || r.Head.Seq == seen.Seq:
		checked("it continues entry %d, which was seen before", seen.Seq)
		return nil
	case r.LastSeq < seen.Seq: // a look back, or none at all
		r.Now = *seen
		open("that the chain still continues entry %d, which was seen before: the entries up to it are not here", seen.Seq)
		return nil
	case v.o.AllowGap:
		open("that entries %d to %d, between what was seen before and this, are as they were: they are not here", seen.Seq+1, r.FirstSeq-1)
		return nil
	}
	return bad(seen.Seq+1, "is missing: entry %d was seen before, and this begins at %d; fetch with --from-seq %d, or accept the gap with --allow-gap", seen.Seq, r.FirstSeq, seen.Seq+1)
}

// counted writes "1 call", "2 calls", "2 batches".
func counted(n uint64, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case noun == "batch":
		return fmt.Sprintf("%d batches", n)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
