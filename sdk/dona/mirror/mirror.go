// Package mirror keeps a client's copy of a service's snapshot up to date: it
// checks each frame of a watch and applies it. The SDK calls it for every frame,
// and tests of the host to see what a client would hold.
//
// A [Snapshot] is immutable. [Full] makes one from a frame that carries all, and
// [Snapshot.Apply] the next one from a delta, at the cost of what changed (plus a
// copy of the lists' pointers): the items that went are subtracted from the sum of
// the checksum, those that came are added. So the checksum is verified after every
// delta as after every full frame, and a frame that does not fit leaves what was
// held as it is.
//
// The package is pure: no I/O, no goroutines. A Snapshot may be read concurrently.
package mirror

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// Snapshot is one version of a service's snapshot, verified.
type Snapshot struct {
	config *donav1.ConfigSnapshot
	tally  tally
}

// tally is what a checksum is made of.
type tally struct {
	sum   digest.Sum
	count uint64
}

func (t *tally) add(item [digest.Size]byte) {
	t.sum.Add(item)
	t.count++
}

func (t *tally) remove(item [digest.Size]byte) {
	t.sum.Remove(item)
	t.count--
}

// Config returns the snapshot as a full frame with its checksum, endpoints and
// flags sorted by the bytes of their names. It must not be changed.
func (s *Snapshot) Config() *donav1.ConfigSnapshot { return s.config }

// Version returns the version of the snapshot.
func (s *Snapshot) Version() uint64 { return s.config.GetVersion() }

// Checksum returns the checksum of the snapshot.
func (s *Snapshot) Checksum() [digest.Size]byte { return [digest.Size]byte(s.config.GetChecksum()) }

// Full makes a snapshot from a frame that carries all of it and takes the frame
// over: the caller must not use it any more. An error means that the frame's
// checksum is not that of its content.
func Full(f *donav1.ConfigSnapshot) (*Snapshot, error) {
	var t tally
	t.sum, t.count = digest.SumOfSnapshot(f)
	if err := t.verify(f); err != nil {
		return nil, err
	}
	f.Form = donav1.ConfigSnapshot_FORM_FULL
	sortBy(f.Endpoints, (*donav1.Endpoint).GetId)
	sortBy(f.Flags, (*donav1.FlagRule).GetFlag)
	names := map[string]string{}
	one := func(s *string) {
		kept, there := names[*s]
		if !there {
			names[*s], kept = *s, *s
		}
		*s = kept
	}
	for _, e := range f.Endpoints { // thousands share a few of these
		one(&e.Variant)
		one(&e.Region)
		one(&e.Zone)
	}
	return &Snapshot{config: f, tally: t}, nil
}

func (t *tally) verify(f *donav1.ConfigSnapshot) error {
	if sum := t.sum.Checksum(t.count); !bytes.Equal(sum[:], f.GetChecksum()) {
		return fmt.Errorf("checksum of version %d is %x, announced was %.32x", f.GetVersion(), sum, f.GetChecksum())
	}
	return nil
}

func sortBy[M any](list []M, id func(M) string) {
	byID := func(a, b M) int { return cmp.Compare(id(a), id(b)) }
	if !slices.IsSortedFunc(list, byID) {
		slices.SortStableFunc(list, byID)
	}
}

// Apply returns the snapshot that a delta turns s into, and takes the frame over.
// s stays as it is, and is all there is when there is an error: the delta is of
// another service or base, contradicts itself or what is held, or does not come to
// its checksum. Then only a full frame helps.
func (s *Snapshot) Apply(f *donav1.ConfigSnapshot) (*Snapshot, error) {
	old := s.config
	switch {
	case f.GetForm() != donav1.ConfigSnapshot_FORM_DELTA:
		return nil, fmt.Errorf("form is %s, not FORM_DELTA", f.GetForm())
	case f.GetService() != old.GetService():
		return nil, fmt.Errorf("delta is of service %.80q, held is %s", f.GetService(), old.GetService())
	case f.GetBaseVersion() != old.GetVersion():
		return nil, fmt.Errorf("delta to version %d is against version %d, held is %d", f.GetVersion(), f.GetBaseVersion(), old.GetVersion())
	case f.GetVersion() <= old.GetVersion():
		return nil, fmt.Errorf("delta leads from version %d to %d, which is not newer", old.GetVersion(), f.GetVersion())
	}
	t := s.tally
	next := &donav1.ConfigSnapshot{
		Service: old.GetService(), Version: f.GetVersion(), Checksum: f.GetChecksum(), Form: donav1.ConfigSnapshot_FORM_FULL,
		Weights: old.GetWeights(), Residency: old.GetResidency(), Plan: old.GetPlan(), QuarantinedVariants: old.GetQuarantinedVariants(),
	}
	var err error
	next.Endpoints, err = edit(old.GetEndpoints(), f.GetEndpoints(), f.GetRemovedEndpoints(), kind[*donav1.Endpoint]{
		"endpoint", (*donav1.Endpoint).GetId, digest.EndpointItem, share}, &t)
	if err != nil {
		return nil, err
	}
	next.Flags, err = edit(old.GetFlags(), f.GetFlags(), f.GetRemovedFlags(), kind[*donav1.FlagRule]{
		"flag", (*donav1.FlagRule).GetFlag, digest.FlagItem, nil}, &t)
	if err != nil {
		return nil, err
	}
	if err := replace(next, f, &t); err != nil {
		return nil, err
	}
	if err := t.verify(f); err != nil {
		return nil, err
	}
	return &Snapshot{config: next, tally: t}, nil
}

