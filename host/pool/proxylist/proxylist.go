// Package proxylist reads lists of proxies as their vendors write them: one a
// line, with or without a scheme and credentials. A line that cannot be read is
// told by its number, never by its text, for the text may hold a password; the
// rest of the list is read.
//
// The callers are imports, the sources of upstreams and the published
// configuration. The package does no I/O and resolves no name.
package proxylist

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Bounds of a list.
const (
	MaxLines = 100_000
	MaxLine  = 2 << 10 // bytes
)

// Entry is one proxy of a list.
type Entry struct {
	Protocol   controlplanev1.Proxy_Protocol // unspecified: the line has no scheme
	Host       string                        // a name in lower case, or an address in its usual spelling
	Port       uint16
	Credential secret.Credential // zero: the line has none
	Line       int               // from 1; 0 outside a list
}

// Address is host:port.
func (e Entry) Address() string { return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))) }

// String spells the entry without its credentials.
func (e Entry) String() string {
	switch e.Protocol {
	case controlplanev1.Proxy_PROTOCOL_HTTP:
		return "http://" + e.Address()
	case controlplanev1.Proxy_PROTOCOL_HTTPS:
		return "https://" + e.Address()
	case controlplanev1.Proxy_PROTOCOL_SOCKS5:
		return "socks5://" + e.Address()
	}
	return e.Address()
}

// Check says why no proxy may be where the entry is: on loopback, at a metadata
// service and the like, unless that class of addresses is allowed.
func (e Entry) Check(allowed ...target.Class) error {
	t, err := target.ParseHost(e.Host)
	if err != nil || target.CheckProxy(t, allowed...) == nil {
		return err
	}
	class, what := target.ClassOfName(t.Name), "a name"
	if t.Addr.IsValid() {
		class, what = target.ClassOf(t.Addr), t.Addr.String()
	}
	switch class {
	case target.Loopback, target.LinkLocal, target.Metadata:
		return fmt.Errorf("is at %s, which is %s (allowed: with %s in the upstream's allowAddresses)", what, class, class)
	}
	return fmt.Errorf("is at %s, which is %s (allowed: addresses of one machine)", what, class)
}

// Rejected is a line that was not read.
type Rejected struct {
	Line   int
	Reason string // holds nothing of the line but its address
}

func (r Rejected) String() string { return fmt.Sprintf("line %d: %s", r.Line, r.Reason) }

// Options are what is allowed in a list.
type Options struct {
	Protocol controlplanev1.Proxy_Protocol // of lines without a scheme
	Inline   bool                          // lines may hold credentials
	Allow    []target.Class                // of addresses where no proxy is otherwise
}

