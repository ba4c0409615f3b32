// Package digest computes the checksum of a snapshot, digest format 1. The host
// calls it when it builds a snapshot, a client when it received one; both must
// come to the same 32 bytes, in any language, so the bytes that are hashed are
// written here by explicit code and owe nothing to a protobuf library.
//
// A snapshot is a set of items (an endpoint, a weight, a flag, …). Each item is
// hashed on its own, the hashes are added up as 256-bit numbers modulo 2^256,
// and the checksum is the hash of that sum and the number of items:
//
//	item     = SHA-256(u8 kind || u32be len(id) || id || SHA-256(canonical bytes))
//	sum      = Σ item mod 2^256, big-endian
//	checksum = SHA-256("dona-snapshot-v1" || u64be count || sum)
//
// A sum does not depend on an order and can be kept up to date at the cost of
// what changed: subtract the old item, add the new one. It finds damage; it does
// not commit anyone to a content, as a forger could search for another set with
// the same sum.
//
// The package is pure: no I/O, no goroutines, safe for concurrent use except
// that one Sum has one owner.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Format is the digest format that this package computes.
const Format = 1

// Size is the length of item hashes, sums and checksums in bytes.
const Size = sha256.Size

const prefix = "dona-snapshot-v1"

// Kind says what an item is. The numbers are part of the format.
type Kind uint8

// The kinds of format 1. 1 to 6 are the service plane's, 11 to 14 the egress
// plane's.
const (
	KindEndpoint    Kind = 1  // id = endpoint id
	KindWeight      Kind = 2  // id = u32be index in the list || variant
	KindFlag        Kind = 3  // id = flag key
	KindResidency   Kind = 4  // id empty
	KindPlan        Kind = 5  // id empty; the generation is left out of the bytes
	KindQuarantined Kind = 6  // id = variant; no bytes
	KindRouting     Kind = 11 // id = name
	KindProxy       Kind = 12 // id = proxy id
	KindCredential  Kind = 13 // id = ref/version
	KindOrder       Kind = 14 // id empty; bytes = u32be len || name of each routing in order
)

// Item returns the hash of one item: what is added to a Sum. bytes are the
// item's canonical bytes and are not kept.
func Item(kind Kind, id string, bytes []byte) [Size]byte {
	inner := sha256.Sum256(bytes)
	var stack [5 + 256 + Size]byte
	buf := append(stack[:0], byte(kind))
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(id)))
	buf = append(buf, id...)
	buf = append(buf, inner[:]...)
	return sha256.Sum256(buf)
}

// Sum is the sum of item hashes modulo 2^256. The zero value is the sum of
// nothing. It is a plain value: copy it to keep an old one.
type Sum struct {
	limb [4]uint64 // little-endian order of limbs: limb[0] holds the lowest bits
}

// Add adds one item hash.
func (s *Sum) Add(item [Size]byte) {
	var carry uint64
	for i := range s.limb {
		s.limb[i], carry = bits.Add64(s.limb[i], limbOf(&item, i), carry)
	}
}

// Remove takes back one item hash that was added before.
func (s *Sum) Remove(item [Size]byte) {
	var borrow uint64
	for i := range s.limb {
		s.limb[i], borrow = bits.Sub64(s.limb[i], limbOf(&item, i), borrow)
	}
}

// Bytes returns the sum as 32 big-endian bytes.
func (s Sum) Bytes() (out [Size]byte) {
	for i, v := range s.limb {
		binary.BigEndian.PutUint64(out[Size-8*(i+1):], v)
	}
	return out
}

// Checksum returns the checksum of a set of count items whose hashes add up to s.
func (s Sum) Checksum(count uint64) [Size]byte {
	sum := s.Bytes()
	buf := make([]byte, 0, len(prefix)+8+Size)
	buf = append(buf, prefix...)
	buf = binary.BigEndian.AppendUint64(buf, count)
	buf = append(buf, sum[:]...)
	return sha256.Sum256(buf)
}

func limbOf(item *[Size]byte, i int) uint64 {
	return binary.BigEndian.Uint64(item[Size-8*(i+1):])
}

// OfSnapshot returns the checksum of a full snapshot: of its endpoints, weights,
// flags, residency policy, plan and quarantined variants. Its service name,
// version, form and its own checksum field are not part of it.
func OfSnapshot(s *donav1.ConfigSnapshot) [Size]byte {
	sum, count := SumOfSnapshot(s)
	return sum.Checksum(count)
}

// SumOfSnapshot returns what OfSnapshot hashes: the sum of the items and their
// number.
func SumOfSnapshot(s *donav1.ConfigSnapshot) (sum Sum, count uint64) {
	add := func(item [Size]byte) {
		sum.Add(item)
		count++
	}
	for _, e := range s.GetEndpoints() {
		add(EndpointItem(e))
	}
	for i, w := range s.GetWeights() {
		add(WeightItem(uint32(i), w))
	}
	for _, f := range s.GetFlags() {
		add(FlagItem(f))
	}
	if item, ok := ResidencyItem(s.GetResidency()); ok {
		add(item)
	}
	if item, ok := PlanItem(s.GetPlan()); ok {
		add(item)
	}
	for _, v := range s.GetQuarantinedVariants() {
		add(QuarantinedItem(v))
	}
	return sum, count
}
