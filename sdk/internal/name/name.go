// Package name checks the names that an application gives to the SDK, so that a
// typing error is found where it was made and not in a host's refusal.
package name

import (
	"fmt"
	"net"
	"strconv"
)

// Service checks a service name: [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
func Service(s string) error {
	ok := len(s) >= 1 && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return fmt.Errorf("%.64q is not a service name: allowed are 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit", s)
	}
	return nil
}

// Name checks a variant, region or zone: [A-Za-z0-9][A-Za-z0-9._-]{0,127}
func Name(s string) error { return check(s, false) }

// ID checks an endpoint id: [A-Za-z0-9][A-Za-z0-9._:-]{0,127}
func ID(s string) error { return check(s, true) }

// Address checks host:port with a port from 1 to 65535. The host is not looked at.
func Address(s string) error {
	host, text, err := net.SplitHostPort(s)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" || portErr != nil || port == 0 {
		return fmt.Errorf("%.80q: allowed is host:port", s)
	}
	return nil
}

func check(s string, colon bool) error {
	ok := len(s) >= 1 && len(s) <= 128
	for i := 0; ok && i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '-', c == ':' && colon:
			ok = i > 0
		default:
			ok = false
		}
	}
	if !ok {
		also := ""
		if colon {
			also = ":"
		}
		return fmt.Errorf("%.64q is not allowed: 1 to 128 of A-Z, a-z, 0-9 and ._%s-, beginning with a letter or digit", s, also)
	}
	return nil
}
