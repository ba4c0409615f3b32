package digest

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// The canonical bytes follow the rules of sdk/dona/digest: field numbers ascend, a
// scalar with its default value is left out, an element of a list and a message that is
// present are always written, lists of numbers are packed, map entries are sorted by
// key bytes and always have key and value. Only fields of the contract at version 1
// are written. Every AppendX appends to dst and returns the extended slice.

// AppendRouting appends the canonical bytes of a routing. The generation of its plan is
// left out: the same plan accepted again is the same content.
func AppendRouting(dst []byte, r *controlplanev1.Routing) []byte {
	dst = appendString(dst, 1, r.GetName())
	if m := r.GetMatch(); m != nil {
		dst = appendElement(dst, 2, appendMatch(nil, m))
	}
	for _, u := range r.GetUpstreams() {
		inner := appendString(nil, 1, u.GetName())
		inner = appendUint(inner, 2, uint64(u.GetWeight()))
		inner = appendUint(inner, 3, uint64(u.GetPriority()))
		dst = appendElement(dst, 3, inner)
	}
	if p := r.GetPlan(); p != nil {
		dst = appendElement(dst, 4, digest.AppendPlan(nil, p))
	}
	dst = appendInt(dst, 5, int64(r.GetOnUnavailable()))
	if d := r.GetWaitTimeout(); d != nil {
		dst = appendTime(dst, 6, d)
	}
	if t := r.GetTargetPolicy(); t != nil {
		dst = appendElement(dst, 7, appendPolicy(nil, t))
	}
	dst = appendStrings(dst, 8, r.GetCheckTargets())
	dst = appendInt(dst, 9, int64(r.GetResolve()))
	if s := r.GetStickiness(); s != nil {
		inner := appendInt(nil, 1, int64(s.GetMode()))
		if s.GetTtl() != nil {
			inner = appendTime(inner, 2, s.GetTtl())
		}
		if s.GetIdle() != nil {
			inner = appendTime(inner, 3, s.GetIdle())
		}
		dst = appendElement(dst, 10, inner)
	}
	return dst
}

func appendMatch(dst []byte, m *controlplanev1.RoutingMatch) []byte {
	dst = appendStrings(dst, 1, m.GetHosts())
	dst = appendNumbers(dst, 2, m.GetPorts())
	dst = appendStrings(dst, 3, m.GetClients())
	return appendStrings(dst, 4, m.GetMethods())
}

func appendPolicy(dst []byte, t *controlplanev1.TargetPolicy) []byte {
	dst = appendStrings(dst, 1, t.GetAllowHosts())
	dst = appendStrings(dst, 2, t.GetDenyHosts())
	dst = appendNumbers(dst, 3, t.GetAllowPorts())
	dst = appendStrings(dst, 4, t.GetAllowCidrs())
	dst = appendStrings(dst, 5, t.GetDenyCidrs())
	if t.GetAllowPrivate() {
		dst = appendUint(dst, 6, 1)
	}
	return dst
}

// AppendProxy appends the canonical bytes of a proxy.
func AppendProxy(dst []byte, p *controlplanev1.Proxy) []byte {
	dst = appendString(dst, 1, p.GetProxyId())
	dst = appendString(dst, 2, p.GetUpstream())
	dst = appendInt(dst, 3, int64(p.GetProtocol()))
	dst = appendString(dst, 4, p.GetHost())
	dst = appendUint(dst, 5, uint64(p.GetPort()))
	dst = appendString(dst, 6, p.GetSecretRef())
	dst = appendUint(dst, 7, uint64(p.GetCredentialVersion()))
	dst = appendUint(dst, 8, uint64(p.GetCapacity()))
	if t := p.GetExpiresAt(); t != nil {
		dst = appendTime(dst, 9, t)
	}
	if t := p.GetUsableUntil(); t != nil {
		dst = appendTime(dst, 10, t)
	}
	dst = appendUint(dst, 11, p.GetAssignmentEpoch())
	dst = appendInt(dst, 12, int64(p.GetHealth()))
	dst = appendStrings(dst, 13, p.GetDeniedRoutings())
	labels := p.GetLabels()
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		entry := appendElement(nil, 1, k)
		entry = appendElement(entry, 2, labels[k])
		dst = appendElement(dst, 14, entry)
	}
	return dst
}

// AppendCredential appends the canonical bytes of a credential.
func AppendCredential(dst []byte, c *controlplanev1.Credential) []byte {
	dst = appendString(dst, 1, c.GetSecretRef())
	dst = appendUint(dst, 2, uint64(c.GetCredentialVersion()))
	dst = appendString(dst, 3, c.GetUsername())
	return appendString(dst, 4, c.GetPassword())
}

// instant is a Timestamp or a Duration: both have these two fields.
type instant interface {
	GetSeconds() int64
	GetNanos() int32
}

func appendTime(dst []byte, field protowire.Number, t instant) []byte {
	var stack [24]byte
	inner := appendInt(stack[:0], 1, t.GetSeconds())
	inner = appendInt(inner, 2, int64(t.GetNanos()))
	return appendElement(dst, field, inner)
}

// appendElement writes a length-delimited value even when it is empty.
func appendElement[T string | []byte](dst []byte, field protowire.Number, v T) []byte {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendStrings(dst []byte, field protowire.Number, list []string) []byte {
	for _, v := range list {
		dst = appendElement(dst, field, v)
	}
	return dst
}

func appendNumbers(dst []byte, field protowire.Number, list []uint32) []byte {
	if len(list) == 0 {
		return dst
	}
	var packed []byte
	for _, v := range list {
		packed = protowire.AppendVarint(packed, uint64(v))
	}
	return appendElement(dst, field, packed)
}

func appendString(dst []byte, field protowire.Number, v string) []byte {
	if v == "" {
		return dst
	}
	return appendElement(dst, field, v)
}

func appendUint(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

// appendInt writes a signed number as protobuf does: a negative one takes ten bytes.
func appendInt(dst []byte, field protowire.Number, v int64) []byte {
	return appendUint(dst, field, uint64(v))
}
