// Package poolconfig is the published configuration of the egress plane: which
// upstreams there are and where their proxies come from, which requests are
// routed to them, and how long what is handed out holds. It reads the YAML
// strictly ([Parse]), says what is odd but allowed ([Config.Warnings]) and writes
// it again ([Config.Render]).
//
// The host parses what is published, the command line what is checked before.
// The package does no I/O, resolves no secret and asks no plugin: whether a
// strategy or a probe exists is for the host to say. docs/egress.md is the page
// of every key.
package poolconfig

import (
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Bounds. Each is tested at n and n+1.
const (
	MaxUpstreams     = 1_000
	MaxRoutings      = 1_000
	MaxStaticProxies = 10_000 // of one upstream
	MaxMatches       = 1_000  // hosts, ports, clients, addresses of one list
	MaxRefs          = 100    // upstreams of one routing
	MaxTargets       = 32     // checked for one routing
	MaxStatuses      = 32     // of one target
	MaxCapacity      = 65_535
	MaxReserve       = 100_000
	MaxWeight        = 1_000_000
	MaxInFlight      = 10_000
	MaxPriority      = 1_000

	Least, Most = time.Second, 24 * time.Hour // of every duration but safetyMargin, which may be 0
)

// Defaults of what a document leaves out.
const (
	DefaultStrategy    = "round-robin"
	DefaultProbe       = "proxy"
	DefaultCapacity    = 64
	DefaultMaxInFlight = 32
	DefaultTTL         = 24 * time.Hour
	DefaultSourceEvery = 5 * time.Minute
	DefaultWait        = 5 * time.Second
	DefaultTargetEvery = time.Minute

	DefaultSafetyMargin     = 10 * time.Second
	DefaultSnapshotValidity = time.Minute
	DefaultSessionTTL       = 30 * time.Second
	DefaultMaxStaleAge      = 2 * time.Minute
)

// Config is a checked configuration. Nobody changes it after Parse; who wants
// another one changes a Clone.
type Config struct {
	Cluster    Cluster
	Upstreams  []Upstream
	Routings   []Routing // ordered, first match wins
	Allocation Allocation
}

// Cluster names whom the configuration is for.
type Cluster struct {
	ID          string
	Environment string // of the workers' and checkers' identities; empty = the host's
}

// Upstream is a set of proxies that are of one kind and come from one place.
type Upstream struct {
	Name             string
	Enabled          bool
	Protocol         controlplanev1.Proxy_Protocol
	Source           Source
	SecretRef        string // of every proxy that brings no credentials of its own; empty = none
	CapacityPerProxy uint32 // uses of one proxy at once
	ExtractReserve   uint32 // proxies kept without an owner, for extraction
	TTL              time.Duration
	Labels           map[string]string // of each of its proxies
	AllowAddresses   []target.Class    // where no proxy is otherwise: loopback, link-local, metadata
	Check            Check
}

// SourceType is where the proxies of an upstream come from.
type SourceType string

// The types of sources. Imported proxies join those of any type.
const (
	Static SourceType = "static" // listed in the configuration
	File   SourceType = "file"   // a list in the host's directory of lists
	HTTP   SourceType = "http"   // a list that a server answers with
)

// Format is how a list is written.
type Format string

// The formats of lists.
const (
	Lines Format = "lines" // one proxy a line
	JSON  Format = "json"  // an array of strings, each as a line would be
)

// Source of an upstream's proxies.
type Source struct {
	Type     SourceType
	Proxies  []string // static; without credentials
	Path     string   // file; relative to the host's directory of lists
	URL      string   // http
	Format   Format
	Interval time.Duration // between two reads
}

// Check says how the proxies of an upstream are checked.
type Check struct {
	Basic       bool
	EgressURL   string // empty = no EGRESS checks
	MaxInFlight uint32 // checks of the upstream at once, of all levels together
	Probe       string
	ProbeConfig map[string]any // as JSON holds it; nil = none
}

// Routing sends the requests that it matches to upstreams.
type Routing struct {
	Name           string
	Enabled        bool
	Match          Match
	Upstreams      []Ref
	Strategy       string
	StrategyConfig map[string]any // as JSON holds it; nil = none
	OnUnavailable  controlplanev1.OnUnavailable
	WaitTimeout    time.Duration // 0 unless OnUnavailable is WAIT
	Resolve        controlplanev1.Resolve
	Stickiness     Stickiness
	TargetPolicy   TargetPolicy
	Targets        []Target
}

// Match says which requests a routing is for; an empty list matches any.
type Match struct {
	Hosts   []string // exact, or *.suffix; lower case
	Ports   []uint32
	Clients []string
	Methods []string // upper case; CONNECT is one
}

// Ref is an upstream's part in a routing.
type Ref struct {
	Name     string
	Weight   uint32
	Priority uint32 // 0 is tried first
}

// Stickiness keeps a client on one proxy.
type Stickiness struct {
	Mode controlplanev1.Stickiness_Mode
	TTL  time.Duration // 0 = no bound
	Idle time.Duration // 0 = no bound
}

// TargetPolicy says where requests may go; deny beats allow.
type TargetPolicy struct {
	AllowHosts, DenyHosts []string
	AllowPorts            []uint32 // empty = 80 and 443
	AllowCIDRs, DenyCIDRs []string
	AllowPrivate          bool
}

// Target is checked through every proxy of a routing.
type Target struct {
	URL          string
	ExpectStatus []uint32 // empty = 200 to 399
	Interval     time.Duration
}

// Allocation is how long what workers are given holds.
type Allocation struct {
	SafetyMargin     time.Duration // before a proxy's end, during which nothing new uses it
	SnapshotValidity time.Duration
	SessionTTL       time.Duration
	MaxStaleAge      time.Duration // that a worker serves without a valid snapshot
}

// Upstream returns the upstream of a name.
func (c *Config) Upstream(name string) (*Upstream, bool) {
	i := slices.IndexFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return nil, false
	}
	return &c.Upstreams[i], true
}

// Routing returns the routing of a name.
func (c *Config) Routing(name string) (*Routing, bool) {
	i := slices.IndexFunc(c.Routings, func(r Routing) bool { return r.Name == name })
	if i < 0 {
		return nil, false
	}
	return &c.Routings[i], true
}

// Clone returns a copy whose upstreams, routings and references may be changed.
// What lies deeper is shared: replace it, do not write into it.
func (c *Config) Clone() *Config {
	next := *c
	next.Upstreams = slices.Clone(c.Upstreams)
	next.Routings = slices.Clone(c.Routings)
	for i := range next.Routings {
		next.Routings[i].Upstreams = slices.Clone(c.Routings[i].Upstreams)
	}
	return &next
}
