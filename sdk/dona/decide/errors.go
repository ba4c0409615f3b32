package decide

import (
	"fmt"
	"strings"
)

// DeniedError says that residency left no endpoint. It is shared by requests and
// must not be changed.
type DeniedError struct {
	Service   string
	Policy    []string // regions of the service's policy; empty = any
	RuleID    string   // of that policy
	Requested []string // regions of the request; empty = any
	Allowed   []string // in both
}

// Error names the regions in which an endpoint would have been legal.
func (e *DeniedError) Error() string {
	if len(e.Allowed) > 0 {
		return fmt.Sprintf("residency: no endpoint in %s (service %s)", strings.Join(e.Allowed, ", "), e.Service)
	}
	rule := ""
	if e.RuleID != "" {
		rule = ", rule " + e.RuleID
	}
	return fmt.Sprintf("residency: no endpoint in both %s (policy%s) and %s (request): no region is in both (service %s)",
		strings.Join(e.Policy, ", "), rule, strings.Join(e.Requested, ", "), e.Service)
}

// UnavailableError says that no endpoint is usable for another reason than
// residency. It is shared by requests and must not be changed.
type UnavailableError struct {
	Service string
	Why     string
}

// Error names the service and the reason.
func (e *UnavailableError) Error() string {
	return fmt.Sprintf("unavailable: service %s: %s", e.Service, e.Why)
}
