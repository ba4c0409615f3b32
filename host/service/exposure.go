package service

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

const (
	exposureSeconds = 60   // how far back the window of the status looks
	maxTallies      = 64   // of one flag, those of the newest versions
	maxShown        = 1000 // rows of one status, the largest
	maxChained      = 100  // of one entry, the largest
)

func exposureIndex(service string) string     { return "exp/" + service }
func exposureKey(service, flag string) string { return "exp/" + service + "/" + flag }

// seen is what a request saw of a flag: that it was looked at, never by whom.
type seen struct {
	flag, variant string
	reason        donav1.Reason
	version       uint64
}

func compareSeen(a, b seen) int {
	return cmp.Or(cmp.Compare(a.flag, b.flag), cmp.Compare(a.variant, b.variant),
		cmp.Compare(a.reason, b.reason), cmp.Compare(a.version, b.version))
}

// sighting is one exposure of a batch, to the second.
type sighting struct {
	seen
	second int64
}

// exposures counts what requests saw of flags: into the window of the status, and
// chained as one entry a service and batch.
func (t *taking) exposures(exposures []*donav1.Exposure, services map[string]bool) error {
	counts := map[string]map[sighting]uint64{}
	for _, e := range exposures {
		head, err := t.head(e.GetService())
		if err != nil {
			return err
		}
		if head == nil || !t.current(e.UnixMs) || limits.Name(e.Flag) != nil || limits.OptionalName(e.Variant) != nil ||
			donav1.Reason_name[int32(e.Reason)] == "" || len(e.UnitDigest) > limits.UnitDigestLen {
			t.dropped++
			continue
		}
		if broken, err := t.chainBroken(e.Service); err != nil {
			return err
		} else if broken {
			t.dropped++
			continue
		}
		if counts[e.Service] == nil {
			counts[e.Service] = map[sighting]uint64{}
		}
		counts[e.Service][sighting{seen{e.Flag, e.Variant, e.Reason, e.ConfigVersion}, e.UnixMs / 1000}]++
		services[e.Service] = true
	}
	for _, service := range slices.Sorted(maps.Keys(counts)) {
		if err := t.addToWindow(service, counts[service]); err != nil {
			return err
		}
		sums := map[seen]uint64{}
		for s, n := range counts[service] {
			sums[s.seen] += n
		}
		if err := t.plane.audit.Append(t.tx, service, audit.Entry{Kind: "flag.exposure", Actor: t.by.Actor, Detail: exposureDetail(sums)}); err != nil {
			return err
		}
	}
	return nil
}

// exposureDetail writes counts as columns: the n-th value of each list belongs to
// the n-th tuple. What is not among the largest is summed up.
func exposureDetail(sums map[seen]uint64) map[string]string {
	rows, others := largest(sums, maxChained, compareSeen)
	var flags, variants, reasons, versions, counts []string
	for _, s := range rows {
		flags, variants = append(flags, s.flag), append(variants, s.variant)
		reasons = append(reasons, word(s.reason.String(), "REASON_"))
		versions = append(versions, strconv.FormatUint(s.version, 10))
		counts = append(counts, strconv.FormatUint(sums[s], 10))
	}
	d := map[string]string{
		"flag": audit.Value(flags), "variant": audit.Value(variants), "reason": audit.Value(reasons),
		"config_version": audit.Value(versions), "count": audit.Value(counts),
	}
	if len(others) > 0 {
		var sum uint64
		for _, s := range others {
			sum += sums[s]
		}
		d["others"], d["others_count"] = strconv.Itoa(len(others)), strconv.FormatUint(sum, 10)
	}
	return d
}

// largest returns the keys with the n largest counts, sorted, and the others.
// Equal counts are told apart by the order of their keys.
func largest[K comparable](counts map[K]uint64, n int, compare func(a, b K) int) (keys, others []K) {
	keys = slices.SortedFunc(maps.Keys(counts), func(a, b K) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), compare(a, b))
	})
	if len(keys) > n {
		keys, others = keys[:n], keys[n:]
	}
	slices.SortFunc(keys, compare)
	return keys, others
}

