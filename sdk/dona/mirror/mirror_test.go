package mirror_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// full returns a config as a full frame of its own, sorted, with its checksum.
func full(c *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
	f := proto.CloneOf(c)
	f.Form = donav1.ConfigSnapshot_FORM_FULL
	slices.SortFunc(f.Endpoints, func(a, b *donav1.Endpoint) int { return cmp.Compare(a.Id, b.Id) })
	slices.SortFunc(f.Flags, func(a, b *donav1.FlagRule) int { return cmp.Compare(a.Flag, b.Flag) })
	sum := digest.OfSnapshot(f)
	f.Checksum = sum[:]
	return f
}

// diff makes a delta the plain way: by looking every item up.
func diff(from, to *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
	from, to = full(from), full(to)
	d := &donav1.ConfigSnapshot{Service: to.Service, Version: to.Version, Checksum: to.Checksum,
		Form: donav1.ConfigSnapshot_FORM_DELTA, BaseVersion: from.Version}
	d.Endpoints, d.RemovedEndpoints = lookup(from.Endpoints, to.Endpoints, (*donav1.Endpoint).GetId)
	d.Flags, d.RemovedFlags = lookup(from.Flags, to.Flags, (*donav1.FlagRule).GetFlag)
	section := func(s donav1.ConfigSnapshot_Section, part func(*donav1.ConfigSnapshot) *donav1.ConfigSnapshot) {
		if !proto.Equal(part(from), part(to)) {
			d.Replaced = append(d.Replaced, s)
			proto.Merge(d, part(to))
		}
	}
	section(donav1.ConfigSnapshot_SECTION_WEIGHTS, func(c *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
		return &donav1.ConfigSnapshot{Weights: c.Weights}
	})
	section(donav1.ConfigSnapshot_SECTION_RESIDENCY, func(c *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
		return &donav1.ConfigSnapshot{Residency: c.Residency}
	})
	section(donav1.ConfigSnapshot_SECTION_PLAN, func(c *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
		return &donav1.ConfigSnapshot{Plan: c.Plan}
	})
	section(donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS, func(c *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
		return &donav1.ConfigSnapshot{QuarantinedVariants: c.QuarantinedVariants}
	})
	return d
}

func lookup[M proto.Message](from, to []M, id func(M) string) (put []M, removed []string) {
	old := map[string]M{}
	for _, m := range from {
		old[id(m)] = m
	}
	for _, m := range to {
		if was, there := old[id(m)]; !there || !proto.Equal(was, m) {
			put = append(put, m)
		}
		delete(old, id(m))
	}
	return put, slices.Sorted(maps.Keys(old))
}

// config draws a whole snapshot out of few names, so that histories meet the same
// ones again.
func config(t *rapid.T, version uint64) *donav1.ConfigSnapshot {
	c := &donav1.ConfigSnapshot{Service: "web", Version: version}
	small := func(label string, n uint32) uint32 { return rapid.Uint32Range(0, n).Draw(t, label) }
	for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, 7), rapid.ID).Draw(t, "endpoints") {
		c.Endpoints = append(c.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Address: fmt.Sprint("10.0.0.1:", 1+small("port", 1)),
			Variant: fmt.Sprint("v", small("variant", 1)), Region: []string{"", "eu"}[small("region", 1)], LbWeight: 50 * small("weight", 2)})
	}
	for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, 4), rapid.ID).Draw(t, "flags") {
		f := &donav1.FlagRule{Flag: fmt.Sprint("f", i), Service: "web", RolloutPercent: small("percent", 1), Version: uint64(small("flag version", 1))}
		for range small("rules", 2) {
			f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: "a", Values: []string{"x"}, Variant: "v1"})
		}
		c.Flags = append(c.Flags, f)
	}
	for i := range small("weights", 2) {
		c.Weights = append(c.Weights, &donav1.VariantWeight{Variant: fmt.Sprint("v", i), Weight: small("share", 1)})
	}
	if small("residency", 1) == 1 {
		c.Residency = &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "us"}[:small("regions", 2)]}
	}
	if small("plan", 1) == 1 {
		c.Plan = &donav1.Plan{Generation: uint64(small("generation", 1)), Weights: map[string]uint32{"e1": small("plan weight", 2), "e2": 1}}
	}
	c.QuarantinedVariants = []string{"v0", "v1"}[:small("quarantined", 2)]
	return c
}