// Parse reads a list. Blank lines and comments are nothing; a proxy that an
// earlier line names is rejected.
func Parse(list string, o Options) (entries []Entry, rejected []Rejected) {
	list = strings.TrimPrefix(list, "\ufeff")
	lines := strings.Split(list, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return ParseAll(lines, o)
}

// ParseAll reads the lines of a list.
func ParseAll(lines []string, o Options) (entries []Entry, rejected []Rejected) {
	type identity struct {
		protocol controlplanev1.Proxy_Protocol
		host     string
		port     uint16
		username string
	}
	first := map[identity]int{}
	for i, line := range lines {
		reject := func(reason string) { rejected = append(rejected, Rejected{i + 1, reason}) }
		if i == MaxLines {
			reject(fmt.Sprintf("and those behind it are too many (allowed: %d lines)", MaxLines))
			break
		}
		line = strip(line)
		if line == "" {
			continue
		}
		entry, err := ParseLine(line, o.Inline)
		if err != nil {
			reject(err.Error())
			continue
		}
		entry.Line = i + 1
		if entry.Protocol == controlplanev1.Proxy_PROTOCOL_UNSPECIFIED {
			entry.Protocol = o.Protocol
		}
		if entry.Protocol == controlplanev1.Proxy_PROTOCOL_SOCKS5 && !entry.Credential.IsZero() && entry.Credential.Password() == "" {
			reject("has an empty password (allowed: with SOCKS5, 1 to 255 bytes)")
			continue
		}
		if err := entry.Check(o.Allow...); err != nil {
			reject(err.Error())
			continue
		}
		id := identity{entry.Protocol, entry.Host, entry.Port, entry.Credential.Username()}
		if line, again := first[id]; again {
			reject(fmt.Sprintf("is the proxy of line %d again", line))
			continue
		}
		first[id] = i + 1
		entries = append(entries, entry)
	}
	return entries, rejected
}

// strip takes away what is around a proxy: blanks, and a comment from a # that
// begins the line or follows a blank. A # inside a word may belong to a password.
func strip(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return strings.Trim(line, " \t\r")
}

const spellings = "[scheme://][user:pass@]host:port or host:port:user:pass, an IPv6 address in brackets"

// ParseLine reads one proxy. Credentials are refused unless inline. The error
// continues "line N: " or a key, and holds nothing of the line.
func ParseLine(line string, inline bool) (Entry, error) {
	switch {
	case len(line) > MaxLine:
		return Entry{}, fmt.Errorf("has %d bytes (allowed: at most %d)", len(line), MaxLine)
	case !utf8.ValidString(line):
		return Entry{}, errors.New("is not valid UTF-8")
	case strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Entry{}, errors.New("has a blank or a control character inside (allowed: " + spellings + ")")
	}
	var e Entry
	rest := line
	if scheme, after, ok := strings.Cut(line, "://"); ok && !strings.ContainsAny(scheme, ":@.[") {
		switch strings.ToLower(scheme) {
		case "http":
			e.Protocol = controlplanev1.Proxy_PROTOCOL_HTTP
		case "https":
			e.Protocol = controlplanev1.Proxy_PROTOCOL_HTTPS
		case "socks5", "socks5h":
			e.Protocol = controlplanev1.Proxy_PROTOCOL_SOCKS5
		default:
			return Entry{}, errors.New("has a scheme that is not known (allowed: http, https, socks5, socks5h)")
		}
		rest = after
	}
	p := split(rest)
	var err error
	if e.Host, e.Port, err = hostPort(p.address); err != nil || !p.credentials {
		return e, err
	}
	if !inline {
		return Entry{}, errors.New("has credentials: use secretRef")
	}
	if p.encoded {
		for _, part := range []*string{&p.username, &p.password} {
			if *part, err = url.PathUnescape(*part); err != nil {
				return Entry{}, errors.New("has a % that begins no %XX in its credentials (allowed: %25 for one)")
			}
		}
	}
	if e.Credential, err = secret.NewCredential(p.username, p.password); err != nil {
		return Entry{}, err
	}
	return e, nil
}

type parts struct {
	address            string
	username, password string
	credentials        bool // there are some
	encoded            bool // as in a URL; those behind the address are taken as they stand
}

// split takes an address and its credentials apart. An @ that no address follows
// belongs to a password behind the address.
func split(s string) parts {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		p := parts{address: strings.TrimSuffix(s[at+1:], "/"), credentials: true, encoded: true}
		if _, _, err := hostPort(p.address); err == nil {
			p.username, p.password, _ = strings.Cut(s[:at], ":")
			return p
		}
	}
	end := 0
	if strings.HasPrefix(s, "[") {
		end = max(strings.IndexByte(s, ']'), 0)
	}
	words := strings.SplitN(s[end:], ":", 4)
	if len(words) < 4 {
		return parts{address: strings.TrimSuffix(s, "/")}
	}
	return parts{address: s[:end] + words[0] + ":" + words[1], username: words[2], password: words[3], credentials: true}
}

func hostPort(s string) (string, uint16, error) {
	t, err := target.Parse(s, 0)
	if err != nil {
		var m *target.Malformed
		if errors.As(err, &m) {
			why, _, _ := strings.Cut(m.Why, ": allowed is") // of a target, which is less than a line may be
			return "", 0, fmt.Errorf("%s (allowed: %s)", why, spellings)
		}
		return "", 0, err
	}
	t.Addr = t.Addr.Unmap()
	return t.Host(), t.Port, nil
}
