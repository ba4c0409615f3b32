package attest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// line is one entry, taken apart. Its slices point into the bytes that were read
// and hold text as JSON has it, escapes included.
type line struct {
	seq     uint64
	timeMS  int64
	service []byte
	kind    []byte
	actor   []byte
	detail  []byte // the members, without braces
	prev    []byte // 64 hex digits
	escapes bool   // a text may hold escapes
}

// parseLine reads an entry as host/audit lays it out: members in their order, no
// spaces between tokens, detail keys sorted by bytes, no empty values. Anything
// else is not an entry, so there is one way to write each.
//
// It is written for speed, because a chain of a year has to be checked at the
// rate at which it can be hashed.
func parseLine(raw []byte) (line, error) {
	p := parser{b: raw}
	if err := p.survey(); err != nil {
		return line{}, err
	}
	l := line{escapes: p.escapes}
	p.word(`{"v":"` + Format + `","seq":`)
	l.seq = p.number()
	p.word(`,"time_ms":`)
	l.timeMS = p.signed()
	p.word(`,"service":`)
	l.service = p.text()
	p.word(`,"kind":`)
	l.kind = p.text()
	p.word(`,"actor":`)
	l.actor = p.text()
	p.word(`,"detail":{`)
	l.detail = p.members()
	p.word(`},"evidence":[`)
	p.evidence()
	p.word(`],"prev":`)
	l.prev = p.hash()
	p.word(`}`)
	if p.err == nil && p.at != len(raw) {
		p.fail("something follows its end")
	}
	return l, p.err
}

type parser struct {
	b       []byte
	at      int
	escapes bool
	err     error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format+", at byte %d", append(args, p.at+1)...)
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// survey looks over the whole line, eight bytes at a time: none may be a control
// character or no UTF-8, and if there is no backslash no text has to be looked
// through for one.
func (p *parser) survey() error {
	var high, odd uint64
	b := p.b
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		high |= w
		slash := w ^ ones*'\\'
		// A byte below 0x20, or a backslash; bytes above 0x7f may seem to be one.
		odd |= (w-ones*0x20)&^w | (slash-ones)&^slash
	}
	var rest uint64 = ones * 'x'
	for i, c := range b {
		rest = rest&^(0xff<<(8*i)) | uint64(c)<<(8*i)
	}
	slash := rest ^ ones*'\\'
	high |= rest
	odd |= (rest-ones*0x20)&^rest | (slash-ones)&^slash
	if (high|odd)&highs == 0 {
		return nil
	}
	for i, c := range p.b {
		switch {
		case c == '\n':
			return errors.New("is not one line")
		case c < 0x20:
			return fmt.Errorf("has the control character %#02x at byte %d", c, i+1)
		case c == '\\':
			p.escapes = true
		}
	}
	if !utf8.Valid(p.b) {
		return errors.New("is not valid UTF-8")
	}
	return nil
}

func (p *parser) word(w string) {
	if p.err != nil {
		return
	}
	if len(p.b)-p.at < len(w) || string(p.b[p.at:p.at+len(w)]) != w {
		p.fail("is not laid out as an entry: expected %s", w)
		return
	}
	p.at += len(w)
}

func (p *parser) peek(c byte) bool { return p.err == nil && p.at < len(p.b) && p.b[p.at] == c }

// number reads a decimal number as it is written one way only.
func (p *parser) number() (n uint64) {
	start := p.at
	for ; p.err == nil && p.at < len(p.b) && p.b[p.at]-'0' <= 9; p.at++ {
		d := uint64(p.b[p.at] - '0')
		if n > (math.MaxUint64-d)/10 {
			p.fail("has a number that is too large")
			return 0
		}
		n = n*10 + d
	}
	if p.at == start || p.b[start] == '0' && p.at > start+1 {
		p.fail("has no number where one is expected")
	}
	return n
}

