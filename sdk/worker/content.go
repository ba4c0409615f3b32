package worker

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// errDelta says that a delta does not lead to a snapshot that is known to be whole: it is
// dropped and a full one is asked for.
var errDelta = errors.New("the delta is dropped")

// content is a snapshot whose checksum is right. It is not changed once it is made; the
// messages in it are shared between one and the next.
type content struct {
	version, epoch uint64
	generated      time.Time     // by the host's clock: only the start of what follows
	validity       time.Duration // from then on

	routings    []*controlplanev1.Routing
	proxies     map[string]*controlplanev1.Proxy
	credentials map[string]*controlplanev1.Credential // by digest.CredentialID

	sum      digest.Sum
	count    uint64
	checksum [digest.Size]byte
}

// frame is what full snapshots and deltas have in common.
type frame interface {
	GetVersion() uint64
	GetOwnershipEpoch() uint64
	GetChecksum() []byte
	GetGeneratedAt() *timestamppb.Timestamp
	GetValidUntil() *timestamppb.Timestamp
	GetClusterId() string
}

// head reads what frames have in common.
func head(f frame, cluster string) (*content, error) {
	if f.GetClusterId() != cluster {
		return nil, fmt.Errorf("cluster_id is %.64q: this worker is of cluster %q", f.GetClusterId(), cluster)
	}
	if f.GetVersion() == 0 {
		return nil, errors.New("version is 0: a snapshot's is 1 or more")
	}
	c := &content{version: f.GetVersion(), epoch: f.GetOwnershipEpoch()}
	if err := f.GetGeneratedAt().CheckValid(); err != nil {
		return nil, fmt.Errorf("generated_at: %w", err)
	}
	if err := f.GetValidUntil().CheckValid(); err != nil {
		return nil, fmt.Errorf("valid_until: %w", err)
	}
	c.generated = f.GetGeneratedAt().AsTime()
	if c.validity = f.GetValidUntil().AsTime().Sub(c.generated); c.validity <= 0 {
		return nil, fmt.Errorf("valid_until is %v after generated_at: the snapshot was over when it was made", c.validity)
	}
	return c, nil
}

// fullContent reads a full snapshot.
func fullContent(s *controlplanev1.WorkerSnapshot, cluster string) (*content, error) {
	c, err := head(s, cluster)
	if err != nil {
		return nil, err
	}
	c.routings = s.GetRoutings()
	c.proxies = make(map[string]*controlplanev1.Proxy, len(s.GetProxies()))
	for _, p := range s.GetProxies() {
		if c.proxies[p.GetProxyId()] != nil {
			return nil, fmt.Errorf("proxy %.64q is there twice", p.GetProxyId())
		}
		c.proxies[p.GetProxyId()] = p
	}
	c.credentials = make(map[string]*controlplanev1.Credential, len(s.GetCredentials()))
	for _, k := range s.GetCredentials() {
		id := digest.CredentialID(k.GetSecretRef(), k.GetCredentialVersion())
		if c.credentials[id] != nil {
			return nil, fmt.Errorf("credential %.64q is there twice", id)
		}
		c.credentials[id] = k
	}
	c.sum, c.count = digest.SumOfSnapshot(s)
	return c, c.verify(s)
}

// verify compares the checksum with what the frame says it is.
func (c *content) verify(f frame) error {
	c.checksum = c.sum.Checksum(c.count)
	if string(f.GetChecksum()) != string(c.checksum[:]) {
		return fmt.Errorf("checksum of version %d is %.64x, its content comes to %x", c.version, f.GetChecksum(), c.checksum)
	}
	return nil
}

// apply returns the snapshot that a delta makes of c. An error that is not errDelta is one
// that a full snapshot would have, too.
func (c *content) apply(d *controlplanev1.SnapshotDelta, cluster string) (*content, error) {
	next, err := head(d, cluster)
	if err != nil {
		return nil, err
	}
	if c == nil || d.GetBaseVersion() != c.version {
		held := uint64(0)
		if c != nil {
			held = c.version
		}
		return nil, fmt.Errorf("%w: it builds on version %d, held is %d", errDelta, d.GetBaseVersion(), held)
	}
	next.routings, next.sum, next.count = c.routings, c.sum, c.count
	if d.GetRoutingsChanged() {
		next.setRoutings(c.routings, d.GetRoutings())
	}
	next.proxies = maps.Clone(c.proxies)
	for _, id := range d.GetRemovedProxyIds() {
		old := next.proxies[id]
		if old == nil {
			return nil, fmt.Errorf("%w: it removes proxy %.64q, which is not there", errDelta, id)
		}
		next.remove(digest.ProxyItem(old))
		delete(next.proxies, id)
	}
	for _, p := range d.GetUpsertProxies() {
		if old := next.proxies[p.GetProxyId()]; old != nil {
			next.remove(digest.ProxyItem(old))
		}
		next.add(digest.ProxyItem(p))
		next.proxies[p.GetProxyId()] = p
	}
	next.credentials = maps.Clone(c.credentials)
	for _, r := range d.GetRemovedCredentials() {
		id := digest.CredentialID(r.GetSecretRef(), r.GetCredentialVersion())
		old := next.credentials[id]
		if old == nil {
			return nil, fmt.Errorf("%w: it removes credential %.64q, which is not there", errDelta, id)
		}
		next.remove(digest.CredentialItem(old))
		delete(next.credentials, id)
	}
	for _, k := range d.GetUpsertCredentials() {
		id := digest.CredentialID(k.GetSecretRef(), k.GetCredentialVersion())
		if old := next.credentials[id]; old != nil {
			next.remove(digest.CredentialItem(old))
		}
		next.add(digest.CredentialItem(k))
		next.credentials[id] = k
	}
	if err := next.verify(d); err != nil {
		return nil, fmt.Errorf("%w: %w", errDelta, err)
	}
	return next, nil
}

func (c *content) add(item [digest.Size]byte)    { c.sum.Add(item); c.count++ }
func (c *content) remove(item [digest.Size]byte) { c.sum.Remove(item); c.count-- }

func (c *content) setRoutings(old, now []*controlplanev1.Routing) {
	for _, r := range old {
		c.remove(digest.RoutingItem(r))
	}
	if item, ok := digest.OrderItem(old); ok {
		c.remove(item)
	}
	for _, r := range now {
		c.add(digest.RoutingItem(r))
	}
	if item, ok := digest.OrderItem(now); ok {
		c.add(item)
	}
	c.routings = now
}
