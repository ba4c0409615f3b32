// Package attest checks what a Dodona host attests: signed reports of its audit
// log, and the segment files that older entries move to. It needs no host, no
// network and no word of the host's but the report itself, so whoever audits a
// host can link it or run the command line that is made of it.
//
// An audit entry is one line of JSON and its hash is the SHA-256 of exactly that
// line's bytes; each entry names the hash of the one before ([Chain]). A report is
// JSON laid out so that each entry is a line of its own, byte for byte as it was
// hashed, with an ed25519 signature over exactly the report's bytes ([Parse],
// [Verify]). A [Memory] keeps the newest head that was seen of each chain, so that
// a cut tail or a rewritten history shows in the next report.
//
// What no check can show is said with each result: whoever holds the signing key
// can rewrite what nobody has seen yet.
package attest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
)

// Schema is the format of a report; it is its first member.
const Schema = "dona-attestation-v1"

// A Report is what a host attests: a run of entries without gaps.
type Report struct {
	TrustDomain string
	Service     string // the chain
	Nonce       string // as it was asked for
	IssuedMS    int64
	FromUnix    int64 // as asked for; 0 = from the beginning
	ToUnix      int64 // as asked for; 0 = up to the newest

	FirstSeq  uint64 // 0 when there is no entry
	LastSeq   uint64
	FirstPrev string // hash that the first entry names, 64 hex digits; empty when there is no entry
	LastHash  string // hash of the last entry
	Head      Head   // the newest entry of the chain when the report was made
	NextSeq   uint64 // where to go on; 0 = this is all
	Gaps      uint64 // batches of clients that got lost, as the entries tell
	KeyID     string // of the signer, see KeyID
	Older     *Older // entries that are not in the store any more; nil = all are

	Entries [][]byte // without their line breaks
}

// A Head is an entry and its hash.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"` // 64 hex digits
}

// Older says up to which entry a chain has moved to segment files.
type Older struct {
	LastSeq  uint64 `json:"last_seq"`
	LastHash string `json:"last_hash"`
	Segments string `json:"segments"` // folder with the files, below the host's data directory
}

// Complete fills in what the entries themselves say, LastSeq, LastHash and Gaps,
// once FirstSeq, FirstPrev and Entries are set. It checks that they are a chain; an
// error is a [*Fault].
func (r *Report) Complete() error {
	if len(r.Entries) == 0 {
		return nil
	}
	r.LastSeq, r.Gaps = r.FirstSeq+uint64(len(r.Entries))-1, 0
	prev, err := hex.DecodeString(r.FirstPrev)
	if err != nil || len(prev) != hashLen {
		return &Fault{Chain: r.Service, Seq: r.FirstSeq, Cause: "has no hash before it"}
	}
	chain, counts := ChainAfter(r.Service, r.FirstSeq-1, [32]byte(prev)), newDecisions()
	if _, err := chain.addAll(r.Entries, func(_ int, l *line) error {
		lost, _ := counts.add(l) // a call allowed where none may be is for the verifier to tell
		r.Gaps += lost
		return nil
	}); err != nil {
		return err
	}
	hash := chain.Hash()
	r.LastHash = hex.EncodeToString(hash[:])
	return nil
}

const (
	entriesBegin = "\"entries\":[\n"
	entriesEnd   = "]}\n"
)

// Encode lays a report out. What it returns is what gets signed.
func (r *Report) Encode() []byte {
	size := 4096
	for _, e := range r.Entries {
		size += len(e) + 2
	}
	b := r.header(make([]byte, 0, size), uint64(len(r.Entries)))
	for i, e := range r.Entries {
		b = append(b, e...)
		if i < len(r.Entries)-1 {
			b = append(b, ',')
		}
		b = append(b, '\n')
	}
	return append(b, entriesEnd...)
}

// header writes all before the first entry: a member a line.
func (r *Report) header(b []byte, count uint64) []byte {
	text := func(before, value, after string) {
		b = append(AppendText(append(b, before...), value), after...)
	}
	number := func(before string, n uint64, after string) {
		b = append(strconv.AppendUint(append(b, before...), n, 10), after...)
	}
	signed := func(before string, n int64, after string) {
		b = append(strconv.AppendInt(append(b, before...), n, 10), after...)
	}
	text("{\n\"schema\":", Schema, ",\n")
	text(`"trust_domain":`, r.TrustDomain, ",\n")
	text(`"service":`, r.Service, ",\n")
	text(`"nonce":`, r.Nonce, ",\n")
	signed(`"issued_ms":`, r.IssuedMS, ",\n")
	signed(`"asked":{"from_unix":`, r.FromUnix, ",")
	signed(`"to_unix":`, r.ToUnix, "},\n")
	number(`"first_seq":`, r.FirstSeq, ",\n")
	number(`"last_seq":`, r.LastSeq, ",\n")
	text(`"first_prev":`, r.FirstPrev, ",\n")
	text(`"last_hash":`, r.LastHash, ",\n")
	number(`"head":{"seq":`, r.Head.Seq, ",")
	text(`"hash":`, r.Head.Hash, "},\n")
	number(`"next_seq":`, r.NextSeq, ",\n")
	number(`"entry_count":`, count, ",\n")
	number(`"gaps":`, r.Gaps, ",\n")
	text(`"signer":{"alg":"ed25519","key_id":`, r.KeyID, "},\n")
	if r.Older != nil {
		number(`"older":{"last_seq":`, r.Older.LastSeq, ",")
		text(`"last_hash":`, r.Older.LastHash, ",")
		text(`"segments":`, r.Older.Segments, "},\n")
	}
	return append(b, entriesBegin...)
}

