package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/store"
)

// Upstreams lists the upstreams that ever had a proxy.
func Upstreams(tx store.ReadTx) ([]string, error) {
	entries, err := tx.Scan(upstreamsIndex, 0, 0, 0)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Member
	}
	return names, err
}

// VerifyUpstream reads the proxies of an upstream, and says what does not hold: records
// that do not parse, a proxy that is owned in a way that must not be, an index that would
// hide one. records counts those that parse.
func VerifyUpstream(tx store.ReadTx, upstream string) (records int, problems []string, err error) {
	v := newVerifier(tx)
	entries := v.scan(proxiesIndex(upstream))
	if err := store.Fetch(tx, entries, proxyKey, healthKey); err != nil {
		return 0, nil, err
	}
	refs := map[string]bool{}
	for _, e := range entries {
		p := new(statev1.ProxyState)
		if !v.read(proxyKey(e.Member), p) {
			continue // the index is a hint
		}
		v.read(healthKey(e.Member), new(statev1.ProxyHealth))
		v.proxy(e.Member, upstream, p)
		if p.SecretRef != "" {
			refs[p.SecretRef] = true
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		v.read(credentialKey(ref), new(statev1.CredentialVersion))
	}
	v.read(shortfallKey(upstream), new(statev1.Shortfall))
	return v.records, v.problems, v.err
}

// Verify reads the rest of the records: the configuration, workers, drains and
// extractions.
func Verify(tx store.ReadTx) (records int, problems []string, err error) {
	v := newVerifier(tx)
	state := new(statev1.PoolConfig)
	if v.read(configKey, state) && state.Yaml != "" {
		if have, err := poolconfig.Parse(documentName, state.Yaml); err != nil {
			v.problem("record %s: the published configuration does not parse any more: %v", configKey, err)
		} else {
			for _, r := range have.Routings {
				v.read(planKey(r.Name), new(statev1.PlanState))
				v.read(planningKey(r.Name), new(statev1.Planning))
			}
		}
	}
	epoch := new(statev1.PoolEpoch)
	v.read(epochKey, epoch)
	for _, e := range v.scan(workersIndex) {
		v.worker(e.Member, epoch.OwnershipEpoch)
	}
	for _, e := range v.scan(extractionsIndex) {
		x := new(statev1.Extraction)
		if !v.read(extractionKey(e.Member), x) {
			continue
		}
		if !v.read(answerKey(x.Key), new(statev1.ExtractionKey)) {
			v.problem("extraction %s is not found by its idempotency key any more", x.Id)
		}
	}
	return v.records, v.problems, v.err
}

// verifier reads on after what does not parse, and not after an error of the store.
type verifier struct {
	tx       store.ReadTx
	records  int
	problems []string
	err      error

	indexes map[string]map[string]uint64 // that were read; nil = too large to judge by
	workers map[string]bool              // whether they are there
}

func newVerifier(tx store.ReadTx) *verifier {
	return &verifier{tx: tx, indexes: map[string]map[string]uint64{}, workers: map[string]bool{}}
}

func (v *verifier) problem(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

func (v *verifier) scan(index string) []store.Entry {
	entries, err := v.tx.Scan(index, 0, store.MaxScore, 0)
	v.err = errors.Join(v.err, err)
	return entries
}

// read reports whether a record is there and parses.
func (v *verifier) read(key string, m proto.Message) bool {
	version, err := store.Load(v.tx, key, m)
	switch {
	case errors.Is(err, store.ErrDamaged):
		v.problem("record %s does not parse as %s", key, m.ProtoReflect().Descriptor().FullName())
		return false
	case err != nil:
		v.err = errors.Join(v.err, err)
		return false
	case version == 0:
		return false
	}
	v.records++
	return true
}

// proxy judges one proxy.
func (v *verifier) proxy(id, upstream string, p *statev1.ProxyState) {
	if p.Id != id || p.Upstream != upstream {
		v.problem("record %s is of proxy %s of upstream %s", proxyKey(id), p.Id, p.Upstream)
		return
	}
	switch {
	case p.Owner != "" && p.Holder != "":
		v.problem("proxy %s is owned by %s, and may still be used by %s", id, p.Owner, p.Holder)
	case p.State == ownership.Extracted && (p.Owner != "" || p.Holder != ""):
		v.problem("proxy %s is extracted, and worker %s has it too", id, p.Owner+p.Holder)
	case p.State == ownership.Extracted && p.ExtractionId == "":
		v.problem("proxy %s is extracted by nobody", id)
	case p.State == ownership.Expired && p.Owner != "":
		v.problem("proxy %s has expired and is still owned by %s", id, p.Owner)
	}
	for _, worker := range []string{p.Owner, p.Holder} {
		if worker != "" && !v.known(worker) {
			v.problem("proxy %s is with worker %s, of whom nothing is known", id, worker)
		}
	}
	at := places(p)
	for _, index := range slices.Sorted(maps.Keys(at)) {
		// One that has ended and was still used when it was looked at is looked at again later.
		if later := index == dueIndex && p.State == ownership.Expired; !v.has(index, id, at[index], later) {
			v.problem("proxy %s is missing in index %s, at %d", id, index, at[index])
		}
	}
}

// known reports whether there is a worker's record.
func (v *verifier) known(worker string) bool {
	there, asked := v.workers[worker]
	if !asked {
		rec, err := v.tx.Get(workerKey(worker))
		v.err = errors.Join(v.err, err)
		there = err != nil || rec.Exists()
		v.workers[worker] = there
	}
	return there
}

// has reports whether a member is in an index at a score, or later if that will do.
func (v *verifier) has(index, member string, score uint64, later bool) bool {
	members, read := v.indexes[index]
	if !read {
		if entries := v.scan(index); len(entries) < store.MaxScan && v.err == nil {
			members = make(map[string]uint64, len(entries))
			for _, e := range entries {
				members[e.Member] = e.Score
			}
		}
		v.indexes[index] = members
	}
	at, there := members[member]
	return members == nil || there && (at == score || later && at > score)
}

// worker judges one worker: its drains are of proxies that it had.
func (v *verifier) worker(id string, epoch uint64) {
	drains := new(statev1.WorkerDrains)
	v.read(workerKey(id), new(statev1.WorkerState))
	for key, m := range map[string]proto.Message{
		issuedKey(id): new(statev1.WorkerSnapshots), runtimeKey(id): new(statev1.WorkerRuntime), outcomesKey(id): new(statev1.WorkerOutcomes),
	} {
		v.read(key, m)
	}
	if !v.read(drainsKey(id), drains) {
		return
	}
	for _, t := range drains.Tickets {
		if t.OwnershipEpoch > epoch {
			v.problem("the drain of proxy %s from worker %s has ownership epoch %d, newer than the newest, %d", t.ProxyId, id, t.OwnershipEpoch, epoch)
		}
		p := new(statev1.ProxyState)
		if v.read(proxyKey(t.ProxyId), p) && p.AssignmentEpoch < t.AssignmentEpoch {
			v.problem("the drain of proxy %s from worker %s is of assignment %d, and it had %d", t.ProxyId, id, t.AssignmentEpoch, p.AssignmentEpoch)
		}
	}
}
