package digest

import (
	"encoding/binary"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// EndpointItem returns the item hash of one endpoint.
func EndpointItem(e *donav1.Endpoint) [Size]byte {
	var stack [256]byte
	return Item(KindEndpoint, e.GetId(), AppendEndpoint(stack[:0], e))
}

// WeightItem returns the item hash of the variant weight at index of its list.
// The index is part of the identity: the order of the list decides who gets
// which bucket.
func WeightItem(index uint32, w *donav1.VariantWeight) [Size]byte {
	var stack [160]byte
	id := binary.BigEndian.AppendUint32(stack[:0], index)
	id = append(id, w.GetVariant()...)
	var bytes [160]byte
	return Item(KindWeight, string(id), AppendWeight(bytes[:0], w))
}

// FlagItem returns the item hash of one flag rule.
func FlagItem(f *donav1.FlagRule) [Size]byte {
	return Item(KindFlag, f.GetFlag(), AppendFlag(nil, f))
}

// ResidencyItem returns the item hash of a residency policy. ok is false for an
// absent or an empty one, which is no item.
func ResidencyItem(r *donav1.ResidencyPolicy) (item [Size]byte, ok bool) {
	b := AppendResidency(nil, r)
	if len(b) == 0 {
		return item, false
	}
	return Item(KindResidency, "", b), true
}

// PlanItem returns the item hash of a plan, its generation left out. ok is false
// for an absent plan, which is no item.
func PlanItem(p *donav1.Plan) (item [Size]byte, ok bool) {
	if p == nil {
		return item, false
	}
	return Item(KindPlan, "", AppendPlan(nil, p)), true
}

// QuarantinedItem returns the item hash of one quarantined variant.
func QuarantinedItem(variant string) [Size]byte {
	return Item(KindQuarantined, variant, nil)
}
