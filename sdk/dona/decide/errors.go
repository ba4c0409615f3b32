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
	Ingress   []string // regions of the ingress rule; empty = any
	Allowed   []string // in all of them
}

// Error names the regions in which an endpoint would have been legal.
func (e *DeniedError) Error() string {
	if len(e.Allowed) > 0 {
		return fmt.Sprintf("residency: no endpoint in %s (service %s)", strings.Join(e.Allowed, ", "), e.Service)
	}
	var lists []string
	name := func(regions []string, whose string) {
		if len(regions) > 0 {
			lists = append(lists, strings.Join(regions, ", ")+" ("+whose+")")
		}
	}
	policy := "policy"
	if e.RuleID != "" {
		policy += ", rule " + e.RuleID
	}
	name(e.Policy, policy)
	name(e.Requested, "request")
	name(e.Ingress, "ingress rule")
	all := "all of"
	if len(lists) == 2 {
		all = "both"
	}
	return fmt.Sprintf("residency: no endpoint in %s %s: no region is in %s (service %s)", all, strings.Join(lists, " and "), strings.TrimSuffix(all, " of"), e.Service)
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
