package poolconfig

import (
	"fmt"
	"slices"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/config/strict"
)

// Warnings says what is allowed and yet hardly meant, in the document's order:
// "key: what happens".
func (c *Config) Warnings() (warnings []string) {
	warn := func(key, format string, args ...any) {
		warnings = append(warnings, key+": "+fmt.Sprintf(format, args...))
	}
	if len(c.Upstreams) == 0 {
		warn("upstreams", "are none, so no routing has a proxy to use")
	}
	used := map[string]bool{}
	for _, r := range c.Routings {
		for _, ref := range r.Upstreams {
			used[ref.Name] = used[ref.Name] || r.Enabled
		}
	}
	for i, u := range c.Upstreams {
		key := fmt.Sprintf("upstreams[%d]", i)
		if !used[u.Name] && u.ExtractReserve == 0 {
			warn(key, "no enabled routing uses %s, and none of its proxies is reserved for extraction", u.Name)
		}
		if !u.Check.Basic {
			warn(key+".check.basic", "is false, and a proxy is first used after a good basic check: none of %s will be", u.Name)
		}
		if strings.HasPrefix(u.Source.URL, "http://") {
			warn(key+".source.url", "is not https: who reads along there sees the list and its credentials")
		}
		if u.Source.Interval > u.TTL/2 {
			warn(key+".ttl", "is %s and the list is read every %s: a read that fails once or twice lets its proxies expire", strict.Short(u.TTL), strict.Short(u.Source.Interval))
		}
		if u.Source.Type == Static && len(u.Source.Proxies) == 0 {
			warn(key+".source.proxies", "are none: proxies of %s come from imports only", u.Name)
		}
	}
	return append(warnings, c.routingWarnings()...)
}

func (c *Config) routingWarnings() (warnings []string) {
	all := "" // the enabled routing that matches everything
	for i, r := range c.Routings {
		key := fmt.Sprintf("routings[%d]", i)
		if !r.Enabled {
			continue
		}
		if all != "" {
			warnings = append(warnings, fmt.Sprintf("%s: is never reached, because %s before it matches every request", key, all))
		}
		if m := r.Match; all == "" && len(m.Hosts)+len(m.Ports)+len(m.Clients)+len(m.Methods) == 0 {
			all = r.Name
		}
		if !slices.ContainsFunc(r.Upstreams, func(ref Ref) bool {
			u, ok := c.Upstream(ref.Name)
			return ok && u.Enabled
		}) {
			warnings = append(warnings, key+".upstreams: none of them is enabled")
		}
		if r.OnUnavailable == controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT {
			warnings = append(warnings, key+".onUnavailable: is direct: without a proxy, targets see the gateway's own address")
		}
		if r.TargetPolicy.AllowPrivate {
			warnings = append(warnings, key+".targetPolicy.allowPrivate: is true: clients reach private and loopback addresses through the gateway")
		}
		if r.Strategy != "priority" && slices.ContainsFunc(r.Upstreams, func(ref Ref) bool { return ref.Priority != 0 }) {
			warnings = append(warnings, fmt.Sprintf("%s.upstreams: have priorities, which the strategy %s may not look at", key, r.Strategy))
		}
	}
	return warnings
}
