// Package ingress says which service a request from outside is for: by its host
// and the longest path prefix. It does no I/O. Package dona routes HTTP requests
// by it, and the host checks with it what an operator sets, so both read a rule
// in the same way.
package ingress

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Rule leads the requests of a host and path prefix to a service.
type Rule struct {
	Service string
	// Host is a DNS name in lower case, or *. and a name: any host below that
	// name, at any depth, and not the name itself.
	Host string
	// PathPrefix is / or a path without a slash at its end. It covers whole
	// segments: /api covers /api and /api/v1, and not /apis.
	PathPrefix string
	// AllowedRegions are the only regions that may serve such a request, on top
	// of every other list. Empty = any.
	AllowedRegions []string
}

// MaxPrefix is the most bytes of a path prefix.
const MaxPrefix = 1 << 10

const maxHost = 253

var (
	errHost   = errors.New("allowed are a DNS name in lower case, and *. with such a name, without a port")
	errPrefix = errors.New("allowed is a path as a program sees it: it begins with /, has no empty, . or .. segment, none of ? # % \\, and no / at its end")
)

// CheckHost says what is wrong with a rule's host; nil when nothing is.
func CheckHost(host string) error {
	name := strings.TrimPrefix(host, "*.")
	if len(host) > maxHost {
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(host), maxHost)
	}
	for label := range strings.SplitSeq(name, ".") {
		ok := len(label) >= 1 && len(label) <= 63 && label[0] != '-' && label[len(label)-1] != '-'
		for i := 0; ok && i < len(label); i++ {
			c := label[i]
			ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
		}
		if !ok {
			return errHost
		}
	}
	return nil
}

// CheckPrefix says what is wrong with a rule's path prefix; nil when nothing is.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxPrefix {
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(prefix), MaxPrefix)
	}
	control := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if !strings.HasPrefix(prefix, "/") || path.Clean(prefix) != prefix || !utf8.ValidString(prefix) ||
		strings.ContainsAny(prefix, `?#%\`) || strings.ContainsFunc(prefix, control) {
		return errPrefix
	}
	return nil
}

// Table is a set of rules, ready to resolve. It is immutable and safe for
// concurrent use; the zero value has no rule.
type Table struct {
	exact  map[string]byPrefix
	suffix map[string]byPrefix // by what comes after the *
	rules  []Rule
}

type byPrefix map[string]*Rule

// New makes a table. A rule that is wrong, or whose host and prefix another has
// too, is left out, and the error names each such rule; the table is good for the
// others.
func New(rules []Rule) (*Table, error) {
	t := &Table{exact: map[string]byPrefix{}, suffix: map[string]byPrefix{}}
	var wrong []error
	for _, r := range rules {
		if err := t.add(r); err != nil {
			wrong = append(wrong, fmt.Errorf("ingress rule %.80q %.80q to %.80q: %w", r.Host, r.PathPrefix, r.Service, err))
		}
	}
	return t, errors.Join(wrong...)
}

func (t *Table) add(r Rule) error {
	if err := CheckHost(r.Host); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := CheckPrefix(r.PathPrefix); err != nil {
		return fmt.Errorf("path prefix: %w", err)
	}
	if r.Service == "" {
		return errors.New("it names no service")
	}
	hosts, host := t.exact, r.Host
	if below, ok := strings.CutPrefix(r.Host, "*"); ok {
		hosts, host = t.suffix, below
	}
	if hosts[host] == nil {
		hosts[host] = byPrefix{}
	}
	if hosts[host][r.PathPrefix] != nil {
		return errors.New("another rule has the same host and prefix")
	}
	r.AllowedRegions = slices.Clone(r.AllowedRegions)
	hosts[host][r.PathPrefix] = &r
	t.rules = append(t.rules, r)
	return nil
}

// Rules returns the rules of the table. The caller must not change their regions.
func (t *Table) Rules() []Rule { return slices.Clone(t.rules) }

// Resolve returns the rule for a request: host as its Host header has it, with or
// without a port, and its path, decoded. Of the rules that match, an exact host
// goes before a suffix, a longer suffix before a shorter one, and then a longer
// prefix before a shorter one.
func (t *Table) Resolve(host, path string) (Rule, bool) {
	host = hostName(host)
	if host == "" || !strings.HasPrefix(path, "/") {
		return Rule{}, false
	}
	path = cleaned(path)
	if r := t.exact[host].longest(path); r != nil {
		return *r, true
	}
	for rest := host; ; {
		i := strings.IndexByte(rest[1:], '.')
		if i < 0 {
			return Rule{}, false
		}
		rest = rest[1+i:] // from the next dot on
		if r := t.suffix[rest].longest(path); r != nil {
			return *r, true
		}
		if len(rest) == 1 {
			return Rule{}, false
		}
	}
}

// hostName is a Host header as rules write hosts.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// cleaned is path without empty and dot segments, and no longer than a prefix
// can cover: what comes after decides nothing.
func cleaned(p string) string {
	p = path.Clean(p)
	if len(p) <= MaxPrefix {
		return p
	}
	if p[MaxPrefix] == '/' {
		return p[:MaxPrefix]
	}
	return parent(p[:MaxPrefix])
}

func (m byPrefix) longest(p string) *Rule {
	if len(m) == 0 {
		return nil
	}
	for {
		if r := m[p]; r != nil || p == "/" {
			return r
		}
		p = parent(p)
	}
}

// parent is the path one segment up.
func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "/"
}
