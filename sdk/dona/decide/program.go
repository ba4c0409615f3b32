package decide

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Program is a compiled snapshot. It is immutable to its users, keeps no message
// of the snapshot, and is safe for concurrent use.
type Program struct {
	service    string
	version    uint64
	endpoints  []Endpoint
	details    []detail
	variants   []variant
	flags      []flag           // sorted by key bytes
	byKey      map[string]int32 // index in flags
	screen     screen
	names      []string          // attributes that rules ask for, by slot
	values     map[string]uint32 // number of each text that rules compare with, from 1
	texts      []string          // the same, in order
	weights    []weight
	weightsKey string
	keys       *bucket.Table // weights first, then flags
	policy     []string
	ruleID     string
	plan       *donav1.Plan
	hash       donav1.HashPolicy_Source // of the plan; unspecified = it does not hash
	hashName   string                   // of the attribute
	timed      bool                     // the plan chooses by how long calls took

	base *View // for requests that name no regions

	// Views for the region lists that requests named. Readers load the map, a new
	// list copies it; making one is the only time a decision takes a lock.
	views  atomic.Pointer[map[uint64]*View]
	making sync.Mutex
}

type detail struct {
	load    *plan.Load
	variant int32
	weight  uint32
}

type variant struct {
	name        string
	quarantined bool
}

type weight struct {
	name    string
	variant int32 // -1 = no endpoint has it
	weight  uint32
}

// Compile prepares a snapshot. loads keeps the calls in flight across snapshots
// of one service and has one owner; nil starts from nothing. An error means that
// the snapshot must not be used: its plan cannot be executed, or it contradicts
// itself.
func Compile(s *donav1.ConfigSnapshot, loads *plan.Loads) (*Program, error) {
	if loads == nil {
		loads = &plan.Loads{}
	}
	if err := plan.Check(s.GetPlan()); err != nil {
		return nil, err
	}
	p := &Program{
		service:    s.GetService(),
		version:    s.GetVersion(),
		weightsKey: "@weights/" + s.GetService(),
		policy:     slices.Clone(s.GetResidency().GetAllowedRegions()),
		ruleID:     s.GetResidency().GetRuleId(),
		plan:       s.GetPlan(),
		values:     map[string]uint32{},
	}
	switch p.plan.GetAlgorithm() {
	case donav1.Algorithm_ALGORITHM_CONSISTENT_HASH:
		p.hash, p.hashName = p.plan.GetHash().GetSource(), p.plan.GetHash().GetName()
	case donav1.Algorithm_ALGORITHM_PEAK_EWMA:
		p.timed = true
	}
	c := compiler{p: p, variants: map[string]int32{}, strings: map[string]string{}}
	if err := c.endpoints(s, loads); err != nil {
		return nil, err
	}
	for _, name := range s.GetQuarantinedVariants() {
		if i := c.variant(name); i >= 0 {
			p.variants[i].quarantined = true
		}
	}
	if err := c.weights(s); err != nil {
		return nil, err
	}
	if err := c.flags(s); err != nil {
		return nil, err
	}
	loads.Retain(func(id string) bool { _, ok := c.ids[id]; return ok })
	p.base = p.newView(nil, nil)
	p.views.Store(&map[uint64]*View{})
	return p, nil
}

type compiler struct {
	p        *Program
	variants map[string]int32
	strings  map[string]string
	ids      map[string]struct{}
}

// intern keeps one copy of each region, zone and variant name.
func (c *compiler) intern(s string) string {
	if kept, ok := c.strings[s]; ok {
		return kept
	}
	c.strings[s] = s
	return s
}

func (c *compiler) variant(name string) int32 {
	if i, ok := c.variants[name]; ok {
		return i
	}
	return -1
}

