package service

import (
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"
)

// Delta makes the frame that turns base into next for a client that holds base:
// endpoints and flags one by one, every other list whole where it differs. It
// costs a look at each item of both, and little for those that both share.
func Delta(base, next *Snapshot) *donav1.ConfigSnapshot {
	from, to := base.Config, next.Config
	d := &donav1.ConfigSnapshot{
		Service: to.Service, Version: to.Version, Checksum: to.Checksum,
		Form: donav1.ConfigSnapshot_FORM_DELTA, BaseVersion: from.Version,
	}
	d.Endpoints, d.RemovedEndpoints = changed(base.endpoints, next.endpoints)
	d.Flags, d.RemovedFlags = changed(base.flags, next.flags)
	if !slices.EqualFunc(from.Weights, to.Weights, func(a, b *donav1.VariantWeight) bool { return proto.Equal(a, b) }) {
		d.Weights = to.Weights
		d.Replaced = append(d.Replaced, donav1.ConfigSnapshot_SECTION_WEIGHTS)
	}
	if !proto.Equal(from.Residency, to.Residency) {
		d.Residency = to.Residency
		d.Replaced = append(d.Replaced, donav1.ConfigSnapshot_SECTION_RESIDENCY)
	}
	if !proto.Equal(from.Plan, to.Plan) {
		d.Plan = to.Plan
		d.Replaced = append(d.Replaced, donav1.ConfigSnapshot_SECTION_PLAN)
	}
	if !slices.Equal(from.QuarantinedVariants, to.QuarantinedVariants) {
		d.QuarantinedVariants = to.QuarantinedVariants
		d.Replaced = append(d.Replaced, donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS)
	}
	return d
}

// changed walks two sorted lists and returns the items of next that base does not
// have like that, and the names of those that only base has.
func changed[M proto.Message](base, next []*item[M]) (put []M, removed []string) {
	for len(base) > 0 || len(next) > 0 {
		switch {
		case len(next) == 0 || len(base) > 0 && base[0].id < next[0].id:
			removed = append(removed, base[0].id)
			base = base[1:]
		case len(base) == 0 || next[0].id < base[0].id:
			put = append(put, next[0].message)
			next = next[1:]
		default:
			if base[0] != next[0] && !proto.Equal(base[0].message, next[0].message) {
				put = append(put, next[0].message)
			}
			base, next = base[1:], next[1:]
		}
	}
	return put, removed
}
