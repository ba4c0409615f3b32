package wire

import (
	"bytes"
)

// maxFields is how many fields a head may have. A head of MaxHead bytes could have three
// times as many.
const maxFields = 5000

// maxNamed is how many fields Connection may name: each field of a head is looked for among
// them, which would take seconds if both were many.
const maxNamed = 64

// kind tells the fields that mean something to a proxy.
type kind uint8

const (
	ordinary kind = iota
	hop           // between two neighbours only
	connection
	contentLength
	transferEncoding
	host
	expect
	te
	proxyAuthorization
	proxyConnection
)

// field is one line of a head.
type field struct {
	name, value []byte
	kind        kind
}

var tokens = [256]bool{}

func init() {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		tokens[c] = true
	}
}

func isToken(c byte) bool { return tokens[c] }

// appendFields parses the lines after a start line, up to the empty one.
func appendFields(to []field, lines []byte) ([]field, error) {
	for {
		end := bytes.IndexByte(lines, '\r')
		if end < 0 || end+1 >= len(lines) || lines[end+1] != '\n' {
			return to, malformed("a line of the head has a CR in it")
		}
		if end == 0 {
			return to, nil
		}
		if len(to) == maxFields {
			return to, ErrHeadTooLong
		}
		f, err := parseField(lines[:end])
		if err != nil {
			return to, err
		}
		to = append(to, f)
		lines = lines[end+2:]
	}
}

func parseField(line []byte) (field, error) {
	if line[0] == ' ' || line[0] == '\t' {
		return field{}, malformed("a header field is folded over two lines")
	}
	colon := 0
	for colon < len(line) && isToken(line[colon]) {
		colon++
	}
	switch {
	case colon == len(line) || line[colon] != ':' && bytes.IndexByte(line, ':') < 0:
		return field{}, malformed("a line of the head has no colon: %.40q", line)
	case colon == 0 || line[colon] != ':':
		return field{}, malformed("the name of a header field has a character that no name has: %.40q", line)
	}
	value := bytes.Trim(line[colon+1:], " \t")
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return field{}, malformed("the value of header field %.40q has the control character %#02x", line[:colon], c)
		}
	}
	return field{name: line[:colon], value: value, kind: kindOf(line[:colon])}, nil
}

func kindOf(name []byte) kind {
	switch len(name) {
	case 2:
		if is(name, "te") {
			return te
		}
	case 4:
		if is(name, "host") {
			return host
		}
	case 6:
		if is(name, "expect") {
			return expect
		}
	case 7:
		if is(name, "upgrade") {
			return hop
		}
	case 10:
		if is(name, "connection") {
			return connection
		}
		if is(name, "keep-alive") {
			return hop
		}
	case 14:
		if is(name, "content-length") {
			return contentLength
		}
	case 16:
		if is(name, "proxy-connection") {
			return proxyConnection
		}
	case 17:
		if is(name, "transfer-encoding") {
			return transferEncoding
		}
	case 18:
		if is(name, "proxy-authenticate") {
			return hop
		}
	case 19:
		if is(name, "proxy-authorization") {
			return proxyAuthorization
		}
	case 25:
		if is(name, "proxy-authentication-info") {
			return hop
		}
	}
	return ordinary
}

// is compares without case; want is in lower case, of the same length or not.
func is(b []byte, want string) bool {
	if len(b) != len(want) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// elements calls do for each element of a comma-separated list that is not empty.
func elements(list []byte, do func([]byte)) {
	for len(list) > 0 {
		var one []byte
		one, list, _ = bytes.Cut(list, []byte(","))
		if one = bytes.Trim(one, " \t"); len(one) > 0 {
			do(one)
		}
	}
}

// head is what requests and responses have in common.
type head struct {
	Minor  int   // of HTTP/1.minor
	Length int64 // of the body; Chunked and UntilClose are less than 0
	fields []field
	named  [][]byte // what Connection names, and so is for us alone
	close  bool
	keep   bool
	sized  bool // there is a Content-Length
}

// Bodies whose length nobody knows beforehand.
const (
	Chunked    = -1
	UntilClose = -2
)

// connections reads what Connection and Proxy-Connection say.
func (h *head) connections() error {
	h.named, h.close, h.keep = h.named[:0], false, false
	for _, f := range h.fields {
		if f.kind != connection && f.kind != proxyConnection {
			continue
		}
		elements(f.value, func(one []byte) {
			switch {
			case is(one, "close"):
				h.close = true
			case is(one, "keep-alive"):
				h.keep = true
			case f.kind == connection && len(h.named) <= maxNamed:
				h.named = append(h.named, one)
			}
		})
	}
	if len(h.named) > maxNamed {
		return malformed("Connection names more than %d fields", maxNamed)
	}
	return nil
}

// Persistent reports whether the connection may be used for another message.
func (h *head) Persistent() bool {
	return !h.close && (h.Minor >= 1 || h.keep)
}

// isNamed reports whether Connection names a field.
func (h *head) isNamed(name []byte) bool {
	for _, n := range h.named {
		if bytes.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// forwarded reports whether a field goes to the other side as it is. The ones that
// frame the message never do: they are written anew.
func (h *head) forwarded(f *field) bool {
	return f.kind == ordinary && !h.isNamed(f.name)
}

// Get returns the value of the first field of a name that goes to the other side, nil
// for none.
func (h *head) Get(name string) []byte {
	for i := range h.fields {
		f := &h.fields[i]
		if len(f.name) == len(name) && bytes.EqualFold(f.name, []byte(name)) && h.forwarded(f) {
			return f.value
		}
	}
	return nil
}

// framing reads Content-Length and Transfer-Encoding; none is the length when there is
// neither. same allows the same length twice, as some servers send it.
func (h *head) framing(none int64, same bool) error {
	h.Length, h.sized = none, false
	codings := 0
	for i := range h.fields {
		f := &h.fields[i]
		switch f.kind {
		case transferEncoding:
			if codings++; codings > 1 || !is(f.value, "chunked") {
				return malformed("Transfer-Encoding is not chunked and nothing else: %.40q", f.value)
			}
		case contentLength:
			n, ok := decimal(f.value)
			switch {
			case !ok:
				return malformed("Content-Length is no number: %.40q", f.value)
			case h.sized && (!same || n != h.Length):
				return malformed("there are two Content-Length fields")
			}
			h.Length, h.sized = n, true
		}
	}
	if codings == 0 {
		return nil
	}
	switch {
	case h.sized:
		return malformed("there are both Content-Length and Transfer-Encoding")
	case h.Minor == 0:
		return malformed("there is a Transfer-Encoding in HTTP/1.0, which has none")
	}
	h.Length = Chunked
	return nil
}

// decimal reads digits and nothing else, up to what an int64 holds.
func decimal(b []byte) (int64, bool) {
	const most = 1<<63 - 1
	var n int64
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' || n > (most-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// version reads HTTP/1.x. ok is false for anything else.
func version(b []byte) (minor int, ok bool) {
	if len(b) != 8 || string(b[:7]) != "HTTP/1." || b[7] < '0' || b[7] > '9' {
		return 0, false
	}
	return min(int(b[7]-'0'), 1), true
}
