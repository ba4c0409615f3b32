package wire

import (
	"bytes"
	"strconv"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Request is the head of a request to a forward proxy. Its zero value is ready to be
// read into, again and again. Slices in it live until the Reader's next read, and so do
// the fields that Get and Append look at.
type Request struct {
	head
	Method   string
	Connect  bool          // a tunnel is asked for
	Target   target.Target // where it goes
	Path     []byte        // what the target's server is asked for, as in /path?query
	Continue bool          // the client may wait for 100 before it sends the body
	trailers bool          // the client reads trailers
	Login    []byte        // the value of Proxy-Authorization, nil for none
}

// ErrVersion is another version of HTTP than 1.0 and 1.1.
var ErrVersion = malformed("the request is not HTTP/1.0 or HTTP/1.1")

// ReadRequest reads the next head. The error is io.EOF at the end of a connection,
// io.ErrUnexpectedEOF within a head, ErrHeadTooLong, ErrVersion, a *Malformed, a
// *target.Malformed for a target that is none, or what reading gave. After any of
// them the connection is of no use.
func (b *Reader) ReadRequest(q *Request) error {
	*q = Request{head: head{fields: q.fields[:0], named: q.named[:0]}} // nothing of the one before, also after an error
	text, err := b.head(true)
	if err != nil {
		return err
	}
	return q.parse(text)
}

func (q *Request) parse(text []byte) error {
	line, rest, _ := bytes.Cut(text, []byte("\r\n"))
	method, line, ok := bytes.Cut(line, []byte(" "))
	uri, proto, both := bytes.Cut(line, []byte(" "))
	if !ok || !both || len(method) == 0 || bytes.ContainsFunc(method, func(r rune) bool { return r >= 0x80 || !isToken(byte(r)) }) {
		return malformed("the request line is not a method, a target and a version with one space between them")
	}
	if q.Minor, ok = version(proto); !ok {
		if bytes.HasPrefix(proto, []byte("HTTP/")) && bytes.IndexByte(proto, ' ') < 0 {
			return ErrVersion
		}
		return malformed("the request line does not end in a version of HTTP: %.40q", proto)
	}
	q.Method = methodOf(method)
	q.Connect = q.Method == "CONNECT"
	var err error
	if q.fields, err = appendFields(q.fields, rest); err != nil {
		return err
	}
	if err := q.parseTarget(uri); err != nil {
		return err
	}
	if err := q.connections(); err != nil {
		return err
	}
	if err := q.framing(0, false); err != nil {
		return err
	}
	if q.Connect && (q.sized || q.Length != 0) {
		return malformed("a CONNECT has no body, and so neither Content-Length nor Transfer-Encoding")
	}
	return q.meaning()
}

// methods are those that are no new string for each request.
var methods = [...]string{"GET", "POST", "CONNECT", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"}

func methodOf(b []byte) string {
	for _, m := range methods {
		if string(b) == m {
			return m
		}
	}
	return string(b)
}

var scheme = []byte("http://")

// parseTarget reads what the request line asks for.
func (q *Request) parseTarget(uri []byte) (err error) {
	for _, c := range uri {
		if c <= ' ' || c == 0x7f {
			return malformed("the request's target has the character %#02x", c)
		}
	}
	if q.Connect {
		q.Target, err = target.Parse(string(uri), 0)
		return err
	}
	if len(uri) < len(scheme) || !bytes.EqualFold(uri[:len(scheme)], scheme) {
		return malformed("the request's target is not absolute, as in http://host/path; for anything but http there is CONNECT: %.40q", uri)
	}
	uri = uri[len(scheme):]
	end := bytes.IndexAny(uri, "/?#")
	if end < 0 {
		end = len(uri)
	}
	authority, path := uri[:end], uri[end:]
	if bytes.IndexByte(path, '#') >= 0 {
		return malformed("the request's target has a fragment, which is for the client alone")
	}
	if at := bytes.IndexByte(authority, '@'); at >= 0 {
		for _, c := range authority[:at] { // it goes nowhere, but must not hide a host from others
			if !isToken(c) && bytes.IndexByte([]byte("(),;:="), c) < 0 {
				return malformed("the request's target has %q before its @", c)
			}
		}
		authority = authority[at+1:] // a second @ is in no host
	}
	if q.Target, err = target.Parse(string(authority), 80); err != nil {
		return err
	}
	q.Path = path
	return nil
}

// meaning reads the fields that mean something to us.
func (q *Request) meaning() error {
	hosts := 0
	for i := range q.fields {
		f := &q.fields[i]
		switch f.kind {
		case host:
			if hosts++; hosts > 1 {
				return malformed("there are two Host fields")
			}
			// What it says is not used: the target is in the request line. What is no
			// host at all is refused, because others may read it in their way.
			if bytes.ContainsAny(f.value, " \t,/\\@?#\"<>") {
				return malformed("Host is no host: %.40q", f.value)
			}
		case expect:
			q.Continue = q.Continue || q.Minor >= 1 && is(f.value, "100-continue")
		case te:
			elements(f.value, func(one []byte) { q.trailers = q.trailers || is(one, "trailers") })
		case proxyAuthorization:
			if q.Login != nil {
				return malformed("there are two Proxy-Authorization fields")
			}
			q.Login = f.value
			if q.Login == nil {
				q.Login = []byte{}
			}
		}
	}
	if hosts == 0 && q.Minor >= 1 {
		return malformed("there is no Host field")
	}
	q.Continue = q.Continue && q.Length != 0
	return nil
}

// Onward says how a request is sent on.
type Onward struct {
	Absolute bool   // to a proxy, which needs the target in the request line
	Login    string // the value of Proxy-Authorization for that proxy, empty for none
}

// Append appends the head as it is sent on: with the target's own Host, without what
// was between the client and us, and framed as Copy will send the body.
func (q *Request) Append(to []byte, o Onward) []byte {
	authority := q.Target.Host()
	switch {
	case q.Target.Port != 80:
		authority = q.Target.String()
	case q.Target.Addr.Is6():
		authority = "[" + authority + "]"
	}
	to = append(append(to, q.Method...), ' ')
	if o.Absolute {
		to = append(append(to, scheme...), authority...)
	}
	switch {
	case len(q.Path) > 0 && q.Path[0] == '/':
	case q.Method != "OPTIONS" || len(q.Path) > 0:
		to = append(to, '/')
	case !o.Absolute:
		to = append(to, '*')
	}
	to = append(append(to, q.Path...), " HTTP/1.1\r\nHost: "...)
	to = append(append(to, authority...), "\r\n"...)
	for i := range q.fields {
		f := &q.fields[i]
		if q.forwarded(f) || f.kind == expect && q.Continue && !q.isNamed(f.name) {
			to = appendField(to, f)
		}
	}
	switch {
	case q.Length == Chunked:
		to = append(to, "Transfer-Encoding: chunked\r\n"...)
	case q.sized:
		to = append(strconv.AppendInt(append(to, "Content-Length: "...), q.Length, 10), "\r\n"...)
	}
	if q.trailers {
		to = append(to, "TE: trailers\r\nConnection: TE\r\n"...)
	}
	if o.Login != "" {
		to = append(append(append(to, "Proxy-Authorization: "...), o.Login...), "\r\n"...)
	}
	return append(to, "\r\n"...)
}

func appendField(to []byte, f *field) []byte {
	to = append(append(to, f.name...), ": "...)
	return append(append(to, f.value...), "\r\n"...)
}
