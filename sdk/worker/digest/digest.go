// Package digest computes the checksum of a worker's snapshot. The host calls it
// when it builds a snapshot or a delta, a worker when it received one; both must come
// to the same 32 bytes.
//
// It is digest format 1 of sdk/dona/digest, where items, sums and checksums are
// defined, over the items of the egress plane: each routing, each proxy, each
// credential, and the order of the routings. Version, epoch, times, cluster id and the
// checksum field are no part of it, so a refreshed snapshot of the same content has
// the same checksum.
//
// The package is pure: no I/O, no goroutines, safe for concurrent use except that one
// Sum has one owner.
package digest

import (
	"encoding/binary"
	"strconv"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// Size is the length of item hashes and checksums in bytes.
const Size = digest.Size

// Sum is the sum of item hashes; see sdk/dona/digest.
type Sum = digest.Sum

// OfSnapshot returns the checksum of a full snapshot.
func OfSnapshot(s *controlplanev1.WorkerSnapshot) [Size]byte {
	sum, count := SumOfSnapshot(s)
	return sum.Checksum(count)
}

// SumOfSnapshot returns what OfSnapshot hashes: the sum of the items and their
// number.
func SumOfSnapshot(s *controlplanev1.WorkerSnapshot) (sum Sum, count uint64) {
	add := func(item [Size]byte) {
		sum.Add(item)
		count++
	}
	for _, r := range s.GetRoutings() {
		add(RoutingItem(r))
	}
	for _, p := range s.GetProxies() {
		add(ProxyItem(p))
	}
	for _, c := range s.GetCredentials() {
		add(CredentialItem(c))
	}
	if item, ok := OrderItem(s.GetRoutings()); ok {
		add(item)
	}
	return sum, count
}

// RoutingItem returns the item hash of one routing.
func RoutingItem(r *controlplanev1.Routing) [Size]byte {
	return digest.Item(digest.KindRouting, r.GetName(), AppendRouting(nil, r))
}

// ProxyItem returns the item hash of one proxy.
func ProxyItem(p *controlplanev1.Proxy) [Size]byte {
	var stack [512]byte
	return digest.Item(digest.KindProxy, p.GetProxyId(), AppendProxy(stack[:0], p))
}

// CredentialItem returns the item hash of one credential. Its id is the reference and
// the version, as in "file:/etc/secrets/a/3".
func CredentialItem(c *controlplanev1.Credential) [Size]byte {
	var stack [512]byte
	return digest.Item(digest.KindCredential, CredentialID(c.GetSecretRef(), c.GetCredentialVersion()), AppendCredential(stack[:0], c))
}

// CredentialID is what tells one credential from another.
func CredentialID(secretRef string, version uint32) string {
	return secretRef + "/" + strconv.FormatUint(uint64(version), 10)
}

// OrderItem returns the item hash of the order in which routings are matched. ok is
// false when there are none, which is no item.
func OrderItem(routings []*controlplanev1.Routing) (item [Size]byte, ok bool) {
	if len(routings) == 0 {
		return item, false
	}
	var bytes []byte
	for _, r := range routings {
		bytes = binary.BigEndian.AppendUint32(bytes, uint32(len(r.GetName())))
		bytes = append(bytes, r.GetName()...)
	}
	return digest.Item(digest.KindOrder, "", bytes), true
}
