package digest_test

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

func snapshot() *controlplanev1.WorkerSnapshot {
	return &controlplanev1.WorkerSnapshot{
		Version: 7, OwnershipEpoch: 3, ClusterId: "prod",
		GeneratedAt: &timestamppb.Timestamp{Seconds: 1_790_000_000}, ValidUntil: &timestamppb.Timestamp{Seconds: 1_790_000_060},
		Routings: []*controlplanev1.Routing{
			{
				Name:          "shop",
				Match:         &controlplanev1.RoutingMatch{Hosts: []string{"*.shop.example"}, Ports: []uint32{443, 70000}, Clients: []string{"a"}, Methods: []string{"CONNECT"}},
				Upstreams:     []*controlplanev1.UpstreamRef{{Name: "eu", Weight: 3, Priority: 1}, {}},
				Plan:          &donav1.Plan{Strategy: "random", Generation: 9, Algorithm: donav1.Algorithm_ALGORITHM_RANDOM},
				OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT, WaitTimeout: durationpb.New(1500e6),
				TargetPolicy: &controlplanev1.TargetPolicy{AllowHosts: []string{"x"}, DenyHosts: []string{"y"}, AllowPorts: []uint32{80}, AllowCidrs: []string{"192.0.2.0/24"}, DenyCidrs: []string{"10.0.0.0/8"}, AllowPrivate: true},
				CheckTargets: []string{"https://shop.example/"}, Resolve: controlplanev1.Resolve_RESOLVE_PINNED,
				Stickiness: &controlplanev1.Stickiness{Mode: controlplanev1.Stickiness_MODE_STRICT, Ttl: durationpb.New(60e9), Idle: &durationpb.Duration{}},
			},
			{Name: "rest", OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL},
		},
		Proxies: []*controlplanev1.Proxy{{
			ProxyId: "p1", Upstream: "eu", Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5, Host: "192.0.2.7", Port: 1080, SecretRef: "env:EU",
			CredentialVersion: 2, Capacity: 10, ExpiresAt: &timestamppb.Timestamp{Seconds: 1_790_003_600, Nanos: 5}, UsableUntil: &timestamppb.Timestamp{Seconds: 1_790_003_000},
			AssignmentEpoch: 4, Health: controlplanev1.Health_HEALTH_SUSPECT, DeniedRoutings: []string{"shop"}, Labels: map[string]string{"b": "", "a": "1"},
		}},
		Credentials: []*controlplanev1.Credential{{SecretRef: "env:EU", CredentialVersion: 2, Username: "u", Password: "p"}},
	}
}

// The value is part of the format: a host and workers of several releases agree on it.
func TestVector(t *testing.T) {
	sum := digest.OfSnapshot(snapshot())
	const want = "3e55d9edc30e6faaf1a854bada41aa630949dbec0d245701170b0676a8d7caec"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("checksum %s, want %s", got, want)
	}
}

func TestWhatIsHashed(t *testing.T) {
	for _, c := range []struct {
		name    string
		mutate  func(*controlplanev1.WorkerSnapshot)
		changes bool
	}{
		{"version", func(s *controlplanev1.WorkerSnapshot) { s.Version++ }, false},
		{"epoch", func(s *controlplanev1.WorkerSnapshot) { s.OwnershipEpoch++ }, false},
		{"generated at", func(s *controlplanev1.WorkerSnapshot) { s.GeneratedAt.Seconds++ }, false},
		{"valid until", func(s *controlplanev1.WorkerSnapshot) { s.ValidUntil.Seconds++ }, false},
		{"cluster", func(s *controlplanev1.WorkerSnapshot) { s.ClusterId = "other" }, false},
		{"its own checksum", func(s *controlplanev1.WorkerSnapshot) { s.Checksum = []byte{1} }, false},
		{"generation of a plan", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].Plan.Generation++ }, false},
		{"order of routings", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0], s.Routings[1] = s.Routings[1], s.Routings[0] }, true},
		{"a plan that is there and empty", func(s *controlplanev1.WorkerSnapshot) { s.Routings[1].Plan = &donav1.Plan{} }, true},
		{"a credential's password", func(s *controlplanev1.WorkerSnapshot) { s.Credentials[0].Password = "q" }, true},
		{"no credential", func(s *controlplanev1.WorkerSnapshot) { s.Credentials = nil }, true},
		{"a proxy twice", func(s *controlplanev1.WorkerSnapshot) { s.Proxies = append(s.Proxies, s.Proxies[0]) }, true},
	} {
		s := snapshot()
		c.mutate(s)
		if changed := digest.OfSnapshot(s) != digest.OfSnapshot(snapshot()); changed != c.changes {
			t.Errorf("%s: checksum changed: %v, want %v", c.name, changed, c.changes)
		}
	}
}

