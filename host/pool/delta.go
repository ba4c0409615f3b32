package pool

import (
	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// delta says how a snapshot differs from the one before it on the same stream.
func delta(base, next *controlplanev1.WorkerSnapshot) *controlplanev1.SnapshotDelta {
	d := &controlplanev1.SnapshotDelta{
		BaseVersion: base.Version, Version: next.Version, OwnershipEpoch: next.OwnershipEpoch, GeneratedAt: next.GeneratedAt, ValidUntil: next.ValidUntil,
		Checksum: next.Checksum, ClusterId: next.ClusterId,
	}
	if !equalRoutings(base.Routings, next.Routings) {
		d.Routings, d.RoutingsChanged = next.Routings, true
	}
	had := make(map[string]*controlplanev1.Proxy, len(base.Proxies))
	for _, p := range base.Proxies {
		had[p.ProxyId] = p
	}
	for _, p := range next.Proxies {
		if before := had[p.ProxyId]; before == nil || !proto.Equal(before, p) {
			d.UpsertProxies = append(d.UpsertProxies, p)
		}
		delete(had, p.ProxyId)
	}
	for _, p := range base.Proxies {
		if had[p.ProxyId] != nil {
			d.RemovedProxyIds = append(d.RemovedProxyIds, p.ProxyId)
		}
	}
	type ref struct {
		name    string
		version uint32
	}
	held := make(map[ref]*controlplanev1.Credential, len(base.Credentials))
	for _, c := range base.Credentials {
		held[ref{c.SecretRef, c.CredentialVersion}] = c
	}
	for _, c := range next.Credentials {
		at := ref{c.SecretRef, c.CredentialVersion}
		if before := held[at]; before == nil || !proto.Equal(before, c) {
			d.UpsertCredentials = append(d.UpsertCredentials, c)
		}
		delete(held, at)
	}
	for _, c := range base.Credentials {
		if at := (ref{c.SecretRef, c.CredentialVersion}); held[at] != nil {
			d.RemovedCredentials = append(d.RemovedCredentials, &controlplanev1.CredentialRef{SecretRef: at.name, CredentialVersion: at.version})
		}
	}
	return d
}

// equalRoutings leaves the generations of plans out, as checksums do.
func equalRoutings(a, b []*controlplanev1.Routing) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if digest.RoutingItem(a[i]) != digest.RoutingItem(b[i]) {
			return false
		}
	}
	return true
}

// update is how a snapshot is sent: whole, or, where that is asked for and shorter, as
// what is new since base; nil = it is the first of its stream.
func update(base, next *controlplanev1.WorkerSnapshot, asked bool) *controlplanev1.SnapshotUpdate {
	full := &controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Full{Full: next}}
	if base == nil || !asked {
		return full
	}
	short := &controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Delta{Delta: delta(base, next)}}
	if proto.Size(short) < proto.Size(full) {
		return short
	}
	return full
}
