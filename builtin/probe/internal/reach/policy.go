// Package reach connects the built-in probes to what they check, and to nothing
// else: an endpoint's address was written by whoever registered it, so that a probe
// could be made to knock at doors that are only open to this machine.
//
// A [Dialer] refuses loopback, link-local and cloud metadata addresses unless the
// probe's configuration or its environment allows them. It looks at every address
// that a name has, and again at the one that is dialled, on each connection.
// [Failed] says whose fault an error is.
package reach

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Classes of addresses that are refused unless they are allowed.
const (
	Loopback  = "loopback"   // this machine, its unspecified addresses too
	LinkLocal = "link-local" // this machine's network segment
	Metadata  = "metadata"   // where clouds hand out credentials

	// nowhere is no address of one machine. It is never allowed.
	nowhere = "multicast or reserved"
)

// Variable is the environment variable of a probe with the classes that the host's
// operator allows for every configuration, separated by commas.
const Variable = "PROBE_ALLOW"

var classes = []string{Loopback, LinkLocal, Metadata}

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
	reserved    = netip.MustParsePrefix("240.0.0.0/4")
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64  = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour   = netip.MustParsePrefix("2002::/16")
	teredo      = netip.MustParsePrefix("2001::/32")
	compatible  = netip.MustParsePrefix("::/96")
	siteLocal   = netip.MustParsePrefix("fec0::/10")
)

// Class is the class of an address, empty for one that is not refused.
func Class(a netip.Addr) string {
	a = a.WithZone("").Unmap()
	switch {
	case slices.Contains(metadata, a):
		return Metadata
	case a.IsLoopback() || a.IsUnspecified() || thisNetwork.Contains(a):
		return Loopback
	case a.IsLinkLocalUnicast() || siteLocal.Contains(a):
		return LinkLocal
	case !a.IsValid() || a.IsMulticast() || reserved.Contains(a):
		return nowhere
	}
	if inner, ok := embedded(a); ok {
		return Class(inner)
	}
	return ""
}

// embedded is the IPv4 address that traffic to an IPv6 one may end at.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case nat64.Contains(a), localNAT64.Contains(a), compatible.Contains(a):
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

// Refusal says that an address may not be reached. It is not the target's fault: a
// check that it ends is inconclusive.
type Refusal struct{ What, Why string }

func (r *Refusal) Error() string { return fmt.Sprintf("%.80q is refused: %s", r.What, r.Why) }

// Policy is which classes may be reached.
type Policy struct{ allowed []string }

// Allowing returns the policy of a configuration: what it allows and what the
// environment does.
func Allowing(config []string) Policy {
	allowed := slices.Clone(config)
	for class := range strings.SplitSeq(os.Getenv(Variable), ",") {
		if class = strings.TrimSpace(class); class != "" {
			allowed = append(allowed, class)
		}
	}
	return Policy{allowed: allowed}
}

// CheckAllow refuses a class that does not exist, in a configuration or in the
// environment.
func CheckAllow(config []string) error {
	for i, class := range config {
		if !slices.Contains(classes, class) {
			return fmt.Errorf("allow[%d] is %.32q: allowed are %s", i, class, strings.Join(classes, ", "))
		}
	}
	for _, class := range Allowing(nil).allowed {
		if !slices.Contains(classes, class) {
			return fmt.Errorf("the environment's %s has %.32q: allowed are %s, separated by commas", Variable, class, strings.Join(classes, ", "))
		}
	}
	return nil
}

// check returns a *Refusal for an address that may not be reached.
func (p Policy) check(a netip.Addr) error {
	class := Class(a)
	switch {
	case class == "" || slices.Contains(p.allowed, class):
		return nil
	case class == nowhere:
		return &Refusal{What: a.String(), Why: "it is multicast or reserved, and no one's address"}
	}
	return &Refusal{What: a.String(), Why: fmt.Sprintf("it is a %s address; allow it in the probe's configuration (\"allow\": [%q]) or in its environment (%s=%s)", class, class, Variable, class)}
}