func TestOrderOfProxiesDoesNotCount(t *testing.T) {
	a, b := snapshot(), snapshot()
	a.Proxies = append(a.Proxies, &controlplanev1.Proxy{ProxyId: "p2"})
	b.Proxies = append([]*controlplanev1.Proxy{{ProxyId: "p2"}}, b.Proxies...)
	if digest.OfSnapshot(a) != digest.OfSnapshot(b) {
		t.Error("the same proxies in another order have another checksum")
	}
}

// Each field of what an item holds counts: a field that is forgotten here would let a
// damaged snapshot through.
func TestEveryFieldCounts(t *testing.T) {
	base := digest.OfSnapshot(snapshot())
	var walk func(m protoreflect.Message, at string)
	checked := 0
	full := snapshot()
	walk = func(m protoreflect.Message, at string) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			name := at + "." + string(f.Name())
			if name == ".routings.plan.generation" {
				continue
			}
			switch {
			case f.IsMap():
				key := protoreflect.ValueOfString("more").MapKey()
				m.Mutable(f).Map().Set(key, m.Mutable(f).Map().NewValue())
				if digest.OfSnapshot(full) == base {
					t.Errorf("%s is not hashed", name)
				}
				m.Mutable(f).Map().Clear(key)
				checked++
			case f.IsList() && f.Message() == nil:
				list := m.Mutable(f).List()
				list.Append(list.NewElement())
				if digest.OfSnapshot(full) == base {
					t.Errorf("%s is not hashed", name)
				}
				list.Truncate(list.Len() - 1)
				checked++
			case f.IsList():
				for j := range m.Get(f).List().Len() {
					walk(m.Get(f).List().Get(j).Message(), name)
				}
			case f.Message() != nil:
				if m.Has(f) {
					walk(m.Mutable(f).Message(), name)
				}
			default:
				old := m.Get(f)
				m.Set(f, other(f, old))
				if digest.OfSnapshot(full) == base {
					t.Errorf("%s is not hashed", name)
				}
				m.Set(f, old)
				checked++
			}
		}
	}
	for _, list := range []protoreflect.Name{"routings", "proxies", "credentials"} {
		m := full.ProtoReflect()
		items := m.Get(m.Descriptor().Fields().ByName(list)).List()
		for j := range items.Len() {
			walk(items.Get(j).Message(), "."+string(list))
		}
	}
	if checked < 55 {
		t.Errorf("only %d fields were looked at", checked)
	}
}

func other(f protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String() + "x")
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!v.Bool())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(v.Enum() + 1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()) + 1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int() + 1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()) + 1)
	default:
		return protoreflect.ValueOfUint64(v.Uint() + 1)
	}
}

func TestEmptySnapshots(t *testing.T) {
	if digest.OfSnapshot(nil) != digest.OfSnapshot(&controlplanev1.WorkerSnapshot{Version: 1}) {
		t.Error("a snapshot without content is not the checksum of nothing")
	}
	if _, ok := digest.OrderItem(nil); ok {
		t.Error("the order of no routings is an item")
	}
}

