package poolconfig

import (
	"fmt"
	"math"
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// The words of the document's enumerations, each list in the order of the values
// beside it.
var (
	protocolWords  = []string{"http", "https", "socks5"}
	protocolValues = []controlplanev1.Proxy_Protocol{controlplanev1.Proxy_PROTOCOL_HTTP, controlplanev1.Proxy_PROTOCOL_HTTPS, controlplanev1.Proxy_PROTOCOL_SOCKS5}

	unavailableWords  = []string{"fail", "wait", "direct"}
	unavailableValues = []controlplanev1.OnUnavailable{controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL, controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT, controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT}

	resolveWords  = []string{"remote", "pinned"}
	resolveValues = []controlplanev1.Resolve{controlplanev1.Resolve_RESOLVE_REMOTE, controlplanev1.Resolve_RESOLVE_PINNED}

	modeWords  = []string{"none", "failover", "strict"}
	modeValues = []controlplanev1.Stickiness_Mode{controlplanev1.Stickiness_MODE_UNSPECIFIED, controlplanev1.Stickiness_MODE_FAILOVER, controlplanev1.Stickiness_MODE_STRICT}

	classWords  = []string{"loopback", "link-local", "metadata"}
	classValues = []target.Class{target.Loopback, target.LinkLocal, target.Metadata}
)

// Parse reads a document and checks it. name stands for it in problems, as a
// file's name does. The error is a *strict.Error with everything that is wrong.
func Parse(name, text string) (*Config, error) {
	p := parser{config: &Config{Allocation: Allocation{
		SafetyMargin: DefaultSafetyMargin, SnapshotValidity: DefaultSnapshotValidity,
		SessionTTL: DefaultSessionTTL, MaxStaleAge: DefaultMaxStaleAge,
	}}}
	if err := strict.Read(name, []byte(text), p.document); err != nil {
		return nil, err
	}
	return p.config, nil
}

type parser struct {
	config *Config
	refs   []later        // judged when all upstreams are known
	ttls   []strict.Value // of each upstream: judged when the allocation is known
}

// later is a value that only the whole document shows to be right.
type later struct {
	name string
	at   strict.Value
}

func (p *parser) document(root strict.Value) {
	c := p.config
	upstreams := map[string]bool{}
	routings := map[string]bool{}
	root.Fields(strict.Fields{
		"cluster": func(v strict.Value) {
			v.Fields(strict.Fields{
				"id":          func(v strict.Value) { v.String(&c.Cluster.ID, limits.Name) },
				"environment": func(v strict.Value) { v.String(&c.Cluster.Environment, limits.Name) },
			}, "id")
		},
		"upstreams": func(v strict.Value) {
			v.Items(MaxUpstreams, func(_ int, v strict.Value) { c.Upstreams = append(c.Upstreams, p.upstream(v, upstreams)) })
		},
		"routings": func(v strict.Value) {
			v.Items(MaxRoutings, func(_ int, v strict.Value) { c.Routings = append(c.Routings, p.routing(v, routings)) })
		},
		"allocation": p.allocation,
	}, "cluster")
	for _, ref := range p.refs {
		if !upstreams[ref.name] {
			ref.at.Refuse("is %s, which is not an upstream of this document (allowed: a name of upstreams)", limits.Quote(ref.name))
		}
	}
	for i, at := range p.ttls {
		if ttl, margin := c.Upstreams[i].TTL, c.Allocation.SafetyMargin; ttl <= margin {
			at.Refuse("has proxies for %s, during which none is used (allowed: a ttl of more than allocation.safetyMargin, %s)", strict.Short(ttl), strict.Short(margin))
		}
	}
}

// unique reads a name that no other of its list has.
func unique(v strict.Value, into *string, taken map[string]bool) {
	v.String(into, func(s string) error {
		if err := limits.Name(s); err != nil {
			return err
		}
		if taken[s] {
			return fmt.Errorf("is %s a second time (allowed: names that differ)", limits.Quote(s))
		}
		taken[s] = true
		return nil
	})
}

func (p *parser) upstream(v strict.Value, taken map[string]bool) Upstream {
	u := Upstream{
		Enabled: true, CapacityPerProxy: DefaultCapacity, TTL: DefaultTTL,
		Check: Check{Basic: true, MaxInFlight: DefaultMaxInFlight, Probe: DefaultProbe},
	}
	ttl := v
	var static []listed
	v.Fields(strict.Fields{
		"name":    func(v strict.Value) { unique(v, &u.Name, taken) },
		"enabled": func(v strict.Value) { v.Bool(&u.Enabled) },
		"protocol": func(v strict.Value) {
			if i := v.Enum(protocolWords...); i >= 0 {
				u.Protocol = protocolValues[i]
			}
		},
		"source":           func(v strict.Value) { u.Source, static = source(v) },
		"secretRef":        func(v strict.Value) { v.String(&u.SecretRef, SecretRef) },
		"capacityPerProxy": func(v strict.Value) { v.Uint(&u.CapacityPerProxy, 1, MaxCapacity) },
		"extractReserve":   func(v strict.Value) { v.Uint(&u.ExtractReserve, 0, MaxReserve) },
		"ttl":              func(v strict.Value) { ttl = v; v.Duration(&u.TTL, Least, Most) },
		"labels":           func(v strict.Value) { u.Labels = labels(v) },
		"allowAddresses":   func(v strict.Value) { u.AllowAddresses = classes(v) },
		"check":            func(v strict.Value) { check(v, &u.Check) },
	}, "name", "protocol", "source")
	p.ttls = append(p.ttls, ttl)
	for _, l := range static {
		if err := l.entry.Check(u.AllowAddresses...); err != nil {
			l.at.Refuse("%s", err)
		}
	}
	return u
}

func classes(v strict.Value) (all []target.Class) {
	v.Items(len(classWords), func(_ int, v strict.Value) {
		i := v.Enum(classWords...)
		switch {
		case i < 0:
		case slices.Contains(all, classValues[i]):
			v.Refuse("is %s a second time (allowed: values that differ)", classWords[i])
		default:
			all = append(all, classValues[i])
		}
	})
	return all
}

func labels(v strict.Value) map[string]string {
	m := map[string]string{}
	v.Entries(limits.Labels, func(key string, v strict.Value) {
		var value string
		v.String(&value, func(s string) error { return limits.Label(key, s) })
		m[key] = value
	})
	if len(m) == 0 {
		return nil
	}
	return m
}

func check(v strict.Value, c *Check) {
	v.Fields(strict.Fields{
		"basic": func(v strict.Value) { v.Bool(&c.Basic) },
		"egress": func(v strict.Value) {
			v.Fields(strict.Fields{"url": func(v strict.Value) { v.String(&c.EgressURL, webURL) }}, "url")
		},
		"maxInFlight": func(v strict.Value) { v.Uint(&c.MaxInFlight, 1, MaxInFlight) },
		"probe":       func(v strict.Value) { v.String(&c.Probe, limits.Name) },
		"probeConfig": func(v strict.Value) { c.ProbeConfig = pluginConfig(v) },
	})
}

// pluginConfig reads a plugin's config, which the plugin gives a meaning to.
func pluginConfig(v strict.Value) map[string]any {
	m, ok := v.Any().(map[string]any)
	if !ok {
		v.Refuse("is no mapping (allowed: a mapping that the plugin takes)")
		return nil
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		v.Refuse("is not what JSON can hold")
		return nil
	}
	if n := proto.Size(s); n > limits.PluginConfigLen {
		v.Refuse("has %d bytes (allowed: at most %d)", n, limits.PluginConfigLen)
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

func (p *parser) routing(v strict.Value, taken map[string]bool) Routing {
	r := Routing{
		Enabled: true, Strategy: DefaultStrategy,
		OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL, Resolve: controlplanev1.Resolve_RESOLVE_REMOTE,
	}
	var wait *strict.Value
	v.Fields(strict.Fields{
		"name":           func(v strict.Value) { unique(v, &r.Name, taken) },
		"enabled":        func(v strict.Value) { v.Bool(&r.Enabled) },
		"match":          func(v strict.Value) { r.Match = match(v) },
		"upstreams":      func(v strict.Value) { r.Upstreams = p.upstreamRefs(v) },
		"strategy":       func(v strict.Value) { v.String(&r.Strategy, limits.Name) },
		"strategyConfig": func(v strict.Value) { r.StrategyConfig = pluginConfig(v) },
		"onUnavailable": func(v strict.Value) {
			if i := v.Enum(unavailableWords...); i >= 0 {
				r.OnUnavailable = unavailableValues[i]
			}
		},
		"waitTimeout": func(v strict.Value) { wait = &v; v.Duration(&r.WaitTimeout, time.Millisecond, Most) },
		"resolve": func(v strict.Value) {
			if i := v.Enum(resolveWords...); i >= 0 {
				r.Resolve = resolveValues[i]
			}
		},
		"stickiness":   func(v strict.Value) { r.Stickiness = stickiness(v) },
		"targetPolicy": func(v strict.Value) { r.TargetPolicy = targetPolicy(v) },
		"check": func(v strict.Value) {
			v.Fields(strict.Fields{"targets": func(v strict.Value) { r.Targets = targets(v) }})
		},
	}, "name", "upstreams")
	waits := r.OnUnavailable == controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT
	if waits && wait == nil {
		r.WaitTimeout = DefaultWait
	}
	if !waits && wait != nil {
		wait.Refuse("is set, and onUnavailable is not wait (allowed: with onUnavailable: wait)")
	}
	return r
}

func (p *parser) upstreamRefs(v strict.Value) (refs []Ref) {
	seen := map[string]bool{}
	var weights uint64
	v.Items(MaxRefs, func(_ int, v strict.Value) {
		ref := Ref{Weight: 1}
		v.Fields(strict.Fields{
			"name": func(v strict.Value) {
				unique(v, &ref.Name, seen)
				if ref.Name != "" {
					p.refs = append(p.refs, later{ref.Name, v})
				}
			},
			"weight":   func(v strict.Value) { v.Uint(&ref.Weight, 0, MaxWeight) },
			"priority": func(v strict.Value) { v.Uint(&ref.Priority, 0, MaxPriority) },
		}, "name")
		weights += uint64(ref.Weight)
		refs = append(refs, ref)
	})
	switch {
	case len(refs) == 0:
		v.Refuse("names no upstream (allowed: 1 to %d)", MaxRefs)
	case weights == 0:
		v.Refuse("has no weight above 0 (allowed: weights that are not all 0)")
	}
	return refs
}

func match(v strict.Value) (m Match) {
	v.Fields(strict.Fields{
		"hosts":   func(v strict.Value) { m.Hosts = list(v, hostPattern) },
		"ports":   func(v strict.Value) { m.Ports = numbers(v, MaxMatches, 1, math.MaxUint16) },
		"clients": func(v strict.Value) { m.Clients = list(v, limits.ID) },
		"methods": func(v strict.Value) { m.Methods = list(v, method) },
	})
	return m
}

func stickiness(v strict.Value) (s Stickiness) {
	v.Fields(strict.Fields{
		"mode": func(v strict.Value) {
			if i := v.Enum(modeWords...); i >= 0 {
				s.Mode = modeValues[i]
			}
		},
		"ttl":  func(v strict.Value) { v.Duration(&s.TTL, Least, Most) },
		"idle": func(v strict.Value) { v.Duration(&s.Idle, Least, Most) },
	}, "mode")
	return s
}

func targetPolicy(v strict.Value) (t TargetPolicy) {
	v.Fields(strict.Fields{
		"allowHosts":   func(v strict.Value) { t.AllowHosts = list(v, hostPattern) },
		"denyHosts":    func(v strict.Value) { t.DenyHosts = list(v, hostPattern) },
		"allowPorts":   func(v strict.Value) { t.AllowPorts = numbers(v, MaxMatches, 1, math.MaxUint16) },
		"allowCIDRs":   func(v strict.Value) { t.AllowCIDRs = list(v, cidr) },
		"denyCIDRs":    func(v strict.Value) { t.DenyCIDRs = list(v, cidr) },
		"allowPrivate": func(v strict.Value) { v.Bool(&t.AllowPrivate) },
	})
	return t
}

func targets(v strict.Value) (all []Target) {
	seen := map[string]bool{}
	v.Items(MaxTargets, func(_ int, v strict.Value) {
		t := Target{Interval: DefaultTargetEvery}
		v.Fields(strict.Fields{
			"url": func(v strict.Value) {
				v.String(&t.URL, func(s string) error {
					if seen[s] {
						return fmt.Errorf("is %s a second time (allowed: URLs that differ)", limits.Quote(s))
					}
					seen[s] = true
					return webURL(s)
				})
			},
			"expectStatus": func(v strict.Value) { t.ExpectStatus = numbers(v, MaxStatuses, 100, 599) },
			"interval":     func(v strict.Value) { v.Duration(&t.Interval, Least, Most) },
		}, "url")
		all = append(all, t)
	})
	return all
}

func (p *parser) allocation(v strict.Value) {
	a := &p.config.Allocation
	v.Fields(strict.Fields{
		"safetyMargin":     func(v strict.Value) { v.Duration(&a.SafetyMargin, 0, Most) },
		"snapshotValidity": func(v strict.Value) { v.Duration(&a.SnapshotValidity, Least, Most) },
		"sessionTTL":       func(v strict.Value) { v.Duration(&a.SessionTTL, Least, Most) },
		"maxStaleAge":      func(v strict.Value) { v.Duration(&a.MaxStaleAge, Least, Most) },
	})
	if a.MaxStaleAge < a.SnapshotValidity {
		v.Refuse("has maxStaleAge %s, less than snapshotValidity, %s (allowed: at least as long)",
			strict.Short(a.MaxStaleAge), strict.Short(a.SnapshotValidity))
	}
}

// list reads texts that differ.
func list(v strict.Value, check func(string) error) (all []string) {
	v.Items(MaxMatches, func(_ int, v strict.Value) {
		var s string
		v.String(&s, check)
		if s != "" && slices.Contains(all, s) {
			v.Refuse("is %s a second time (allowed: values that differ)", limits.Quote(s))
			return
		}
		all = append(all, s)
	})
	return all
}

// numbers reads whole numbers that differ.
func numbers(v strict.Value, most int, least, largest uint32) (all []uint32) {
	v.Items(most, func(_ int, v strict.Value) {
		var n uint32
		v.Uint(&n, least, largest)
		if n != 0 && slices.Contains(all, n) {
			v.Refuse("is %d a second time (allowed: values that differ)", n)
			return
		}
		all = append(all, n)
	})
	return all
}