func (p *parser) signed() int64 {
	sign := int64(1)
	if p.peek('-') {
		p.at++
		sign = -1
	}
	n := p.number()
	if n > math.MaxInt64 {
		p.fail("has a number that is too large")
	}
	return sign * int64(n)
}

// text reads a JSON string and returns what is between its quotes.
func (p *parser) text() []byte {
	if !p.peek('"') {
		p.fail("has no text where one is expected")
		return nil
	}
	start := p.at + 1
	for at := start; ; {
		n := bytes.IndexByte(p.b[at:], '"')
		if n < 0 {
			p.fail("has a text without end")
			return nil
		}
		end := at + n
		if !p.escapes || !escaped(p.b[start:end]) {
			p.at = end + 1
			if p.escapes && !validEscapes(p.b[start:end]) {
				p.fail("has an escape that JSON does not know")
			}
			return p.b[start:end]
		}
		at = end + 1
	}
}

// escaped reports whether the byte after s is, by an odd number of backslashes
// before it.
func escaped(s []byte) bool {
	n := 0
	for n < len(s) && s[len(s)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

func validEscapes(s []byte) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		if i++; i == len(s) {
			return false
		}
		if s[i] != 'u' {
			if bytes.IndexByte([]byte(`"\/bfnrt`), s[i]) < 0 {
				return false
			}
			continue
		}
		if len(s)-i < 5 {
			return false
		}
		if _, err := strconv.ParseUint(string(s[i+1:i+5]), 16, 16); err != nil {
			return false
		}
		i += 4
	}
	return true
}

// members reads the members of detail: texts, sorted by key, none empty.
func (p *parser) members() []byte {
	start := p.at
	var last []byte
	for p.err == nil && !p.peek('}') {
		if last != nil {
			p.word(",")
		}
		key := p.text()
		if p.err == nil && (len(key) == 0 || last != nil && bytes.Compare(last, key) >= 0) {
			p.fail("has detail keys that are not in their order")
		}
		last = key
		p.word(":")
		if value := p.text(); p.err == nil && len(value) == 0 {
			p.fail("has an empty detail")
		}
	}
	return p.b[start:p.at]
}

func (p *parser) evidence() {
	for first := true; p.err == nil && !p.peek(']'); first = false {
		if !first {
			p.word(",")
		}
		p.word(`{"kind":`)
		p.text()
		p.word(`,"sha256":`)
		p.hash()
		p.word(`,"bytes":`)
		p.number()
		p.word("}")
	}
}

// hash reads 64 hex digits.
func (p *parser) hash() []byte {
	t := p.text()
	if p.err == nil && !isHash(t) {
		p.fail("has no hash of 64 hex digits where one is expected")
	}
	return t
}

func isHash(t []byte) bool {
	if len(t) != 2*hashLen {
		return false
	}
	no := byte(0) // without a branch for each digit
	for _, c := range t {
		no |= notHex[c]
	}
	return no == 0
}

// notHex is 0 for the digits of a hash.
var notHex = func() (table [256]byte) {
	for c := range table {
		if bytes.IndexByte([]byte("0123456789abcdef"), byte(c)) < 0 {
			table[c] = 1
		}
	}
	return table
}()

const hashLen = 32

// appendHex is hex.AppendEncode into a buffer that is not allocated.
func appendHex(buf *[2 * hashLen]byte, hash *[hashLen]byte) []byte {
	hex.Encode(buf[:], hash[:])
	return buf[:]
}

// value returns the value of a detail key, without escapes; empty when there is
// none.
func (l *line) value(key string) string {
	p := parser{b: l.detail, escapes: l.escapes}
	for p.at < len(p.b) {
		k := p.text()
		p.word(":")
		v := p.text()
		if p.err != nil {
			return ""
		}
		if string(k) == key {
			return l.plain(v)
		}
		p.word(",")
	}
	return ""
}

// plain is a text without escapes.
func (l *line) plain(text []byte) string {
	if !l.escapes || bytes.IndexByte(text, '\\') < 0 {
		return string(text)
	}
	return unescape(text)
}
