package decide

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// maxViews bounds the region lists for which tables are kept per snapshot. A
// program names few: its home, its legal area. Beyond the bound a list is
// answered just as right, by tables made for the one request.
const maxViews = 256

// View is what residency leaves of a snapshot for the regions that a request and
// its ingress rule allow: the legal endpoints by variant and how to choose among
// them.
type View struct {
	requested   []string
	ingress     []string
	allowed     []string // the intersection of the non-empty lists
	constrained bool     // a list applied
	legal       int      // endpoints in legal regions that do not drain

	pools      []*pool // by variant; nil = none legal
	only       int32   // the variant, when a single one can serve; else -1
	all        *pool   // all variants that can serve
	shares     []share // usable weights in list order
	shareTotal uint64

	nothing   refusal
	noVariant error
	noneLeft  error
}

type pool struct {
	picker  *plan.Picker
	members []int32 // endpoint of each candidate
}

type share struct {
	variant int32
	end     uint64 // cumulative
}

type refusal struct {
	kind Kind
	err  error
}

// Allowed returns the regions that may serve: the intersection of the policy and
// the request and its ingress rule. Empty without a constraint, or when nothing is in all. The caller
// must not change it.
func (v *View) Allowed() []string { return v.allowed }

// Constrained reports whether any list of regions applied.
func (v *View) Constrained() bool { return v.constrained }

var viewSeed = maphash.MakeSeed()

// view returns the view for the lists of a request and its ingress rule.
func (p *Program) view(regions, ingress []string) *View {
	if len(regions) == 0 && len(ingress) == 0 {
		return p.base
	}
	var key uint64
	for _, r := range regions {
		key = key*0x9e3779b97f4a7c15 + maphash.String(viewSeed, r)
	}
	key = key<<1 | key>>63 // the lists are told apart
	for _, r := range ingress {
		key = key*0x9e3779b97f4a7c15 + maphash.String(viewSeed, r)
	}
	if v := (*p.views.Load())[key]; v != nil && v.is(regions, ingress) {
		return v
	}
	return p.makeView(key, regions, ingress)
}

func (v *View) is(regions, ingress []string) bool {
	return slices.Equal(v.requested, regions) && slices.Equal(v.ingress, ingress)
}

func (p *Program) makeView(key uint64, regions, ingress []string) *View {
	p.making.Lock()
	defer p.making.Unlock()
	held := *p.views.Load()
	if v := held[key]; v != nil && v.is(regions, ingress) {
		return v
	}
	v := p.newView(own(regions), own(ingress))
	if held[key] == nil && len(held) < maxViews {
		grown := maps.Clone(held)
		grown[key] = v
		p.views.Store(&grown)
	}
	return v
}

// own copies what may lie on the caller's stack.
func own(regions []string) []string {
	kept := make([]string, len(regions))
	for i, r := range regions {
		kept[i] = strings.Clone(r)
	}
	return kept
}

func (p *Program) newView(requested, ingress []string) *View {
	v := &View{requested: requested, ingress: ingress, only: -1, pools: make([]*pool, len(p.variants))}
	v.constrained = len(p.policy) > 0 || len(requested) > 0 || len(ingress) > 0
	v.allowed = intersect(p.policy, requested, ingress)

	members := make([][]int32, len(p.variants))
	legal := make(map[string]bool, len(v.allowed))
	for _, r := range v.allowed {
		legal[r] = r != "" // an endpoint without a region is in no list
	}
	for i := range p.endpoints {
		if p.details[i].weight == 0 || v.constrained && !legal[p.endpoints[i].Region] {
			continue
		}
		d := p.details[i].variant
		members[d] = append(members[d], int32(i))
		v.legal++
	}
	var all []int32
	serving := 0
	for i, m := range members {
		v.pools[i] = p.newPool(m)
		if len(m) > 0 && !p.variants[i].quarantined {
			all = append(all, m...)
			v.only, v.all = int32(i), v.pools[i]
			serving++
		}
	}
	if serving > 1 {
		v.only, v.all = -1, p.newPool(all)
	}
	for _, w := range p.weights {
		if w.weight > 0 && w.variant >= 0 && v.pools[w.variant] != nil && !p.variants[w.variant].quarantined {
			v.shareTotal += uint64(w.weight)
			v.shares = append(v.shares, share{w.variant, v.shareTotal})
		}
	}
	p.prepareErrors(v)
	return v
}

func (p *Program) prepareErrors(v *View) {
	unavailable := func(why string) error { return &UnavailableError{Service: p.service, Why: why} }
	v.nothing = refusal{KindUnavailable, unavailable("it has no endpoint that takes requests")}
	if v.constrained {
		v.nothing = refusal{KindDenied, &DeniedError{Service: p.service, Policy: p.policy, RuleID: p.ruleID,
			Requested: v.requested, Ingress: v.ingress, Allowed: v.allowed}}
	}
	why := "each variant with an endpoint is quarantined"
	if len(p.weights) > 0 {
		why = "no variant with weight has an endpoint that may serve"
	}
	v.noVariant = unavailable(why)
	v.noneLeft = unavailable("no endpoint of the variant is left: the others were tried or the plan gives them nothing")
}

// intersect returns what is in every non-empty list, in the order of the first.
func intersect(lists ...[]string) (out []string) {
	first := true
	for _, list := range lists {
		switch {
		case len(list) == 0: // allows any
		case first:
			out, first = list, false
		default:
			var both []string
			for _, r := range out {
				if slices.Contains(list, r) {
					both = append(both, r)
				}
			}
			out = both
		}
	}
	return out
}