// addToWindow adds the exposures of the last minute to the records of their flags.
// A flag that is not there has none, so there are no more records than flags.
func (t *taking) addToWindow(service string, counts map[sighting]uint64) error {
	oldest := t.wall.Unix() - exposureSeconds
	byFlag := map[string][]sighting{}
	for s := range counts {
		if s.second > oldest {
			byFlag[s.flag] = append(byFlag[s.flag], s)
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(byFlag)) {
		rec, err := t.tx.Get(flagKey(service, flag))
		if err != nil {
			return err
		}
		if !rec.Exists() {
			continue
		}
		key := exposureKey(service, flag)
		var w statev1.ExposureWindow
		if _, err := loadDerived(t.tx, key, &w); err != nil {
			return err
		}
		newest := t.wall.Unix()
		for _, s := range byFlag[flag] {
			addAt(tally(&w, s.seen), s.second, counts[s])
			newest = max(newest, s.second)
		}
		trim(&w, oldest)
		if err := t.tx.IndexPut(exposureIndex(service), flag, uint64(newest)); err != nil {
			return err
		}
		if err := store.Save(t.tx, key, &w); err != nil {
			return err
		}
	}
	return nil
}

// tally returns the row of what was seen, making it when needed.
func tally(w *statev1.ExposureWindow, s seen) *statev1.ExposureTally {
	at, found := slices.BinarySearchFunc(w.Tallies, s, func(t *statev1.ExposureTally, s seen) int {
		return compareSeen(seen{s.flag, t.Variant, t.Reason, t.ConfigVersion}, s)
	})
	if !found {
		w.Tallies = slices.Insert(w.Tallies, at, &statev1.ExposureTally{Variant: s.variant, Reason: s.reason, ConfigVersion: s.version})
	}
	return w.Tallies[at]
}

func addAt(t *statev1.ExposureTally, second int64, n uint64) {
	at, found := slices.BinarySearch(t.Seconds, second)
	if !found {
		t.Seconds, t.Counts = slices.Insert(t.Seconds, at, second), slices.Insert(t.Counts, at, 0)
	}
	t.Counts[at] += n
}

// trim drops what is past, and of more rows than may be kept those of the oldest
// versions.
func trim(w *statev1.ExposureWindow, oldest int64) {
	for _, t := range w.Tallies {
		past, _ := slices.BinarySearch(t.Seconds, oldest+1)
		t.Seconds, t.Counts = t.Seconds[past:], t.Counts[past:]
	}
	w.Tallies = slices.DeleteFunc(w.Tallies, func(t *statev1.ExposureTally) bool { return len(t.Seconds) == 0 })
	if len(w.Tallies) <= maxTallies {
		return
	}
	inOrder := func(a, b *statev1.ExposureTally) int {
		return compareSeen(seen{"", a.Variant, a.Reason, a.ConfigVersion}, seen{"", b.Variant, b.Reason, b.ConfigVersion})
	}
	slices.SortFunc(w.Tallies, func(a, b *statev1.ExposureTally) int {
		return cmp.Or(cmp.Compare(b.ConfigVersion, a.ConfigVersion), inOrder(a, b))
	})
	w.Tallies = w.Tallies[:maxTallies]
	slices.SortFunc(w.Tallies, inOrder)
}

// forgetExposures drops what was counted of a flag that goes.
func forgetExposures(tx store.Tx, service, flag string) error {
	if err := tx.IndexDelete(exposureIndex(service), flag); err != nil {
		return err
	}
	return tx.Delete(exposureKey(service, flag))
}

// Exposures sums up the last minute of every flag of a service, sorted by flag,
// variant, reason and version; the 1,000 largest rows. wall is the host's wall
// clock.
func (p *Plane) Exposures(tx store.ReadTx, service string, wall time.Time) ([]*donav1.ExposureCount, error) {
	oldest := wall.Unix() - exposureSeconds
	flags, err := tx.Scan(exposureIndex(service), uint64(max(oldest, 0))+1, store.MaxScore, 0)
	if err != nil || len(flags) == 0 {
		return nil, err
	}
	if err := store.Fetch(tx, flags, func(flag string) string { return exposureKey(service, flag) }); err != nil {
		return nil, err
	}
	sums := map[seen]uint64{}
	for _, f := range flags {
		var w statev1.ExposureWindow
		_, err := store.Load(tx, exposureKey(service, f.Member), &w)
		if errors.Is(err, store.ErrDamaged) {
			continue // a minute's counts of one flag
		}
		if err != nil {
			return nil, err
		}
		for _, t := range w.Tallies {
			for i, second := range t.Seconds {
				if second > oldest {
					sums[seen{f.Member, t.Variant, t.Reason, t.ConfigVersion}] += t.Counts[i]
				}
			}
		}
	}
	rows, _ := largest(sums, maxShown, compareSeen)
	out := make([]*donav1.ExposureCount, 0, len(rows))
	for _, s := range rows {
		out = append(out, &donav1.ExposureCount{Flag: s.flag, Variant: s.variant, Reason: s.reason, ConfigVersion: s.version, Count: sums[s]})
	}
	return out, nil
}