// TestHistories: after any history of deltas a client holds what a full frame of
// the last version carries, and what it held before stays as it was.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := config(t, 1)
		held, err := mirror.Full(full(last))
		if err != nil {
			t.Fatal(err)
		}
		for version := uint64(2); version < uint64(rapid.IntRange(3, 12).Draw(t, "versions")); version++ {
			next := config(t, version)
			before := proto.CloneOf(held.Config())
			after, err := held.Apply(diff(last, next))
			if err != nil {
				t.Fatalf("version %d: %v", version, err)
			}
			if want := full(next); !proto.Equal(after.Config(), want) {
				t.Fatalf("the delta gives\n%v, the full frame is\n%v", after.Config(), want)
			}
			if !proto.Equal(held.Config(), before) {
				t.Fatalf("the delta changed what was held:\n%v, it was\n%v", held.Config(), before)
			}
			last, held = next, after
		}
	})
}

func example(version uint64, change func(*donav1.ConfigSnapshot)) *donav1.ConfigSnapshot {
	c := &donav1.ConfigSnapshot{Service: "web", Version: version,
		Endpoints: []*donav1.Endpoint{
			{Id: "a", Address: "10.0.0.1:80", Variant: "v1", LbWeight: 100},
			{Id: "b", Address: "10.0.0.2:80", Variant: "v2", LbWeight: 100}},
		Weights:             []*donav1.VariantWeight{{Variant: "v2", Weight: 10}, {Variant: "v1", Weight: 90}},
		Flags:               []*donav1.FlagRule{{Flag: "f", Service: "web", RolloutPercent: 5, RolloutVariant: "v2"}},
		Residency:           &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}},
		Plan:                &donav1.Plan{Strategy: "least-connections"},
		QuarantinedVariants: []string{"v3"},
	}
	if change != nil {
		change(c)
	}
	return c
}

// A list that became empty is not the same as one that did not change.
func TestListsThatBecameEmpty(t *testing.T) {
	for name, empty := range map[string]func(*donav1.ConfigSnapshot){
		"endpoints":  func(c *donav1.ConfigSnapshot) { c.Endpoints = nil },
		"flags":      func(c *donav1.ConfigSnapshot) { c.Flags = nil },
		"weights":    func(c *donav1.ConfigSnapshot) { c.Weights = nil },
		"residency":  func(c *donav1.ConfigSnapshot) { c.Residency = nil },
		"plan":       func(c *donav1.ConfigSnapshot) { c.Plan = nil },
		"quarantine": func(c *donav1.ConfigSnapshot) { c.QuarantinedVariants = nil },
		"everything": func(c *donav1.ConfigSnapshot) {
			service, version := c.Service, c.Version
			proto.Reset(c)
			c.Service, c.Version = service, version
		},
	} {
		t.Run(name, func(t *testing.T) {
			held, err := mirror.Full(full(example(1, nil)))
			if err != nil {
				t.Fatal(err)
			}
			gone := example(2, empty)
			d := diff(example(1, nil), gone)
			if held, err = held.Apply(d); err != nil {
				t.Fatal(err)
			}
			if want := full(gone); !proto.Equal(held.Config(), want) {
				t.Fatalf("held is %v, want %v", held.Config(), want)
			}
			if held, err = held.Apply(diff(gone, example(3, nil))); err != nil {
				t.Fatal(err)
			}
			if want := full(example(3, nil)); !proto.Equal(held.Config(), want) {
				t.Errorf("and back is %v, want %v", held.Config(), want)
			}
		})
	}
}

// TestFaults loses, repeats and swaps deltas of a history at every place.
func TestFaults(t *testing.T) {
	const last = 6
	version := func(v uint64) *donav1.ConfigSnapshot {
		return example(v, func(c *donav1.ConfigSnapshot) {
			c.Endpoints[v%2].LbWeight = uint32(v)
			c.Weights[0].Weight, c.Weights[1].Weight = uint32(v), uint32(100-v)
		})
	}
	for at := uint64(2); at <= last; at++ {
		for name, order := range map[string][]uint64{"lost": {}, "repeated": {at, at}, "swapped": {at + 1, at}} {
			if at == last && name != "repeated" {
				continue
			}
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				held, err := mirror.Full(full(version(1)))
				if err != nil {
					t.Fatal(err)
				}
				var sent []uint64
				for v := uint64(2); v <= last; v++ {
					if v == at {
						sent = append(sent, order...)
						if name == "swapped" {
							v++
						}
						continue
					}
					sent = append(sent, v)
				}
				refused := 0
				for _, v := range sent {
					next, err := held.Apply(diff(version(v-1), version(v)))
					if err != nil {
						refused++
						if held, err = mirror.Full(full(version(v))); err != nil { // it asks for the whole
							t.Fatal(err)
						}
						continue
					}
					held = next
					if want := full(version(v)); !proto.Equal(held.Config(), want) {
						t.Fatalf("at %d it holds %v, want %v", v, held.Config(), want)
					}
				}
				if refused == 0 {
					t.Error("nothing was refused")
				}
			})
		}
	}
}

