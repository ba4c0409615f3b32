package digest

import (
	"encoding/binary"
	"maps"
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Canonical bytes: the protobuf encoding with every freedom taken away. Field
// numbers ascend, a scalar with its default value is left out, an element of a
// list and a message that is present are always written, map entries are sorted
// by key bytes and always have key and value. Only fields of the contract at
// version 1 are written: a later field changes no checksum of format 1.
//
// Every AppendX appends to dst and returns the extended slice, as append does. A
// nil message has no bytes.

const (
	wireVarint = 0
	wireBytes  = 2
)

// AppendEndpoint appends the canonical bytes of an endpoint.
func AppendEndpoint(dst []byte, e *donav1.Endpoint) []byte {
	dst = appendString(dst, 1, e.GetId())
	dst = appendString(dst, 2, e.GetAddress())
	dst = appendString(dst, 3, e.GetVariant())
	dst = appendString(dst, 4, e.GetRegion())
	dst = appendUint(dst, 5, uint64(e.GetLbWeight()))
	return appendString(dst, 6, e.GetZone())
}

// AppendWeight appends the canonical bytes of a variant weight.
func AppendWeight(dst []byte, w *donav1.VariantWeight) []byte {
	dst = appendString(dst, 1, w.GetVariant())
	return appendUint(dst, 2, uint64(w.GetWeight()))
}

// AppendFlag appends the canonical bytes of a flag rule.
func AppendFlag(dst []byte, f *donav1.FlagRule) []byte {
	dst = appendString(dst, 1, f.GetFlag())
	dst = appendString(dst, 2, f.GetService())
	var scratch []byte
	for _, t := range f.GetTargeting() {
		scratch = appendTargeting(scratch[:0], t)
		dst = appendElement(dst, 3, scratch)
	}
	dst = appendUint(dst, 4, uint64(f.GetRolloutPercent()))
	dst = appendString(dst, 5, f.GetRolloutVariant())
	if f.GetDisabled() {
		dst = appendUint(dst, 6, 1)
	}
	dst = appendUint(dst, 7, uint64(f.GetHashVersion()))
	return appendUint(dst, 8, f.GetVersion())
}

func appendTargeting(dst []byte, t *donav1.TargetingRule) []byte {
	dst = appendString(dst, 1, t.GetAttribute())
	dst = appendEnum(dst, 2, int32(t.GetOperator()))
	for _, v := range t.GetValues() {
		dst = appendElement(dst, 3, v)
	}
	return appendString(dst, 4, t.GetVariant())
}

// AppendResidency appends the canonical bytes of a residency policy.
func AppendResidency(dst []byte, r *donav1.ResidencyPolicy) []byte {
	for _, region := range r.GetAllowedRegions() {
		dst = appendElement(dst, 1, region)
	}
	return appendString(dst, 2, r.GetRuleId())
}

// AppendPlan appends the canonical bytes of a plan without its generation: the
// same plan accepted again is the same content.
func AppendPlan(dst []byte, p *donav1.Plan) []byte {
	dst = appendString(dst, 1, p.GetStrategy())
	dst = appendEnum(dst, 3, int32(p.GetAlgorithm()))
	dst = appendMap(dst, 4, p.GetWeights())
	dst = appendMap(dst, 5, p.GetGroupWeights())
	dst = appendMap(dst, 6, p.GetGroupTiers())
	if h := p.GetHash(); h != nil {
		inner := appendEnum(nil, 1, int32(h.GetSource()))
		inner = appendString(inner, 2, h.GetName())
		dst = appendElement(dst, 7, inner)
	}
	dst = appendUint(dst, 8, uint64(p.GetChoices()))
	return appendUint(dst, 9, uint64(p.GetMaxLoadPercent()))
}

func appendMap(dst []byte, field int, m map[string]uint32) []byte {
	var entry []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		entry = appendElement(entry[:0], 1, k)
		entry = appendTag(entry, 2, wireVarint)
		entry = binary.AppendUvarint(entry, uint64(m[k]))
		dst = appendElement(dst, field, entry)
	}
	return dst
}

// appendElement writes a length-delimited value even when it is empty.
func appendElement[T string | []byte](dst []byte, field int, v T) []byte {
	dst = appendTag(dst, field, wireBytes)
	dst = binary.AppendUvarint(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendString(dst []byte, field int, v string) []byte {
	if v == "" {
		return dst
	}
	return appendElement(dst, field, v)
}

func appendUint(dst []byte, field int, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(appendTag(dst, field, wireVarint), v)
}

// appendEnum widens through int64: a negative enum number is ten bytes on the
// wire.
func appendEnum(dst []byte, field int, v int32) []byte {
	return appendUint(dst, field, uint64(int64(v)))
}

func appendTag(dst []byte, field, wire int) []byte {
	return binary.AppendUvarint(dst, uint64(field)<<3|uint64(wire))
}
