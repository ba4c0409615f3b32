package target

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/dona/ingress"
)

// Refusal says that a policy does not let a target be reached. It is nobody's
// failure.
type Refusal struct{ What, Why string }

func (r *Refusal) Error() string { return fmt.Sprintf("%.80q is refused: %s", r.What, r.Why) }

// Policy is a target policy of a routing. The zero value and nil allow every public
// place on ports 80 and 443.
//
// A target has to pass all of this, and what denies beats what allows:
//   - its port is one of the allowed ones;
//   - its name is not denied, nor one of this machine or of a cloud's metadata;
//   - each address that is known of it is public unless private ones are allowed, is not
//     denied, and is not where this gateway itself listens;
//   - when something is allowed by name or address, nothing else is: its name is allowed,
//     or all its addresses are.
type Policy struct {
	ports               []uint16 // empty = 80 and 443
	allowHost, denyHost hosts
	allow, deny         []netip.Prefix
	private             bool
	own                 []netip.AddrPort
	local               []netip.Addr
}

// Own is where a gateway listens itself. Nothing opens it to targets: requests would go
// round for ever.
type Own struct {
	Listeners []netip.AddrPort
	Local     []netip.Addr // this machine's addresses, for listeners on all of them
}

// Compile reads a policy; nil is that of nobody's configuration. Its error names every
// field that is wrong.
func Compile(p *controlplanev1.TargetPolicy, own Own) (*Policy, error) {
	c := &Policy{private: p.GetAllowPrivate(), own: own.Listeners}
	for _, a := range own.Local {
		c.local = append(c.local, a.WithZone("").Unmap())
	}
	var wrong []error
	keep := func(err error) {
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	for i, port := range p.GetAllowPorts() {
		if port == 0 || port > 65535 {
			keep(fmt.Errorf("allow_ports[%d] is %d: allowed are 1 to 65535", i, port))
			continue
		}
		c.ports = append(c.ports, uint16(port))
	}
	for i, host := range p.GetAllowHosts() {
		keep(c.allowHost.add(host, &c.allow, "allow_hosts", i))
	}
	for i, host := range p.GetDenyHosts() {
		keep(c.denyHost.add(host, &c.deny, "deny_hosts", i))
	}
	for i, text := range p.GetAllowCidrs() {
		keep(addPrefix(text, &c.allow, "allow_cidrs", i))
	}
	for i, text := range p.GetDenyCidrs() {
		keep(addPrefix(text, &c.deny, "deny_cidrs", i))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return c, nil
}

func addPrefix(text string, to *[]netip.Prefix, field string, i int) error {
	p, err := netip.ParsePrefix(text)
	if a, alone := netip.ParseAddr(text); alone == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return fmt.Errorf("%s[%d] is %.64q: allowed are an address and a network, as in 192.0.2.0/24", field, i, text)
	}
	if p.Masked() != p {
		return fmt.Errorf("%s[%d] is %.64q, which has bits after its first %d: is %s meant?", field, i, text, p.Bits(), p.Masked())
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	*to = append(*to, p)
	return nil
}

// hosts is a set of names, and of suffixes written as *.suffix.
type hosts struct{ exact, below map[string]struct{} }

func (h *hosts) add(pattern string, addresses *[]netip.Prefix, field string, i int) error {
	text := strings.ToLower(strings.TrimSuffix(pattern, "."))
	if t, err := ParseHost(text); err == nil && t.Addr.IsValid() {
		return addPrefix(text, addresses, field, i)
	}
	suffix, wild := strings.CutPrefix(text, "*.")
	_, _, why := parseHost(suffix)
	if err := ingress.CheckHost(text); err != nil || why != "" {
		return fmt.Errorf("%s[%d] is %.64q: allowed are a DNS name, *. with a name for all below it, and an address", field, i, pattern)
	}
	if h.exact == nil {
		h.exact, h.below = map[string]struct{}{}, map[string]struct{}{}
	}
	if wild {
		h.below[suffix] = struct{}{}
	} else {
		h.exact[text] = struct{}{}
	}
	return nil
}

func (h *hosts) has(name string) bool {
	if _, ok := h.exact[name]; ok {
		return true
	}
	if len(h.below) == 0 {
		return false
	}
	for {
		dot := strings.IndexByte(name, '.')
		if dot < 0 {
			return false
		}
		name = name[dot+1:]
		if _, ok := h.below[name]; ok {
			return true
		}
	}
}

func (h *hosts) empty() bool { return len(h.exact) == 0 && len(h.below) == 0 }

// Hosts is a set of names, of suffixes written as *.suffix, and of addresses, as the
// policy of a routing has them and its match does. The zero value is empty.
type Hosts struct {
	names hosts
	nets  []netip.Prefix
}

// NewHosts reads patterns. Its error names every one that is wrong as field[i].
func NewHosts(field string, patterns []string) (Hosts, error) {
	var h Hosts
	var wrong []error
	for i, p := range patterns {
		if err := h.names.add(p, &h.nets, field, i); err != nil {
			wrong = append(wrong, err)
		}
	}
	return h, errors.Join(wrong...)
}

// Has reports whether a target is in the set: an address by itself, a name by itself or a
// suffix.
func (h *Hosts) Has(t Target) bool {
	if t.Addr.IsValid() {
		return slices.ContainsFunc(h.nets, func(n netip.Prefix) bool { return n.Contains(t.Addr) })
	}
	return h.names.has(t.Name)
}

// Empty reports whether nothing is in the set.
func (h *Hosts) Empty() bool { return h.names.empty() && len(h.nets) == 0 }

// nobody is what a nil Policy allows.
var nobody = &Policy{}

func (p *Policy) or() *Policy {
	if p == nil {
		return nobody
	}
	return p
}

// Check judges a target whose name is resolved elsewhere, by the upstream proxy: by
// name and port, and by address when it is one. The upstream may resolve a name to
// anything it likes; what must not be is for the upstream to prevent, or for Resolve. The
// error is a *Refusal.
func (p *Policy) Check(t Target) error {
	p = p.or()
	if err := p.checkNamed(t); err != nil {
		return err
	}
	switch {
	case t.Addr.IsValid():
		return p.CheckAddr(t, t.Addr)
	case p.restricted() && !p.allowHost.has(t.Name):
		return &Refusal{What: t.Host(), Why: "it is not in allow_hosts, and as the upstream resolves it nobody knows whether its addresses are in allow_cidrs"}
	}
	return nil
}

// restricted reports whether only what is listed is allowed.
func (p *Policy) restricted() bool { return !p.allowHost.empty() || len(p.allow) > 0 }

// checkNamed judges port and name.
func (p *Policy) checkNamed(t Target) error {
	switch {
	case len(p.ports) == 0 && t.Port != 80 && t.Port != 443:
		return &Refusal{What: t.String(), Why: "its port is not 80 or 443, which are allowed where allow_ports has none"}
	case len(p.ports) > 0 && !slices.Contains(p.ports, t.Port):
		return &Refusal{What: t.String(), Why: "its port is not in allow_ports"}
	case t.Name == "":
		return nil
	case p.denyHost.has(t.Name):
		return &Refusal{What: t.Name, Why: "it is in deny_hosts"}
	}
	switch class := ClassOfName(t.Name); {
	case class == Metadata && !p.exactly(t.Name):
		return &Refusal{What: t.Name, Why: "it is a cloud's metadata service; to allow it set allow_private and name it in allow_hosts"}
	case class != Public && !p.private:
		return &Refusal{What: t.Name, Why: fmt.Sprintf("it is a %s name, and allow_private is not set", class)}
	}
	return nil
}

func (p *Policy) exactly(name string) bool {
	_, ok := p.allowHost.exact[name]
	return ok
}

// ClassOfName is the class of a name in lower case that means a place whatever a
// resolver says.
func ClassOfName(name string) Class {
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case last == "localhost" || last == "localdomain" || name == "ip6-localhost" || name == "ip6-loopback":
		return Loopback
	case name == "metadata.google.internal" || name == "metadata.goog" || name == "instance-data" || strings.HasPrefix(name, "instance-data.") && last == "internal":
		return Metadata
	}
	return Public
}

// CheckAddr judges an address of a target, one that it is or that its name has, after
// name and port. The error is a *Refusal.
func (p *Policy) CheckAddr(t Target, a netip.Addr) error {
	p = p.or()
	if err := p.checkNamed(t); err != nil {
		return err
	}
	if a.Zone() != "" {
		return &Refusal{What: a.String(), Why: "it has a zone, which only this machine's own networks have"}
	}
	inner, hidden := Embedded(a)
	is := func(in []netip.Prefix) bool {
		return slices.ContainsFunc(in, func(n netip.Prefix) bool {
			return n.Contains(a) || hidden && n.Contains(inner)
		})
	}
	class := ClassOf(a)
	switch {
	case p.isOwn(a, t.Port) || hidden && p.isOwn(inner, t.Port):
		return &Refusal{What: t.String(), Why: "this gateway itself listens there"}
	case is(p.deny):
		return &Refusal{What: a.String(), Why: "it is in deny_cidrs"}
	case class == Metadata && !(p.private && p.alone(a, inner)):
		return &Refusal{What: a.String(), Why: "it is a cloud's metadata service; to allow it set allow_private and put the address alone into allow_cidrs"}
	case class != Public && !p.private:
		return &Refusal{What: a.String(), Why: fmt.Sprintf("it is a %s address, and allow_private is not set", class)}
	case p.restricted() && !is(p.allow) && !(t.Name != "" && p.allowHost.has(t.Name)):
		return &Refusal{What: t.Host(), Why: "neither its name is in allow_hosts nor its address in allow_cidrs"}
	}
	return nil
}

// alone reports whether allow_cidrs has a network of just this address.
func (p *Policy) alone(a, inner netip.Addr) bool {
	return slices.ContainsFunc(p.allow, func(n netip.Prefix) bool {
		return n.IsSingleIP() && (n.Addr() == a || n.Addr() == inner)
	})
}

// isOwn reports whether the gateway listens at an address.
func (p *Policy) isOwn(a netip.Addr, port uint16) bool {
	a = a.Unmap()
	for _, l := range p.own {
		if l.Port() != port {
			continue
		}
		at := l.Addr().WithZone("").Unmap()
		if at == a || at.IsUnspecified() && (ClassOf(a) == Loopback || slices.Contains(p.local, a)) || a.IsUnspecified() && at.IsLoopback() {
			return true
		}
	}
	return false
}

// CheckProxy judges the address of an upstream proxy that somebody listed: loopback,
// link-local and metadata, multicast and reserved ones are refused unless their class
// is allowed. Private networks are where proxies often are. The error is a *Refusal.
func CheckProxy(t Target, allowed ...Class) error {
	class := ClassOfName(t.Name)
	if t.Addr.IsValid() {
		class = ClassOf(t.Addr)
	}
	switch class {
	case Public, Private, Shared, Translated:
		return nil
	}
	if slices.Contains(allowed, class) {
		return nil
	}
	return &Refusal{What: t.Host(), Why: fmt.Sprintf("it is a %s address, where no upstream proxy is unless that is allowed in words", class)}
}