func TestRefusedDeltas(t *testing.T) {
	for want, change := range map[string]func(*donav1.ConfigSnapshot){
		"form is FORM_FULL":           func(d *donav1.ConfigSnapshot) { d.Form = donav1.ConfigSnapshot_FORM_FULL },
		"is of service":               func(d *donav1.ConfigSnapshot) { d.Service = "other" },
		"against version 7, held is":  func(d *donav1.ConfigSnapshot) { d.BaseVersion = 7 },
		"which is not newer":          func(d *donav1.ConfigSnapshot) { d.Version = 1 },
		"checksum of version 2":       func(d *donav1.ConfigSnapshot) { d.Checksum[3] ^= 1 },
		"announced was ":              func(d *donav1.ConfigSnapshot) { d.Checksum = nil },
		"checksum of version 2 is":    func(d *donav1.ConfigSnapshot) { d.Endpoints[0].Address = "10.6.6.6:80" },
		`removes endpoint "x"`:        func(d *donav1.ConfigSnapshot) { d.RemovedEndpoints = []string{"x"} },
		`names endpoint "a" twice`:    func(d *donav1.ConfigSnapshot) { d.Endpoints = append(d.Endpoints, d.Endpoints[0]) },
		`endpoint "a" twice`:          func(d *donav1.ConfigSnapshot) { d.RemovedEndpoints = []string{"a"} },
		`names flag "f" twice`:        func(d *donav1.ConfigSnapshot) { d.RemovedFlags = []string{"f", "f"} },
		`removes flag "g"`:            func(d *donav1.ConfigSnapshot) { d.RemovedFlags = []string{"g"} },
		"carries SECTION_WEIGHTS and": func(d *donav1.ConfigSnapshot) { d.Weights = example(1, nil).Weights },
		"section 9 (9)":               func(d *donav1.ConfigSnapshot) { d.Replaced = append(d.Replaced, 9) },
		"SECTION_UNSPECIFIED":         func(d *donav1.ConfigSnapshot) { d.Replaced = append(d.Replaced, 0) },
	} {
		held, err := mirror.Full(full(example(1, nil)))
		if err != nil {
			t.Fatal(err)
		}
		d := diff(example(1, nil), example(2, func(c *donav1.ConfigSnapshot) { c.Endpoints[0].LbWeight = 50 }))
		change(d)
		if next, err := held.Apply(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v, %v", want, next, err)
		}
		if !proto.Equal(held.Config(), full(example(1, nil))) {
			t.Errorf("%s: what was held changed", want)
		}
	}
}

func TestFullIsVerified(t *testing.T) {
	bad := full(example(1, nil))
	bad.Flags[0].RolloutPercent = 100
	if _, err := mirror.Full(bad); err == nil || !strings.Contains(err.Error(), "checksum of version 1") {
		t.Errorf("a full frame that does not fit its checksum: %v", err)
	}
	mixed := full(example(1, nil))
	slices.Reverse(mixed.Endpoints)
	held, err := mirror.Full(mixed)
	if err != nil || !proto.Equal(held.Config(), full(example(1, nil))) {
		t.Errorf("a full frame in another order: %v, %v", held.Config(), err)
	}
}

