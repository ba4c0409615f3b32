package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

type line struct {
	seq    uint64
	timeMS int64
	chain  string
	entry  Entry
	prev   [32]byte
}

// encode lays out an entry: keys in a fixed order, no spaces between tokens,
// detail keys sorted by bytes, empty values left out.
func encode(l line) ([]byte, error) {
	b := make([]byte, 0, 512)
	b = append(b, `{"v":"dona-audit-v1","seq":`...)
	b = strconv.AppendUint(b, l.seq, 10)
	b = append(b, `,"time_ms":`...)
	b = strconv.AppendInt(b, l.timeMS, 10)
	b = appendString(append(b, `,"service":`...), l.chain)
	b = appendString(append(b, `,"kind":`...), l.entry.Kind)
	b = appendString(append(b, `,"actor":`...), l.entry.Actor)
	b = append(b, `,"detail":{`...)
	first := true
	for _, key := range slices.Sorted(maps.Keys(l.entry.Detail)) {
		if l.entry.Detail[key] == "" {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, key)
		b = appendString(append(b, ':'), l.entry.Detail[key])
	}
	b = append(b, `},"evidence":[`...)
	for i, ev := range l.entry.Evidence {
		if i > 0 {
			b = append(b, ',')
		}
		hash := sha256.Sum256(ev.Data)
		b = appendString(append(b, `{"kind":`...), ev.Kind)
		b = append(b, `,"sha256":"`...)
		b = hex.AppendEncode(b, hash[:])
		b = append(b, `","bytes":`...)
		b = strconv.AppendInt(b, int64(len(ev.Data)), 10)
		b = append(b, '}')
	}
	b = append(b, `],"prev":"`...)
	b = hex.AppendEncode(b, l.prev[:])
	b = append(b, `"}`...)
	if len(b) > MaxLine {
		return nil, fmt.Errorf("%w: %s in chain %s has %d bytes: allowed are at most %d", ErrRefused, l.entry.Kind, l.chain, len(b), MaxLine)
	}
	return b, nil
}

// appendString escapes what JSON demands and nothing else, so that text stays
// readable in the log. encoding/json would escape U+2028 and, by default, <&>.
func appendString(b []byte, s string) []byte {
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
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// A Verifier checks the lines of one chain in order, from seq 1. It needs
// nothing but the lines: no host, no store.
type Verifier struct {
	chain string
	seq   uint64
	hash  [32]byte
}

// NewVerifier starts at the genesis of (trust domain, chain).
func NewVerifier(trustDomain, chain string) *Verifier {
	return &Verifier{chain: chain, hash: New(trustDomain).Genesis(chain)}
}

// Seq is the number of the last good entry; Hash its hash.
func (v *Verifier) Seq() uint64    { return v.seq }
func (v *Verifier) Hash() [32]byte { return v.hash }

// Add checks that line is entry Seq()+1 of the chain. The error names the
// entry and what does not hold; the verifier then stays where it was.
func (v *Verifier) Add(line []byte) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("audit: chain %s: entry %d: %s", v.chain, v.seq+1, fmt.Sprintf(format, args...))
	}
	var e struct {
		V       string `json:"v"`
		Seq     uint64 `json:"seq"`
		Service string `json:"service"`
		Prev    string `json:"prev"`
	}
	if bytes.IndexByte(line, '\n') >= 0 {
		return bad("is not one line")
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return bad("is not JSON: %v", err)
	}
	switch {
	case e.V != "dona-audit-v1":
		return bad("has the format %.32q, expected dona-audit-v1", e.V)
	case e.Service != v.chain:
		return bad("belongs to the chain %.64q", e.Service)
	case e.Seq != v.seq+1:
		return bad("says it is number %d", e.Seq)
	case e.Prev != hex.EncodeToString(v.hash[:]):
		return bad("does not continue the one before it: prev is %.64q, expected %x", e.Prev, v.hash)
	}
	v.seq, v.hash = e.Seq, sha256.Sum256(line)
	return nil
}