// share lets an endpoint that takes another's place use its strings.
func share(old, e *donav1.Endpoint) {
	for _, s := range []struct{ old, new *string }{
		{&old.Id, &e.Id}, {&old.Address, &e.Address}, {&old.Variant, &e.Variant}, {&old.Region, &e.Region}, {&old.Zone, &e.Zone},
	} {
		if *s.old == *s.new {
			*s.new = *s.old
		}
	}
}

// replace takes over the lists that the frame carries whole, the empty ones too.
func replace(next, f *donav1.ConfigSnapshot, t *tally) error {
	named := map[donav1.ConfigSnapshot_Section]bool{}
	for _, section := range f.GetReplaced() {
		switch section {
		case donav1.ConfigSnapshot_SECTION_WEIGHTS, donav1.ConfigSnapshot_SECTION_RESIDENCY,
			donav1.ConfigSnapshot_SECTION_PLAN, donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS:
		default:
			return fmt.Errorf("delta replaces section %s (%d): this client knows no such section", section, section)
		}
		named[section] = true
	}
	for _, s := range []struct {
		section donav1.ConfigSnapshot_Section
		there   bool
		take    func()
	}{
		{donav1.ConfigSnapshot_SECTION_WEIGHTS, len(f.GetWeights()) > 0, func() { next.Weights = f.GetWeights() }},
		{donav1.ConfigSnapshot_SECTION_RESIDENCY, f.GetResidency() != nil, func() { next.Residency = f.GetResidency() }},
		{donav1.ConfigSnapshot_SECTION_PLAN, f.GetPlan() != nil, func() { next.Plan = f.GetPlan() }},
		{donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS, len(f.GetQuarantinedVariants()) > 0,
			func() { next.QuarantinedVariants = f.GetQuarantinedVariants() }},
	} {
		switch {
		case !named[s.section] && s.there:
			return fmt.Errorf("delta carries %s and does not say that it replaces what is held", s.section)
		case named[s.section]:
			each(next, s.section, t.remove)
			s.take()
			each(next, s.section, t.add)
		}
	}
	return nil
}

// each calls do with the item hashes of one section.
func each(c *donav1.ConfigSnapshot, section donav1.ConfigSnapshot_Section, do func([digest.Size]byte)) {
	switch section {
	case donav1.ConfigSnapshot_SECTION_WEIGHTS:
		for i, w := range c.GetWeights() {
			do(digest.WeightItem(uint32(i), w))
		}
	case donav1.ConfigSnapshot_SECTION_RESIDENCY:
		if item, ok := digest.ResidencyItem(c.GetResidency()); ok {
			do(item)
		}
	case donav1.ConfigSnapshot_SECTION_PLAN:
		if item, ok := digest.PlanItem(c.GetPlan()); ok {
			do(item)
		}
	case donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS:
		for _, v := range c.GetQuarantinedVariants() {
			do(digest.QuarantinedItem(v))
		}
	}
}

// kind is what edit needs to know of a kind of item.
type kind[M any] struct {
	name  string
	id    func(M) string
	hash  func(M) [digest.Size]byte
	share func(old, next M) // may be nil
}

// edit returns a sorted list with some items put in or in the place of others and
// some removed. It looks for the places and copies what lies between as it is.
func edit[M any](list, put []M, removed []string, k kind[M], t *tally) ([]M, error) {
	if len(put) == 0 && len(removed) == 0 {
		return list, nil
	}
	sortBy(put, k.id)
	slices.Sort(removed)
	out := make([]M, 0, len(list)+len(put))
	for last := (*string)(nil); len(put) > 0 || len(removed) > 0; {
		gone := len(put) == 0 || len(removed) > 0 && removed[0] <= k.id(put[0])
		var id string
		if gone {
			id = removed[0]
		} else {
			id = k.id(put[0])
		}
		if last != nil && *last == id {
			return nil, fmt.Errorf("delta names %s %.80q twice", k.name, id)
		}
		last = &id
		at, held := slices.BinarySearchFunc(list, id, func(m M, id string) int { return cmp.Compare(k.id(m), id) })
		out = append(out, list[:at]...)
		if held {
			t.remove(k.hash(list[at]))
		}
		switch {
		case gone && !held:
			return nil, fmt.Errorf("delta removes %s %.80q, which is not held", k.name, id)
		case gone:
			removed = removed[1:]
		default:
			if held && k.share != nil {
				k.share(list[at], put[0])
			}
			t.add(k.hash(put[0]))
			out = append(out, put[0])
			put = put[1:]
		}
		list = list[at:]
		if held {
			list = list[1:]
		}
	}
	return append(out, list...), nil
}
