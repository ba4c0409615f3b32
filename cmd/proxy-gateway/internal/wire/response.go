package wire

import "strconv"

// Response is the head of a response. Its zero value is ready to be read into, again and
// again. Slices in it live until the Reader's next read.
type Response struct {
	head
	Status int
	reason []byte
}

// ReadResponse reads the next head, of a response to a request with this method. Errors
// are as with ReadRequest.
func (b *Reader) ReadResponse(p *Response, method string) error {
	text, err := b.head(false)
	if err != nil {
		return err
	}
	return p.parse(text, method)
}

func (p *Response) parse(text []byte, method string) error {
	fields := p.fields[:0]
	*p = Response{head: head{fields: fields, named: p.named[:0]}}
	end := 0
	for text[end] != '\r' {
		end++ // there is one: head has looked
	}
	line := text[:end]
	if len(line) < 12 || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return malformed("the response does not begin with a version and a status: %.40q", line)
	}
	var ok bool
	if p.Minor, ok = version(line[:8]); !ok {
		return malformed("the response is not HTTP/1.0 or HTTP/1.1: %.40q", line)
	}
	status, ok := decimal(line[9:12])
	if !ok || status < 100 {
		return malformed("the response has no status of three digits: %.40q", line)
	}
	p.Status = int(status)
	if len(line) > 13 {
		p.reason = line[13:]
	}
	for _, c := range p.reason {
		if c < ' ' && c != '\t' || c == 0x7f {
			return malformed("the response's status line has the control character %#02x", c)
		}
	}
	if text[end+1] != '\n' {
		return malformed("a line of the head has a CR in it")
	}
	var err error
	if p.fields, err = appendFields(fields, text[end+2:]); err != nil {
		return err
	}
	if err := p.connections(); err != nil {
		return err
	}
	if err := p.framing(UntilClose, true); err != nil {
		return err
	}
	if method == "HEAD" || p.Informational() || status == 204 || status == 304 {
		p.Length = 0
	}
	return nil
}

// Informational reports whether another response follows to the same request.
func (p *Response) Informational() bool { return p.Status >= 100 && p.Status < 200 }

// Persistent reports whether the connection may be used for another request after this
// response and its body.
func (p *Response) Persistent() bool { return p.head.Persistent() && p.Length != UntilClose }

// Append appends the head as it is sent to a client of HTTP/1.minor: without what
// was between the server and us, and framed as Copy will send the body. last says that
// the connection closes after it, as it has to where Length is UntilClose, and for a
// client of HTTP/1.0 where it is Chunked.
func (p *Response) Append(to []byte, minor int, last bool) []byte {
	to = append(to, "HTTP/1.1 "...)
	to = append(strconv.AppendInt(to, int64(p.Status), 10), ' ')
	to = append(append(to, p.reason...), "\r\n"...)
	sized := false
	for i := range p.fields {
		f := &p.fields[i]
		switch {
		case p.forwarded(f):
			to = appendField(to, f)
		case f.kind == contentLength && !sized && p.Length >= 0 && !p.Informational() && p.Status != 204:
			to, sized = appendField(to, f), true // the length also of a body that HEAD leaves out
		}
	}
	if p.Length == Chunked && minor >= 1 {
		to = append(to, "Transfer-Encoding: chunked\r\n"...)
	}
	switch {
	case p.Informational():
	case last:
		to = append(to, "Connection: close\r\n"...)
	case minor == 0:
		to = append(to, "Connection: keep-alive\r\n"...)
	}
	return append(to, "\r\n"...)
}
