package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// TestDeltas: a worker that asks for deltas comes by them to what one that does not is
// sent, and one change is a small part of the whole.
func TestDeltas(t *testing.T) {
	w := newWorld(t)
	v := &vault{held: map[string]secret.Credential{}}
	w.p = w.host("h1", func(o *pool.Options) { o.Secrets = v })
	w.publish(strings.Replace(document, "protocol: socks5", "protocol: socks5\n    secretRef: file:spare", 1))
	settle := func(number uint32) {
		t.Helper()
		v.put(t, "file:spare", number, "secret")
		_, err := w.p.Settle(w.ctx, []string{"file:spare"}, func(string, secret.Version) secret.Version { return secret.Version{Number: number} })
		w.must(err)
	}
	settle(1)
	ids := w.add("dc", 300)
	w.add("spare", 1)
	x := w.join("w1")
	w.allocate()
	x.stream.cancel()
	x.stream = x.open(w.p, &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: x.session, AcceptDelta: true})
	var held *controlplanev1.WorkerSnapshot
	var whole int
	next := func() *controlplanev1.SnapshotDelta {
		t.Helper()
		select {
		case u := <-x.stream.updates:
			if full := u.GetFull(); full != nil {
				held, whole = proto.CloneOf(full), proto.Size(u)
				return nil
			}
			d := u.GetDelta()
			if d.BaseVersion != held.Version || d.Version != held.Version+1 {
				t.Fatalf("a delta from %d to %d comes after %d", d.BaseVersion, d.Version, held.Version)
			}
			held = apply(held, d)
			if sum := digest.OfSnapshot(held); !slices.Equal(sum[:], d.Checksum) {
				t.Fatalf("the delta to %d leads to another checksum", d.Version)
			}
			t.Logf("%d bytes, the whole has %d", proto.Size(u), whole)
			if proto.Size(u)*50 > whole {
				t.Errorf("a delta has %d bytes, the whole %d: more than 2 %%", proto.Size(u), whole)
			}
			return d
		case err := <-x.stream.ended:
			t.Fatalf("the stream ended: %v", err)
		case <-time.After(patience):
			t.Fatal("nothing came")
		}
		return nil
	}
	if d := next(); d != nil || len(held.Proxies) != 301 || len(held.Credentials) != 1 {
		t.Fatalf("the first is %v with %d proxies", d, len(held.GetProxies()))
	}
	w.find(ownership.Suspect, ids[0])
	if d := next(); len(d.UpsertProxies) != 1 || d.UpsertProxies[0].Health != controlplanev1.Health_HEALTH_SUSPECT || d.RoutingsChanged {
		t.Errorf("of a state: %v", d)
	}
	_, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: ids[1]})
	w.must(err)
	if d := next(); !slices.Equal(d.RemovedProxyIds, ids[1:2]) {
		t.Errorf("of a drain: %v", d)
	}
	settle(2)
	if d := next(); len(d.UpsertProxies) != 1 || len(d.UpsertCredentials) != 1 || d.UpsertCredentials[0].CredentialVersion != 2 ||
		len(d.RemovedCredentials) != 1 || d.RemovedCredentials[0].CredentialVersion != 1 || d.RoutingsChanged {
		t.Errorf("of a credential: %d and %d of them", len(d.UpsertCredentials), len(d.RemovedCredentials))
	}
	w.change()
	if d := next(); !d.RoutingsChanged || len(d.Routings) != 1 || len(d.UpsertProxies) != 0 {
		t.Errorf("of a switch: %v", d)
	}
}