func (c *compiler) endpoints(s *donav1.ConfigSnapshot, loads *plan.Loads) error {
	p, n := c.p, len(s.GetEndpoints())
	p.endpoints, p.details = make([]Endpoint, 0, n), make([]detail, 0, n)
	ids := make(map[string]struct{}, n)
	for _, e := range s.GetEndpoints() {
		if _, twice := ids[e.GetId()]; twice || e.GetId() == "" {
			return fmt.Errorf("endpoint id %q is empty or there twice", e.GetId())
		}
		ids[e.GetId()] = struct{}{}
		i, known := c.variants[e.GetVariant()]
		if !known {
			i = int32(len(p.variants))
			c.variants[e.GetVariant()] = i
			p.variants = append(p.variants, variant{name: c.intern(e.GetVariant())})
		}
		p.endpoints = append(p.endpoints, Endpoint{ID: e.GetId(), Address: e.GetAddress(),
			Variant: c.intern(e.GetVariant()), Region: c.intern(e.GetRegion()), Zone: c.intern(e.GetZone())})
		p.details = append(p.details, detail{load: loads.Get(e.GetId()), variant: i, weight: e.GetLbWeight()})
	}
	c.ids = ids
	return nil
}

func (c *compiler) weights(s *donav1.ConfigSnapshot) error {
	seen := map[string]struct{}{}
	for _, w := range s.GetWeights() {
		if _, twice := seen[w.GetVariant()]; twice {
			return fmt.Errorf("variant %q is twice in the weights", w.GetVariant())
		}
		seen[w.GetVariant()] = struct{}{}
		c.p.weights = append(c.p.weights, weight{name: w.GetVariant(), variant: c.variant(w.GetVariant()), weight: w.GetWeight()})
	}
	return nil
}

func (c *compiler) flags(s *donav1.ConfigSnapshot) error {
	for _, f := range s.GetFlags() {
		c.p.flags = append(c.p.flags, c.flag(f))
	}
	slices.SortFunc(c.p.flags, func(a, b flag) int { return cmp.Compare(a.key, b.key) })
	for i := range c.p.flags {
		if i > 0 && c.p.flags[i].key == c.p.flags[i-1].key {
			return fmt.Errorf("flag %q is there twice", c.p.flags[i].key)
		}
	}
	c.p.byKey = make(map[string]int32, len(c.p.flags))
	for i := range c.p.flags {
		c.p.byKey[c.p.flags[i].key] = int32(i)
	}
	c.keys()
	c.screen()
	return nil
}

// Service returns the name of the service.
func (p *Program) Service() string { return p.service }

// Version returns the version of the snapshot.
func (p *Program) Version() uint64 { return p.version }

// RuleID returns the name of the residency rule, or empty.
func (p *Program) RuleID() string { return p.ruleID }

// Endpoints returns the number of endpoints, draining ones included.
func (p *Program) Endpoints() int { return len(p.endpoints) }

// Endpoint returns the endpoint of a Result.
func (p *Program) Endpoint(i int32) Endpoint { return p.endpoints[i] }

// CopyEndpoint is Endpoint for callers that have a place for it.
func (p *Program) CopyEndpoint(i int32, to *Endpoint) { *to = p.endpoints[i] }

// Observe notes how long a call to the endpoint of a Result took, if the plan chooses
// by that. Zero is a call that was not measured.
func (p *Program) Observe(i int32, took time.Duration, success bool) {
	if p.timed {
		p.details[i].load.Observe(took, success)
	}
}

// Flag returns the key of the flag of a Result, or empty for -1.
func (p *Program) Flag(i int32) string {
	if i < 0 {
		return ""
	}
	return p.flags[i].key
}

// newPool returns a pool of the given endpoints, nil for none.
func (p *Program) newPool(members []int32) *pool {
	if len(members) == 0 {
		return nil
	}
	candidates := make([]plan.Candidate, len(members))
	for i, m := range members {
		e, d := &p.endpoints[m], &p.details[m]
		candidates[i] = plan.Candidate{ID: e.ID, Group: e.Zone, Weight: d.weight, Load: d.load}
	}
	picker, err := plan.New(p.plan, candidates, rand.Uint64())
	if err != nil {
		panic("decide: a plan that was checked is refused: " + err.Error())
	}
	return &pool{picker: picker, members: members}
}

// FlagVariant returns the variant that the deciding flag of a Result gave.
func (p *Program) FlagVariant(flag, endpoint int32) string {
	if flag < 0 || endpoint < 0 {
		return ""
	}
	return p.endpoints[endpoint].Variant
}
