package match

import (
	"net/netip"
	"strings"
)

// An IPv4 address inside an IPv6 one (::ffff:10.0.0.1) is that IPv4 address, in
// attributes and in values: sockets that take both give it so.

// parseAddress reads an IP address. One with a zone is none: what it names differs
// from machine to machine.
func parseAddress(s string) (netip.Addr, bool) {
	if strings.IndexByte(s, '%') >= 0 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap(), err == nil
}

// parsePrefix reads a prefix, or an address as the prefix of itself alone. Bits after
// the prefix are left out.
func parsePrefix(s string) (netip.Prefix, bool) {
	if a, ok := parseAddress(s); ok {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, false
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}
