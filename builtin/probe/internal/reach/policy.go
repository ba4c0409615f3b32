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
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/dodona-project/dodona/sdk/worker/target"
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

// Class is the class of an address, empty for one that is not refused. An IPv6 address
// with an IPv4 one inside has the class of that.
func Class(a netip.Addr) string {
	switch class := target.ClassOf(a); class {
	case target.Loopback, target.LinkLocal, target.Metadata:
		return class.String()
	case target.Multicast, target.Reserved:
		return nowhere
	}
	return ""
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

// Classes are the allowed ones.
func (p Policy) Classes() (out []target.Class) {
	for _, c := range []target.Class{target.Loopback, target.LinkLocal, target.Metadata} {
		if slices.Contains(p.allowed, c.String()) {
			out = append(out, c)
		}
	}
	return out
}

// CheckTarget returns a *Refusal for a target of somebody else's connection that may not be
// reached, by its address or by what its name always means.
func (p Policy) CheckTarget(t target.Target) error {
	if t.Addr.IsValid() {
		return p.check(t.Addr)
	}
	if class := target.ClassOfName(t.Name).String(); slices.Contains(classes, class) && !slices.Contains(p.allowed, class) {
		return notAllowed(t.Name, class, "name")
	}
	return nil
}

func notAllowed(what, class, kind string) *Refusal {
	return &Refusal{What: what, Why: fmt.Sprintf("it is a %s %s; allow it in the probe's configuration (\"allow\": [%q]) or in its environment (%s=%s)", class, kind, class, Variable, class)}
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
	return notAllowed(a.String(), class, "address")
}