// FuzzApply gives any delta to a client: it never breaks what is held, and what it
// accepts is what a plain reading of the delta gives.
func FuzzApply(f *testing.F) {
	for _, change := range []func(*donav1.ConfigSnapshot){
		func(c *donav1.ConfigSnapshot) { c.Endpoints = c.Endpoints[1:] },
		func(c *donav1.ConfigSnapshot) { c.Endpoints[0].LbWeight, c.Weights = 0, nil },
		func(c *donav1.ConfigSnapshot) { c.Flags, c.Residency = nil, nil },
		func(c *donav1.ConfigSnapshot) {
			c.Plan, c.QuarantinedVariants = nil, append(c.QuarantinedVariants, "v4")
		},
	} {
		b, err := proto.Marshal(diff(example(1, nil), example(2, change)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, honest bool) {
		var d donav1.ConfigSnapshot
		if proto.Unmarshal(data, &d) != nil {
			return
		}
		held, err := mirror.Full(full(example(1, nil)))
		if err != nil {
			t.Fatal(err)
		}
		want := plain(held.Config(), &d)
		if honest { // its checksum fits, so that what else is wrong shows
			d.Service, d.Form, d.BaseVersion, d.Version = "web", donav1.ConfigSnapshot_FORM_DELTA, 1, max(d.Version, 2)
			sum := digest.OfSnapshot(want)
			d.Checksum = sum[:]
		}
		next, err := held.Apply(proto.CloneOf(&d))
		if !proto.Equal(held.Config(), full(example(1, nil))) {
			t.Fatalf("what was held changed to %v", held.Config())
		}
		if err != nil {
			return
		}
		sum := digest.OfSnapshot(next.Config())
		if next.Checksum() != sum || !slices.Equal(d.Checksum, sum[:]) || next.Version() != d.Version {
			t.Fatalf("accepted with a checksum that is not its content's: %v", next.Config())
		}
		want.Version, want.Checksum, want.Form = d.Version, d.Checksum, donav1.ConfigSnapshot_FORM_FULL
		if got := next.Config(); !proto.Equal(got, want) {
			t.Fatalf("accepted\n%v as\n%v, want\n%v", &d, got, want)
		}
	})
}

// plain reads a delta with maps.
func plain(held, d *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
	c := &donav1.ConfigSnapshot{Service: held.Service, Weights: held.Weights, Residency: held.Residency,
		Plan: held.Plan, QuarantinedVariants: held.QuarantinedVariants}
	endpoints, flags := map[string]*donav1.Endpoint{}, map[string]*donav1.FlagRule{}
	for _, e := range append(slices.Clone(held.Endpoints), d.Endpoints...) {
		endpoints[e.Id] = e
	}
	for _, f := range append(slices.Clone(held.Flags), d.Flags...) {
		flags[f.Flag] = f
	}
	for _, id := range d.RemovedEndpoints {
		delete(endpoints, id)
	}
	for _, key := range d.RemovedFlags {
		delete(flags, key)
	}
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		c.Endpoints = append(c.Endpoints, endpoints[id])
	}
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		c.Flags = append(c.Flags, flags[key])
	}
	for _, s := range d.Replaced {
		switch s {
		case donav1.ConfigSnapshot_SECTION_WEIGHTS:
			c.Weights = d.Weights
		case donav1.ConfigSnapshot_SECTION_RESIDENCY:
			c.Residency = d.Residency
		case donav1.ConfigSnapshot_SECTION_PLAN:
			c.Plan = d.Plan
		case donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS:
			c.QuarantinedVariants = d.QuarantinedVariants
		}
	}
	return c
}

func many(n int, version uint64) *donav1.ConfigSnapshot {
	c := &donav1.ConfigSnapshot{Service: "web", Version: version}
	for i := range n {
		c.Endpoints = append(c.Endpoints, &donav1.Endpoint{Id: fmt.Sprintf("e%05d", i), Address: "10.0.0.1:80", Variant: "v1", Region: "eu", LbWeight: 100})
	}
	c.Endpoints[n/2].LbWeight = uint32(version)
	return c
}

// The cost of a delta is that of the change: allocations do not grow with what is
// held.
func TestApplyCostsTheChange(t *testing.T) {
	allocs := func(n int) float64 {
		held, err := mirror.Full(full(many(n, 1)))
		if err != nil {
			t.Fatal(err)
		}
		d := diff(many(n, 1), many(n, 2))
		return testing.AllocsPerRun(20, func() {
			if _, err := held.Apply(d); err != nil {
				t.Fatal(err)
			}
		})
	}
	small, large := allocs(10), allocs(5000)
	t.Logf("%v allocations at 10 endpoints, %v at 5,000", small, large)
	if large > small+2 {
		t.Errorf("a delta of one endpoint allocates %v times at 5,000 endpoints and %v at 10", large, small)
	}
}

func BenchmarkApply(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint("delta/endpoints=", n), func(b *testing.B) {
			held, err := mirror.Full(full(many(n, 1)))
			if err != nil {
				b.Fatal(err)
			}
			d := diff(many(n, 1), many(n, 2))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := held.Apply(d); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("full/endpoints=", n), func(b *testing.B) {
			f := full(many(n, 2))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := mirror.Full(f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