// Parse takes a report apart that is laid out as [Report.Encode] does, to the
// byte. It checks no hash. An error is a [*Fault].
func Parse(raw []byte) (*Report, error) {
	bad := func(format string, args ...any) (*Report, error) {
		return nil, &Fault{Cause: "the layout does not hold: " + fmt.Sprintf(format, args...)}
	}
	head, rest, ok := bytes.Cut(raw, []byte("\n"+entriesBegin))
	if !ok {
		return bad(`there is no line "entries":[ that begins the entries`)
	}
	var h struct {
		Schema, Service, Nonce string
		TrustDomain            string `json:"trust_domain"`
		IssuedMS               int64  `json:"issued_ms"`
		Asked                  struct {
			FromUnix int64 `json:"from_unix"`
			ToUnix   int64 `json:"to_unix"`
		}
		FirstSeq   uint64 `json:"first_seq"`
		LastSeq    uint64 `json:"last_seq"`
		FirstPrev  string `json:"first_prev"`
		LastHash   string `json:"last_hash"`
		Head       Head
		NextSeq    uint64 `json:"next_seq"`
		EntryCount uint64 `json:"entry_count"`
		Gaps       uint64
		Signer     struct {
			KeyID string `json:"key_id"`
		}
		Older *Older
	}
	object := append(bytes.TrimSuffix(bytes.Clone(head), []byte(",")), '}')
	if err := json.Unmarshal(object, &h); err != nil {
		return bad("the members before the entries are not JSON: %v", err)
	}
	if h.Schema != Schema {
		return bad("the schema is %.64q, this program checks %s", h.Schema, Schema)
	}
	r := &Report{
		TrustDomain: h.TrustDomain, Service: h.Service, Nonce: h.Nonce, IssuedMS: h.IssuedMS, FromUnix: h.Asked.FromUnix, ToUnix: h.Asked.ToUnix,
		FirstSeq: h.FirstSeq, LastSeq: h.LastSeq, FirstPrev: h.FirstPrev, LastHash: h.LastHash, Head: h.Head, NextSeq: h.NextSeq,
		Gaps: h.Gaps, KeyID: h.Signer.KeyID, Older: h.Older,
	}
	// One way to write a report: what was read is written again and must be the same.
	if want := r.header(nil, h.EntryCount); !bytes.Equal(want, raw[:len(raw)-len(rest)]) {
		return bad("%s", firstDifference(raw[:len(raw)-len(rest)], want))
	}
	entries, ok := bytes.CutSuffix(rest, []byte(entriesEnd))
	if !ok {
		return bad("it does not end with the line ]}")
	}
	if len(entries) > 0 {
		if entries, ok = bytes.CutSuffix(entries, []byte("\n")); !ok {
			return bad("the last entry is not a line of its own")
		}
		r.Entries = bytes.Split(entries, []byte("\n"))
	}
	for i, e := range r.Entries {
		last := i == len(r.Entries)-1
		if !last {
			e, ok = bytes.CutSuffix(e, []byte(","))
		}
		if !last && !ok || len(e) == 0 || e[0] != '{' || e[len(e)-1] != '}' {
			return nil, r.misplaced(i)
		}
		r.Entries[i] = e
	}
	if uint64(len(r.Entries)) != h.EntryCount {
		return nil, &Fault{Chain: r.Service, Cause: fmt.Sprintf("entry_count is %d, there are %d entries", h.EntryCount, len(r.Entries))}
	}
	return r, nil
}

// misplaced is about line i of the entries, which is not laid out as one. An entry
// before it that a line break cut in two may still look like a line; it is the one
// to name.
func (r *Report) misplaced(i int) error {
	for at, e := range r.Entries[:i] {
		if _, err := parseLine(e); err != nil {
			return &Fault{Chain: r.Service, Seq: r.FirstSeq + uint64(at), Cause: err.Error()}
		}
	}
	return &Fault{Chain: r.Service, Seq: r.FirstSeq + uint64(i), Cause: "is not a line of its own that ends with } and, unless it is the last, a comma"}
}

// firstDifference says in which line two texts differ.
func firstDifference(got, want []byte) string {
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			return fmt.Sprintf("line %d is %.80q, expected %.80q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines before the entries, expected %d", len(g), len(w))
}

// AppendText appends s to b as a JSON string. It escapes what JSON demands and
// nothing else, so that text stays readable in reports and entries;
// encoding/json would escape U+2028 and, by default, <&>.
func AppendText(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < 0x20:
			b = append(b, `\u00`...)
			b = hex.AppendEncode(b, []byte{c})
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