// apply is what a worker does with a delta.
func apply(base *controlplanev1.WorkerSnapshot, d *controlplanev1.SnapshotDelta) *controlplanev1.WorkerSnapshot {
	next := proto.CloneOf(base)
	next.Version, next.OwnershipEpoch = d.Version, d.OwnershipEpoch
	if d.RoutingsChanged {
		next.Routings = d.Routings
	}
	gone := func(p *controlplanev1.Proxy) bool {
		return slices.Contains(d.RemovedProxyIds, p.ProxyId) ||
			slices.ContainsFunc(d.UpsertProxies, func(u *controlplanev1.Proxy) bool { return u.ProxyId == p.ProxyId })
	}
	next.Proxies = append(slices.DeleteFunc(next.Proxies, gone), d.UpsertProxies...)
	slices.SortFunc(next.Proxies, func(a, b *controlplanev1.Proxy) int { return strings.Compare(a.ProxyId, b.ProxyId) })
	next.Credentials = append(slices.DeleteFunc(next.Credentials, func(c *controlplanev1.Credential) bool {
		return slices.ContainsFunc(d.RemovedCredentials, func(r *controlplanev1.CredentialRef) bool {
			return r.SecretRef == c.SecretRef && r.CredentialVersion == c.CredentialVersion
		})
	}), d.UpsertCredentials...)
	return next
}

// vault has credentials that a test puts in.
type vault struct {
	mu   sync.Mutex
	held map[string]secret.Credential
}

func (v *vault) Credential(ref string, version uint32) (secret.Credential, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, ok := v.held[fmt.Sprint(ref, "/", version)]
	return c, ok
}

func (v *vault) put(t *testing.T, ref string, version uint32, password string) {
	t.Helper()
	c, err := secret.NewCredential("ada", password)
	if err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held[fmt.Sprint(ref, "/", version)] = c
}

// TestCredentials: a proxy is sent with its credential, once for all that share it,
// and not before the host has it.
func TestCredentials(t *testing.T) {
	w := newWorld(t)
	v := &vault{held: map[string]secret.Credential{}}
	w.p = w.host("h1", func(o *pool.Options) { o.Secrets = v })
	w.publish(strings.Replace(document, "ttl: 1h", "ttl: 1h\n    secretRef: file:dc", 1))
	w.add("dc", 2)
	x := w.join("w1")
	w.allocate()
	if got := x.held; len(got.Proxies) != 0 {
		t.Fatalf("without its credentials: %v", got)
	}
	v.put(t, "file:dc", 0, "first")
	x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 2 }))
	if c := x.held.Credentials; len(c) != 1 || c[0].Username != "ada" || c[0].Password != "first" {
		t.Errorf("%d credentials", len(c))
	}
}

// TestNewCredential: a new version of a credential reaches a worker when the hosts have
// agreed on it, long before its snapshot is due again.
func TestNewCredential(t *testing.T) {
	w := newWorld(t)
	v := &vault{held: map[string]secret.Credential{}}
	w.p = w.host("h1", func(o *pool.Options) { o.Secrets = v })
	w.publish(strings.Replace(document, "ttl: 1h", "ttl: 1h\n    secretRef: file:dc", 1) + "allocation: {snapshotValidity: 1h, maxStaleAge: 2h}\n")
	settle := func(number uint32, password string) {
		t.Helper()
		v.put(t, "file:dc", number, password)
		_, err := w.p.Settle(w.ctx, []string{"file:dc"}, func(string, secret.Version) secret.Version { return secret.Version{Number: number} })
		w.must(err)
	}
	settle(1, "first")
	w.add("dc", 2)
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 2 }))
	began := time.Now()
	settle(2, "second")
	next := x.next()
	t.Logf("it came after %s", time.Since(began))
	if c := next.Credentials; len(c) != 1 || c[0].CredentialVersion != 2 || c[0].Password != "second" || next.Proxies[1].CredentialVersion != 2 {
		t.Errorf("the next snapshot has %d credentials, of version %d", len(c), c[0].GetCredentialVersion())
	}
}