// The protobuf library's deterministic output is a second writer of the same bytes: it
// is no promise of theirs, but a good check of ours.
func TestCanonicalAgainstLibrary(t *testing.T) {
	text := rapid.StringN(0, 6, 40)
	texts := rapid.SliceOfN(text, 0, 3)
	u32 := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32())
	enum := rapid.Int32()
	rapid.Check(t, func(t *rapid.T) {
		same := func(what string, got []byte, m proto.Message) {
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("%s\n got %x\nwant %x", what, got, want)
			}
		}
		present := func(what string) bool { return rapid.Bool().Draw(t, what) }
		duration := func(what string) *durationpb.Duration {
			if !present("has " + what) {
				return nil
			}
			return &durationpb.Duration{Seconds: rapid.Int64().Draw(t, what), Nanos: enum.Draw(t, what+" nanos")}
		}
		stamp := func(what string) *timestamppb.Timestamp {
			if d := duration(what); d != nil {
				return &timestamppb.Timestamp{Seconds: d.Seconds, Nanos: d.Nanos}
			}
			return nil
		}
		p := &controlplanev1.Proxy{
			ProxyId: text.Draw(t, "id"), Upstream: text.Draw(t, "upstream"), Protocol: controlplanev1.Proxy_Protocol(enum.Draw(t, "protocol")),
			Host: text.Draw(t, "host"), Port: u32.Draw(t, "port"), SecretRef: text.Draw(t, "ref"), CredentialVersion: u32.Draw(t, "version"),
			Capacity: u32.Draw(t, "capacity"), ExpiresAt: stamp("expires"), UsableUntil: stamp("usable"), AssignmentEpoch: rapid.Uint64().Draw(t, "epoch"),
			Health: controlplanev1.Health(enum.Draw(t, "health")), DeniedRoutings: texts.Draw(t, "denied"), Labels: rapid.MapOfN(text, text, 0, 4).Draw(t, "labels"),
		}
		same("proxy", digest.AppendProxy(nil, p), p)
		c := &controlplanev1.Credential{SecretRef: text.Draw(t, "ref"), CredentialVersion: u32.Draw(t, "version"), Username: text.Draw(t, "user"), Password: text.Draw(t, "password")}
		same("credential", digest.AppendCredential(nil, c), c)
		r := &controlplanev1.Routing{
			Name: text.Draw(t, "name"), OnUnavailable: controlplanev1.OnUnavailable(enum.Draw(t, "unavailable")), WaitTimeout: duration("wait"),
			CheckTargets: texts.Draw(t, "targets"), Resolve: controlplanev1.Resolve(enum.Draw(t, "resolve")),
		}
		if present("match") {
			r.Match = &controlplanev1.RoutingMatch{Hosts: texts.Draw(t, "hosts"), Ports: rapid.SliceOfN(u32, 0, 3).Draw(t, "ports"), Clients: texts.Draw(t, "clients"), Methods: texts.Draw(t, "methods")}
		}
		for range rapid.IntRange(0, 2).Draw(t, "upstreams") {
			r.Upstreams = append(r.Upstreams, &controlplanev1.UpstreamRef{Name: text.Draw(t, "upstream"), Weight: u32.Draw(t, "weight"), Priority: u32.Draw(t, "priority")})
		}
		if present("plan") {
			r.Plan = &donav1.Plan{Strategy: text.Draw(t, "strategy"), Weights: rapid.MapOfN(text, u32, 0, 3).Draw(t, "weights")}
		}
		if present("policy") {
			r.TargetPolicy = &controlplanev1.TargetPolicy{AllowHosts: texts.Draw(t, "allow"), DenyHosts: texts.Draw(t, "deny"),
				AllowPorts: rapid.SliceOfN(u32, 0, 3).Draw(t, "ports"), AllowCidrs: texts.Draw(t, "cidrs"), DenyCidrs: texts.Draw(t, "denied cidrs"), AllowPrivate: present("private")}
		}
		if present("stickiness") {
			r.Stickiness = &controlplanev1.Stickiness{Mode: controlplanev1.Stickiness_Mode(enum.Draw(t, "mode")), Ttl: duration("ttl"), Idle: duration("idle")}
		}
		same("routing", digest.AppendRouting(nil, r), r)
	})
}

func BenchmarkOfSnapshot(b *testing.B) {
	s := snapshot()
	for i := range 1000 {
		p := proto.CloneOf(s.Proxies[0])
		p.ProxyId = "proxy-" + strconv.Itoa(i)
		s.Proxies = append(s.Proxies, p)
	}
	for b.Loop() {
		digest.OfSnapshot(s)
	}
}
