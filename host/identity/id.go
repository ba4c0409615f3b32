package identity

import (
	"fmt"
	"strings"

	"github.com/dodona-project/dodona/host/limits"
)

// Kind is what an identity is for.
type Kind string

// The kinds of identities, and what follows spiffe://<trust domain>/ in each.
const (
	Service Kind = "svc"     // svc/<service>
	Worker  Kind = "worker"  // <environment>/worker/<id>
	Checker Kind = "checker" // <environment>/checker/<id>
	Admin   Kind = "admin"   // admin/<name>
	Host    Kind = "host"    // host/<id>
)

// MaxIDLen bounds a SPIFFE ID, in bytes.
const MaxIDLen = 2048

const scheme = "spiffe://"

// ID is an identity of a trust domain. Two are the same when their texts are, byte for
// byte: nothing is ever normalised.
type ID struct {
	TrustDomain string
	Kind        Kind
	Environment string // of workers and checkers
	Name        string
}

// String is the SPIFFE ID.
func (id ID) String() string { return scheme + id.TrustDomain + "/" + id.Path() }

// Path is what follows the trust domain and its slash.
func (id ID) Path() string {
	if id.Environment != "" {
		return id.Environment + "/" + string(id.Kind) + "/" + id.Name
	}
	return string(id.Kind) + "/" + id.Name
}

// ParseID reads a SPIFFE ID of one of the five kinds. The error continues the name of
// what held it.
func ParseID(text string) (ID, error) {
	if len(text) > MaxIDLen {
		return ID{}, fmt.Errorf("has %d bytes: allowed are at most %d", len(text), MaxIDLen)
	}
	rest, ok := strings.CutPrefix(text, scheme)
	domain, path, both := strings.Cut(rest, "/")
	if !ok || !both || !validDomain(domain) {
		return ID{}, fmt.Errorf("is %s: allowed is %s<trust domain>/<path>, the trust domain of a-z, 0-9 and ._-", limits.QuoteOrEmpty(text), scheme)
	}
	return parsePath(domain, path)
}

// ParsePath reads what follows the trust domain: "svc/<service>", "admin/<name>",
// "<environment>/worker/<id>" and so on. The error continues the field's name.
func ParsePath(trustDomain, path string) (ID, error) {
	if len(scheme)+len(trustDomain)+1+len(path) > MaxIDLen {
		return ID{}, fmt.Errorf("has %d bytes: allowed are at most %d with the trust domain before it", len(path), MaxIDLen)
	}
	return parsePath(trustDomain, path)
}

func parsePath(domain, path string) (ID, error) {
	parts := strings.SplitN(path, "/", 4)
	id := ID{TrustDomain: domain}
	known := false
	switch len(parts) {
	case 2:
		id.Kind, id.Name = Kind(parts[0]), parts[1]
		known = id.Kind == Service || id.Kind == Admin || id.Kind == Host
	case 3:
		id.Environment, id.Kind, id.Name = parts[0], Kind(parts[1]), parts[2]
		known = id.Kind == Worker || id.Kind == Checker
	}
	if !known {
		return ID{}, fmt.Errorf("is %s: allowed are svc/<service>, <environment>/worker/<id>, <environment>/checker/<id>, admin/<name> and host/<id>", limits.QuoteOrEmpty(path))
	}
	for _, part := range parts {
		if !validSegment(part) {
			return ID{}, fmt.Errorf("has the part %s: allowed are A-Z, a-z, 0-9 and ._-, but not . or .. alone", limits.QuoteOrEmpty(part))
		}
	}
	if id.Kind == Service {
		if err := limits.Service(id.Name); err != nil {
			return ID{}, fmt.Errorf("names a service that %w", err)
		}
	}
	return id, nil
}

func validSegment(s string) bool {
	if s == "" || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

func validDomain(s string) bool {
	if s == "" || len(s) > 255 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
