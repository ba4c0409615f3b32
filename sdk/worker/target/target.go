// Package target says which targets a gateway may lead a client to, and reads what
// clients write for them. Whoever opens connections on somebody else's behalf can be
// made to knock at doors that are only open to himself; a [Policy] is the answer to
// that, and a [Dialer] keeps to it.
//
// A target is read once, by [Parse], into a form with only one spelling: a DNS name in
// lower case or an address. What an upstream or a resolver could read in another way
// than this package is refused: 127.1, 0x7f000001 and 017700000001 are no names, and
// an address with a zone is nobody's but this machine's.
//
// Everything here is pure except Dialer and Policy.Resolve, and safe for concurrent
// use.
package target

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// MaxName is the most bytes of a DNS name.
const MaxName = 253

// Target is where a client wants to go. Exactly one of Name and Addr is set.
type Target struct {
	Name string     // a DNS name in lower case, without a dot at its end
	Addr netip.Addr // an address without a zone
	Port uint16     // never 0
}

// String is host:port in the only spelling that Parse returns.
func (t Target) String() string {
	if t.Addr.IsValid() {
		return netip.AddrPortFrom(t.Addr, t.Port).String()
	}
	return t.Name + ":" + strconv.Itoa(int(t.Port))
}

// Host is the name or the address, without brackets.
func (t Target) Host() string {
	if t.Addr.IsValid() {
		return t.Addr.String()
	}
	return t.Name
}

// Malformed says that something is no target at all: a client's error, while a
// Refusal is a policy's no.
type Malformed struct{ What, Why string }

func (m *Malformed) Error() string { return fmt.Sprintf("target %.80q %s", m.What, m.Why) }

// Parse reads host:port, or a host alone when there is a default port (0 = there is
// none). An IPv6 address is in brackets. The error is a *Malformed.
func Parse(authority string, defaultPort uint16) (Target, error) {
	wrong := func(why string) (Target, error) { return Target{}, &Malformed{What: authority, Why: why} }
	host, port, _ := strings.Cut(authority, ":")
	bracketed := strings.HasPrefix(authority, "[")
	if bracketed {
		address, rest, closed := strings.Cut(authority[1:], "]")
		text, colon := strings.CutPrefix(rest, ":")
		switch {
		case !closed:
			return wrong("has no ] after its address")
		case !colon && rest != "":
			return wrong("has something else than a port after its ]")
		}
		host, port = address, text
	} else if strings.Contains(port, ":") {
		return wrong("has more than one colon: an IPv6 address is written in brackets, as in [2001:db8::1]:443")
	}
	t := Target{Port: defaultPort}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || len(port) > 5 {
			return wrong("has no port from 1 to 65535 after its host")
		}
		t.Port = uint16(n)
	}
	if t.Port == 0 {
		return wrong("has no port: allowed is host:port")
	}
	if bracketed {
		a, err := netip.ParseAddr(host)
		switch {
		case strings.Contains(host, "%"):
			return wrong("has a zone, which means nothing to others")
		case err != nil || !a.Is6():
			return wrong("has no IPv6 address in its brackets")
		}
		t.Addr = a
		return t, nil
	}
	why := ""
	if t.Name, t.Addr, why = parseHost(host); why != "" {
		return wrong(why)
	}
	return t, nil
}

// ParseHost reads a host alone: a name or an address, an IPv6 one without brackets. The
// port is 0. The error is a *Malformed.
func ParseHost(host string) (Target, error) {
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		if a.Zone() != "" {
			return Target{}, &Malformed{What: host, Why: "has a zone, which means nothing to others"}
		}
		return Target{Addr: a}, nil
	}
	name, addr, why := parseHost(host)
	if why != "" {
		return Target{}, &Malformed{What: host, Why: why}
	}
	return Target{Name: name, Addr: addr}, nil
}

// parseHost reads a name or an IPv4 address.
func parseHost(host string) (name string, addr netip.Addr, why string) {
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		return "", addr, "has no host"
	}
	if len(host) > MaxName {
		return "", addr, fmt.Sprintf("has a host of %d bytes: at most %d are allowed", len(host), MaxName)
	}
	label, upper := 0, false
	for i := 0; i <= len(host); i++ {
		if i == len(host) || host[i] == '.' {
			if label == 0 {
				return "", addr, "has an empty label in its host"
			}
			if label > 63 {
				return "", addr, "has a label of more than 63 bytes in its host"
			}
			label = 0
			continue
		}
		switch c := host[i]; {
		case c >= 'A' && c <= 'Z':
			upper = true
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		case c >= 0x80:
			return "", addr, "has a host that is not ASCII: write it as in xn--bcher-kva.example"
		default:
			return "", addr, "has a host with something else in it than letters, digits, dots, - and _"
		}
		label++
	}
	if numeric(host[strings.LastIndexByte(host, '.')+1:]) {
		a, err := netip.ParseAddr(host)
		if err != nil {
			return "", addr, "ends in a number and is no IPv4 address of four decimal numbers: other spellings are read differently by different programs"
		}
		return "", a, ""
	}
	if upper {
		host = strings.ToLower(host)
	}
	return host, addr, ""
}

// numeric reports whether a label makes a host an IPv4 address to those who read
// addresses as C does: all digits, or 0x and hexadecimal digits or nothing.
func numeric(label string) bool {
	hex := len(label) >= 2 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X')
	if hex {
		label = label[2:]
	}
	for i := range len(label) {
		c := label[i] | 0x20
		if !(label[i] >= '0' && label[i] <= '9' || hex && c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