// TestExtractedCredential: an extraction that is asked for again has the same proxies,
// with their credential as it is by then.
func TestExtractedCredential(t *testing.T) {
	w := newWorld(t)
	v := &vault{held: map[string]secret.Credential{}}
	w.p = w.host("h1", func(o *pool.Options) { o.Secrets = v })
	w.publish(strings.Replace(document, "ttl: 1h", "ttl: 1h\n    secretRef: file:dc", 1))
	settle := func(number uint32, password string) {
		t.Helper()
		v.put(t, "file:dc", number, password)
		_, err := w.p.Settle(w.ctx, []string{"file:dc"}, func(string, secret.Version) secret.Version { return secret.Version{Number: number} })
		w.must(err)
	}
	w.add("dc", 2)
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 2}
	var ids []string
	for i, password := range []string{"first", "second"} {
		number := uint32(i + 1)
		settle(number, password)
		got, err := w.p.Extract(w.ctx, operator, req)
		w.must(err)
		var have []string
		for _, x := range got.Proxies {
			have = append(have, x.Proxy.ProxyId)
			if x.Proxy.CredentialVersion != number || x.Credential.GetCredentialVersion() != number || x.Credential.GetPassword() != password {
				t.Errorf("%s has version %d and a credential of version %d, want %d", x.Proxy.ProxyId, x.Proxy.CredentialVersion, x.Credential.GetCredentialVersion(), number)
			}
		}
		if ids != nil && !slices.Equal(have, ids) {
			t.Errorf("asked again, %v are given, want %v", have, ids)
		}
		ids = have
	}
	if len(ids) != 2 {
		t.Errorf("extracted are %v", ids)
	}
}

// compiler has a strategy that is away when a test says so.
type compiler struct {
	calls atomic.Int64
	away  atomic.Bool
}

func (c *compiler) Compile(_ context.Context, strategy string, _ *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error) {
	c.calls.Add(1)
	if c.away.Load() {
		return nil, 0, errors.New("the plugin is away")
	}
	weights := map[string]uint32{}
	for i, x := range req.Candidates {
		weights[x.Id] = uint32(i + 1)
	}
	return &donav1.Plan{Strategy: strategy, Algorithm: donav1.Algorithm_ALGORITHM_RANDOM, Weights: weights}, 0, nil
}

// TestPlans: a routing has its strategy's plan, as far as it is about the worker's own
// proxies; while the strategy is away the last good one, and round robin where there
// is none.
func TestPlans(t *testing.T) {
	w := newWorld(t)
	c := &compiler{}
	w.p = w.host("h1", func(o *pool.Options) { o.Compiler = c })
	other := w.host("h2", func(o *pool.Options) { o.Compiler = c })
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	for _, p := range []*pool.Pool{w.p, other} {
		loops.Go(func() { _ = p.Run(ctx) })
	}
	x := w.join("w1", func(r *controlplanev1.RegisterWorkerRequest) { r.Zone = "a" })
	y := w.join("w2", func(r *controlplanev1.RegisterWorkerRequest) { r.Zone = "b" })
	w.add("dc", 4) // both have reported, so that they share from the start
	planned := func(s *controlplanev1.WorkerSnapshot) bool {
		return len(s.Proxies) == 2 && s.Routings[0].Plan.Algorithm == donav1.Algorithm_ALGORITHM_RANDOM
	}
	x.accept(x.until("with a plan", planned))
	y.accept(y.until("with a plan", planned))
	for _, g := range []*worker{x, y} {
		plan := g.held.Routings[0].Plan
		if len(plan.Weights) != 2 || plan.GroupWeights["dc"] != 3 || len(plan.GroupWeights) != 1 {
			t.Errorf("the plan of %s is %v", g.id, plan)
		}
		for id := range plan.Weights {
			if !has(g.held, id) {
				t.Errorf("the plan of %s names %s, which it does not own", g.id, id)
			}
		}
	}
	c.away.Store(true)
	// Another candidate calls for another plan, which does not come.
	calls := c.calls.Load()
	w.add("spare", 1)
	for began := time.Now(); c.calls.Load() == calls; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the strategy is not asked")
		}
	}
	w.change()
	x.accept(x.until("after the switch", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Routings[0].Upstreams) == 1 }))
	if plan := x.held.Routings[0].Plan; plan.Algorithm != donav1.Algorithm_ALGORITHM_RANDOM {
		t.Errorf("the last good plan does not stay: %v", plan)
	}
	_, err := w.p.SetRouting(w.ctx, operator, &controlplanev1.SetRoutingRequest{Routing: "all", Enabled: true, Strategy: "priority"})
	w.must(err)
	x.accept(x.until("with round robin", func(s *controlplanev1.WorkerSnapshot) bool {
		return s.Routings[0].Plan.Algorithm == donav1.Algorithm_ALGORITHM_ROUND_ROBIN
	}))
}
