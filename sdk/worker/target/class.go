package target

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Class is what kind of place an address is.
type Class uint8

// The classes of addresses.
const (
	Public     Class = iota // anything that is none of the others
	Loopback                // this machine, its unspecified addresses too
	LinkLocal               // this machine's network segment, and site-local addresses
	Metadata                // where clouds hand out credentials
	Private                 // RFC 1918, and unique local addresses of IPv6
	Shared                  // RFC 6598: behind a carrier's translation
	Multicast               // many machines
	Reserved                // nobody's, the broadcast address among them
	Translated              // a public IPv4 address inside an IPv6 one: mapped, NAT64, 6to4, Teredo, ISATAP
)

var classNames = [...]string{"public", "loopback", "link-local", "metadata", "private", "shared", "multicast", "reserved", "translated"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// metadata are the addresses at which clouds serve metadata.
var metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), // AWS, GCP, Azure, OpenStack and others
	netip.MustParseAddr("169.254.170.2"),   // AWS, of containers
	netip.MustParseAddr("169.254.170.23"),  // AWS, of pods
	netip.MustParseAddr("fd00:ec2::254"),
	netip.MustParseAddr("fd00:ec2::23"),
	netip.MustParseAddr("fd20:ce::254"),    // GCP
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	siteLocal   = netip.MustParsePrefix("fec0::/10")
	shared      = netip.MustParsePrefix("100.64.0.0/10")
	reserved    = netip.MustParsePrefix("240.0.0.0/4")

	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
)

// ClassOf returns the class of an address. One with an IPv4 address inside has the class of
// that, and Translated when that is public. A zone does not count.
func ClassOf(a netip.Addr) Class {
	a = a.WithZone("")
	if inner, ok := Embedded(a); ok {
		if c := ClassOf(inner); c != Public {
			return c
		}
		return Translated
	}
	switch {
	case slices.Contains(metadata, a):
		return Metadata
	case a.IsLoopback() || a.IsUnspecified() || thisNetwork.Contains(a):
		return Loopback
	case a.IsLinkLocalUnicast() || siteLocal.Contains(a):
		return LinkLocal
	case a.IsPrivate():
		return Private
	case shared.Contains(a):
		return Shared
	case a.IsMulticast():
		return Multicast
	case !a.IsValid() || reserved.Contains(a):
		return Reserved
	}
	return Public
}

// Embedded is the IPv4 address at which traffic to an IPv6 one may end.
func Embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	a = a.WithZone("")
	switch {
	case a.IsLoopback(), a.IsUnspecified():
		return netip.Addr{}, false
	case a.Is4In6(), nat64.Contains(a), localNAT64.Contains(a), compatible.Contains(a), translated.Contains(a):
		return at(12), true
	case sixToFour.Contains(a):
		return at(2), true
	case teredo.Contains(a):
		var v4 [4]byte
		binary.BigEndian.PutUint32(v4[:], ^binary.BigEndian.Uint32(b[12:]))
		return netip.AddrFrom4(v4), true
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP
		return at(12), true
	}
	return netip.Addr{}, false
}
