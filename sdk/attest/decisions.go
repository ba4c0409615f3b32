package attest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Decisions counts the calls that one rule allowed or denied in one region.
type Decisions struct {
	Decision       string // "allow", "deny"
	Region         string // of the endpoint; empty when there was none
	AllowedRegions string // separated by commas
	RuleID         string
	Count          uint64
}

// decisions counts the call.decision entries of a chain.
type decisions struct {
	counts map[string]*Decisions // by the raw bytes of what is counted apart
	key    []byte
}

func newDecisions() *decisions { return &decisions{counts: map[string]*Decisions{}} }

// add counts an entry and returns how many batches it says are lost. The cause is
// not empty when the entry shows a call that was allowed where none may be.
func (d *decisions) add(l *line) (lost uint64, cause string) {
	switch string(l.kind) {
	case "call.decision":
		return 0, d.decision(l)
	case "stats.gap":
		n, err := strconv.ParseUint(l.value("missing"), 10, 64)
		if err != nil {
			return 0, "tells of lost batches and not how many"
		}
		return n, ""
	}
	return 0, ""
}

func (d *decisions) decision(l *line) (cause string) {
	var decision, region, regions, rule, count []byte
	p := parser{b: l.detail, escapes: l.escapes}
	for p.at < len(p.b) {
		key := p.text()
		p.at++ // the colon: the members were checked when the line was parsed
		value := p.text()
		p.at++ // the comma
		switch string(key) {
		case "decision":
			decision = value
		case "endpoint_region":
			region = value
		case "allowed_regions":
			regions = value
		case "rule_id":
			rule = value
		case "count":
			count = value
		}
	}
	n := uint64(1) // an entry without a count is one call
	if len(count) > 0 {
		var err error
		if n, err = strconv.ParseUint(string(count), 10, 64); err != nil {
			return "has a count of calls that is no number"
		}
	}
	d.key = d.key[:0]
	for _, part := range [][]byte{decision, region, regions, rule} {
		d.key = append(append(d.key, part...), '"') // which none of them holds bare
	}
	if c := d.counts[string(d.key)]; c != nil {
		c.Count += n
		return ""
	}
	c := &Decisions{Decision: l.plain(decision), Region: l.plain(region), AllowedRegions: l.plain(regions), RuleID: l.plain(rule), Count: n}
	switch c.Decision {
	case "allow":
		if c.AllowedRegions != "" && (c.Region == "" || !slices.Contains(strings.Split(c.AllowedRegions, ","), c.Region)) {
			return "allowed calls to an endpoint in region " + strconv.Quote(c.Region) + ", outside the regions allowed, " + c.AllowedRegions
		}
	case "deny":
	default:
		return "decided neither allow nor deny"
	}
	d.counts[string(d.key)] = c
	return ""
}

// totals returns how many calls were allowed and denied, and how many were allowed
// by entries that name no regions.
func (d *decisions) totals() (allowed, denied, unnamed uint64) {
	for _, c := range d.counts {
		switch {
		case c.Decision == "deny":
			denied += c.Count
		case c.AllowedRegions == "":
			unnamed += c.Count
		default:
			allowed += c.Count
		}
	}
	return allowed, denied, unnamed
}

func (d *decisions) list() (out []Decisions) {
	for _, c := range slices.SortedFunc(maps.Values(d.counts), func(a, b *Decisions) int {
		return cmp.Or(cmp.Compare(a.Decision, b.Decision), cmp.Compare(a.Region, b.Region), cmp.Compare(a.RuleID, b.RuleID), cmp.Compare(a.AllowedRegions, b.AllowedRegions))
	}) {
		out = append(out, *c)
	}
	return out
}
