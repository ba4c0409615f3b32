package poolconfig

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dodona-project/dodona/host/config/strict"
)

// Render writes the configuration as a document that Parse reads as the same
// configuration. What has its default is left out.
func (c *Config) Render() string {
	d := document{Cluster: clusterDoc(c.Cluster)}
	for _, u := range c.Upstreams {
		d.Upstreams = append(d.Upstreams, upstreamDocOf(u))
	}
	for _, r := range c.Routings {
		d.Routings = append(d.Routings, routingDocOf(r))
	}
	a := allocationDoc{
		SnapshotValidity: unless(c.Allocation.SnapshotValidity, DefaultSnapshotValidity),
		SessionTTL:       unless(c.Allocation.SessionTTL, DefaultSessionTTL),
		MaxStaleAge:      unless(c.Allocation.MaxStaleAge, DefaultMaxStaleAge),
	}
	if c.Allocation.SafetyMargin != DefaultSafetyMargin {
		a.SafetyMargin = strict.Short(c.Allocation.SafetyMargin)
	}
	if a != (allocationDoc{}) {
		d.Allocation = &a
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(d); err != nil {
		panic(fmt.Sprintf("poolconfig: render: %v", err)) // a wrong type below, found by any test
	}
	return text.String()
}

// The document as it is written. Durations are words, pointers have defaults
// that are not the zero of their type.
type document struct {
	Cluster    clusterDoc     `yaml:"cluster"`
	Upstreams  []upstreamDoc  `yaml:"upstreams,omitempty"`
	Routings   []routingDoc   `yaml:"routings,omitempty"`
	Allocation *allocationDoc `yaml:"allocation,omitempty"`
}

type clusterDoc struct {
	ID          string `yaml:"id"`
	Environment string `yaml:"environment,omitempty"`
}

type upstreamDoc struct {
	Name             string            `yaml:"name"`
	Enabled          *bool             `yaml:"enabled,omitempty"`
	Protocol         string            `yaml:"protocol"`
	Source           sourceDoc         `yaml:"source"`
	SecretRef        string            `yaml:"secretRef,omitempty"`
	CapacityPerProxy uint32            `yaml:"capacityPerProxy,omitempty"`
	ExtractReserve   uint32            `yaml:"extractReserve,omitempty"`
	TTL              string            `yaml:"ttl,omitempty"`
	Labels           map[string]string `yaml:"labels,omitempty"`
	AllowAddresses   []string          `yaml:"allowAddresses,omitempty"`
	Check            *checkDoc         `yaml:"check,omitempty"`
}

type sourceDoc struct {
	Type     string    `yaml:"type"`
	Proxies  *[]string `yaml:"proxies,omitempty"`
	Path     string    `yaml:"path,omitempty"`
	URL      string    `yaml:"url,omitempty"`
	Format   string    `yaml:"format,omitempty"`
	Interval string    `yaml:"interval,omitempty"`
}

type checkDoc struct {
	Basic       *bool          `yaml:"basic,omitempty"`
	Egress      *egressDoc     `yaml:"egress,omitempty"`
	MaxInFlight uint32         `yaml:"maxInFlight,omitempty"`
	Probe       string         `yaml:"probe,omitempty"`
	ProbeConfig map[string]any `yaml:"probeConfig,omitempty"`
}

type egressDoc struct {
	URL string `yaml:"url"`
}

type routingDoc struct {
	Name           string         `yaml:"name"`
	Enabled        *bool          `yaml:"enabled,omitempty"`
	Match          *matchDoc      `yaml:"match,omitempty"`
	Upstreams      []refDoc       `yaml:"upstreams"`
	Strategy       string         `yaml:"strategy,omitempty"`
	StrategyConfig map[string]any `yaml:"strategyConfig,omitempty"`
	OnUnavailable  string         `yaml:"onUnavailable,omitempty"`
	WaitTimeout    string         `yaml:"waitTimeout,omitempty"`
	Resolve        string         `yaml:"resolve,omitempty"`
	Stickiness     *stickinessDoc `yaml:"stickiness,omitempty"`
	TargetPolicy   *policyDoc     `yaml:"targetPolicy,omitempty"`
	Check          *targetsDoc    `yaml:"check,omitempty"`
}

type matchDoc struct {
	Hosts   []string `yaml:"hosts,omitempty"`
	Ports   []uint32 `yaml:"ports,omitempty"`
	Clients []string `yaml:"clients,omitempty"`
	Methods []string `yaml:"methods,omitempty"`
}

type refDoc struct {
	Name     string  `yaml:"name"`
	Weight   *uint32 `yaml:"weight,omitempty"`
	Priority uint32  `yaml:"priority,omitempty"`
}

type stickinessDoc struct {
	Mode string `yaml:"mode"`
	TTL  string `yaml:"ttl,omitempty"`
	Idle string `yaml:"idle,omitempty"`
}

type policyDoc struct {
	AllowHosts   []string `yaml:"allowHosts,omitempty"`
	DenyHosts    []string `yaml:"denyHosts,omitempty"`
	AllowPorts   []uint32 `yaml:"allowPorts,omitempty"`
	AllowCIDRs   []string `yaml:"allowCIDRs,omitempty"`
	DenyCIDRs    []string `yaml:"denyCIDRs,omitempty"`
	AllowPrivate bool     `yaml:"allowPrivate,omitempty"`
}

type targetsDoc struct {
	Targets []targetDoc `yaml:"targets"`
}

type targetDoc struct {
	URL          string   `yaml:"url"`
	ExpectStatus []uint32 `yaml:"expectStatus,omitempty"`
	Interval     string   `yaml:"interval,omitempty"`
}

type allocationDoc struct {
	SafetyMargin     string `yaml:"safetyMargin,omitempty"`
	SnapshotValidity string `yaml:"snapshotValidity,omitempty"`
	SessionTTL       string `yaml:"sessionTTL,omitempty"`
	MaxStaleAge      string `yaml:"maxStaleAge,omitempty"`
}

func upstreamDocOf(u Upstream) upstreamDoc {
	d := upstreamDoc{
		Name: u.Name, Enabled: off(u.Enabled), SecretRef: u.SecretRef, ExtractReserve: u.ExtractReserve,
		Protocol: word(protocolWords, protocolValues, u.Protocol),
		TTL:      unless(u.TTL, DefaultTTL), Labels: u.Labels,
		Source: sourceDoc{
			Type: string(u.Source.Type), Path: u.Source.Path, URL: u.Source.URL,
			Interval: unless(u.Source.Interval, DefaultSourceEvery),
		},
	}
	if u.Source.Type == Static {
		d.Source.Proxies = &u.Source.Proxies
	}
	if u.Source.Format == JSON {
		d.Source.Format = string(JSON)
	}
	if u.CapacityPerProxy != DefaultCapacity {
		d.CapacityPerProxy = u.CapacityPerProxy
	}
	for _, class := range u.AllowAddresses {
		d.AllowAddresses = append(d.AllowAddresses, word(classWords, classValues, class))
	}
	c := checkDoc{Basic: off(u.Check.Basic), ProbeConfig: u.Check.ProbeConfig}
	if u.Check.EgressURL != "" {
		c.Egress = &egressDoc{URL: u.Check.EgressURL}
	}
	if u.Check.MaxInFlight != DefaultMaxInFlight {
		c.MaxInFlight = u.Check.MaxInFlight
	}
	if u.Check.Probe != DefaultProbe {
		c.Probe = u.Check.Probe
	}
	if c.Basic != nil || c.Egress != nil || c.MaxInFlight != 0 || c.Probe != "" || c.ProbeConfig != nil {
		d.Check = &c
	}
	return d
}

func routingDocOf(r Routing) routingDoc {
	d := routingDoc{Name: r.Name, Enabled: off(r.Enabled), StrategyConfig: r.StrategyConfig}
	if m := r.Match; len(m.Hosts)+len(m.Ports)+len(m.Clients)+len(m.Methods) > 0 {
		d.Match = &matchDoc{Hosts: m.Hosts, Ports: m.Ports, Clients: m.Clients, Methods: m.Methods}
	}
	for _, ref := range r.Upstreams {
		rd := refDoc{Name: ref.Name, Priority: ref.Priority}
		if ref.Weight != 1 {
			rd.Weight = &ref.Weight
		}
		d.Upstreams = append(d.Upstreams, rd)
	}
	if r.Strategy != DefaultStrategy {
		d.Strategy = r.Strategy
	}
	if w := word(unavailableWords, unavailableValues, r.OnUnavailable); w != unavailableWords[0] {
		d.OnUnavailable = w
	}
	d.WaitTimeout = unless(r.WaitTimeout, 0)
	if w := word(resolveWords, resolveValues, r.Resolve); w != resolveWords[0] {
		d.Resolve = w
	}
	if s := r.Stickiness; s != (Stickiness{}) {
		d.Stickiness = &stickinessDoc{Mode: word(modeWords, modeValues, s.Mode), TTL: unless(s.TTL, 0), Idle: unless(s.Idle, 0)}
	}
	if t := r.TargetPolicy; len(t.AllowHosts)+len(t.DenyHosts)+len(t.AllowPorts)+len(t.AllowCIDRs)+len(t.DenyCIDRs) > 0 || t.AllowPrivate {
		p := policyDoc(t)
		d.TargetPolicy = &p
	}
	if len(r.Targets) > 0 {
		d.Check = &targetsDoc{}
		for _, t := range r.Targets {
			d.Check.Targets = append(d.Check.Targets, targetDoc{t.URL, t.ExpectStatus, unless(t.Interval, DefaultTargetEvery)})
		}
	}
	return d
}

// off is a pointer to false, and nil for what is on.
func off(on bool) *bool {
	if on {
		return nil
	}
	return &on
}

// unless is the duration in words, and nothing for the default and for 0.
func unless(d, usual time.Duration) string {
	if d == usual || d == 0 {
		return ""
	}
	return strict.Short(d)
}

func word[T comparable](words []string, values []T, value T) string {
	if i := slices.Index(values, value); i >= 0 {
		return words[i]
	}
	return ""
}
