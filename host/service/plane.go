// Package service keeps the state of the service plane: endpoints, flags,
// weights, quarantine, residency and strategy, and builds from it the snapshot
// that clients decide by.
//
// [Plane] holds functions on store transactions; host/session, host/rollout and
// host/api call them inside their own. [Plane.Build] reads one service at one
// revision and makes its snapshot, the same one on every host; [Delta] says how two
// of them differ. [Reports] takes what clients report. [Planner] has
// plans compiled by strategy plugins, aside: no snapshot ever waits for one.
//
// What it promises:
//
//   - The version of a snapshot is the revision of the last write of the
//     service's head record. Every change that shapes the snapshot writes the
//     head in the same transaction; a transaction that changes nothing writes
//     none, so nothing is pushed.
//   - A control action and its audit entry are one transaction.
//   - Limits (endpoints, flags, encoded bytes) are refused when something is
//     written, naming service and size, and never found out when it is sent.
package service

import (
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// Plane reads and writes the service plane's records. It holds no state: safe
// for concurrent use.
type Plane struct {
	store store.Store
	audit *audit.Log
	host  string // actor of what the host does by itself
}

// New returns the plane over a store. hostID names this host in audit entries.
func New(st store.Store, log *audit.Log, hostID string) *Plane {
	return &Plane{store: st, audit: log, host: "host:" + hostID}
}

// servicesIndex lists every service that has a head record.
const (
	servicesIndex = "services"
	servicesKey   = "services"
	probedIndex   = "probed" // those whose policy has a probe
)

func headKey(service string) string            { return "svc/" + service + "/head" }
func urgentKey(service string) string          { return "svc/" + service + "/urgent" }
func removedKey(service string) string         { return "svc/" + service + "/removed" }
func weightsKey(service string) string         { return "svc/" + service + "/weights" }
func quarantineKey(service string) string      { return "svc/" + service + "/quarantine" }
func policyKey(service string) string          { return "svc/" + service + "/policy" }
func planKey(service string) string            { return "svc/" + service + "/plan" }
func planningKey(service string) string        { return "planning/" + service }
func flagIndex(service string) string          { return "svc/" + service + "/flag" }
func flagKey(service, flag string) string      { return "svc/" + service + "/flag/" + flag }
func endpointIndex(service string) string      { return "svc/" + service + "/ep" }
func endpointKey(service, id string) string    { return "svc/" + service + "/ep/" + id }
func callsKey(service, endpoint string) string { return "svc/" + service + "/calls/" + endpoint }
func leaseKey(service, endpoint string) string { return "lease/service/" + service + "/" + endpoint } // of host/session

// change is one write of a service's head: what it adds to the counts, and
// whether it may wait for the coalescing window.
type change struct {
	urgent     bool // a rollback, quarantine or residency change
	removal    bool // an endpoint ended or drains
	endpoints  int
	flags      int
	bytes      int
	must       bool // a move of a rollout: never refused for the snapshot's size
	configured bool
	recount    bool                       // a damaged record was replaced: the numbers above are not known
	cell       func(*statev1.ServiceHead) // moves the live counts
}

// touch writes the head of a service, creating it when it is new, and refuses
// what would exceed a limit. It is the one place where a version comes from.
func (p *Plane) touch(tx store.Tx, service string, c change) error {
	var head statev1.ServiceHead
	version, err := load(tx, headKey(service), &head)
	if err != nil {
		return err
	}
	if version == 0 {
		if err := p.create(tx, service, &head); err != nil {
			return err
		}
	}
	if c.recount {
		if err := p.recount(tx, service, &head); err != nil {
			return err
		}
		c.endpoints, c.flags, c.bytes, c.cell = 0, 0, 0, nil
		head.LastEndpointMs = tx.Now().UnixMilli()
	}
	endpoints, flags, bytes := int(head.Endpoints)+c.endpoints, int(head.Flags)+c.flags, int(head.EncodedBytes)+c.bytes
	switch {
	case c.endpoints > 0 && endpoints > limits.EndpointsPerService:
		return refusal.New(refusal.Exhausted, "service %s has %d endpoints: allowed are at most %d", service, head.Endpoints, limits.EndpointsPerService)
	case c.flags > 0 && flags > limits.FlagsPerService:
		return refusal.New(refusal.Exhausted, "service %s has %d flags: allowed are at most %d", service, head.Flags, limits.FlagsPerService)
	case c.bytes > 0 && !c.must && bytes+frameBytes(service) > limits.SnapshotBytes:
		return refusal.New(refusal.Exhausted, "the snapshot of service %s would have %d bytes: allowed are at most %d", service, bytes+frameBytes(service), limits.SnapshotBytes)
	}
	head.Endpoints, head.Flags, head.EncodedBytes = uint32(max(endpoints, 0)), uint32(max(flags, 0)), uint64(max(bytes, 0))
	head.Configured = head.Configured || c.configured
	if c.cell != nil {
		c.cell(&head)
	}
	if c.endpoints != 0 {
		head.LastEndpointMs = tx.Now().UnixMilli()
	}
	// Records of their own: their versions tell when, without this transaction
	// having to know its own revision, which would bind it to one base.
	if c.urgent {
		if err := tx.Put(urgentKey(service), []byte{1}); err != nil {
			return err
		}
	}
	if c.removal {
		if err := tx.Put(removedKey(service), []byte{1}); err != nil {
			return err
		}
	}
	return store.Save(tx, headKey(service), &head)
}

func (p *Plane) create(tx store.Tx, service string, head *statev1.ServiceHead) error {
	var list statev1.ServiceList
	if _, err := store.Load(tx, servicesKey, &list); err != nil {
		return err
	}
	if list.Count >= limits.Services {
		return refusal.New(refusal.Exhausted, "there are %d services: allowed are at most %d", list.Count, limits.Services)
	}
	list.Count++
	if err := store.Save(tx, servicesKey, &list); err != nil {
		return err
	}
	head.Service, head.CreatedMs = service, tx.Now().UnixMilli()
	return tx.IndexPut(servicesIndex, service, 0)
}

// Head reads what a feed needs to know without building.
func (p *Plane) Head(tx store.ReadTx, service string) (snapshot.Head, error) {
	records, err := tx.GetMany(headKey(service), urgentKey(service), removedKey(service))
	if err != nil {
		return snapshot.Head{}, err
	}
	return snapshot.Head{Version: records[0].Version, Urgent: records[1].Version, Removed: records[2].Version}, nil
}

// Exists reports whether the service has ever been named by a flag, a policy or
// an endpoint and was not collected since.
func (p *Plane) Exists(tx store.ReadTx, service string) (bool, error) {
	rec, err := tx.Get(headKey(service))
	return rec.Exists(), err
}

// pastService is for how long a service with nothing but past endpoints stays.
const pastService = 24 * 60 * 60 * 1000 // ms

func past(head *statev1.ServiceHead, nowMS int64) bool {
	return !head.GetConfigured() && head.GetEndpoints() == 0 && nowMS-head.GetLastEndpointMs() > pastService
}

// Services lists the services by name, also those whose head is damaged. One with
// nothing but past endpoints leaves the list after 24 h.
func (p *Plane) Services(tx store.ReadTx) ([]string, error) {
	entries, err := tx.Scan(servicesIndex, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = headKey(e.Member)
	}
	records, err := tx.GetMany(keys...)
	if err != nil {
		return nil, err
	}
	var names []string
	for i, rec := range records {
		var head statev1.ServiceHead
		if !rec.Exists() {
			continue
		}
		// A head that does not parse hides no service, its own neither.
		if parse(keys[i], rec.Value, &head) != nil || !past(&head, tx.Now().UnixMilli()) {
			names = append(names, entries[i].Member)
		}
	}
	slices.Sort(names)
	return names, nil
}

// The bytes of an encoded snapshot are counted as it is written, item by item.
// What is not known then (a version) or moves by itself (a weight) counts as the
// most that it can be, so a snapshot is never larger than its count.

// maxVersionBytes is what a version takes at most, with its tag.
const maxVersionBytes = 11

// frameBytes is what a snapshot without any item takes: service, version, checksum
// and form.
func frameBytes(service string) int {
	return 2 + len(service) + maxVersionBytes + 2 + digest.Size + 2
}

// itemBytes is what an item adds to the encoded snapshot; nothing when it is nil.
func itemBytes(m proto.Message) int {
	if !m.ProtoReflect().IsValid() {
		return 0
	}
	return elementBytes(proto.Size(m))
}

// elementBytes is what n bytes take with their tag and length.
func elementBytes(n int) int { return n + 1 + varintLen(n) }

func varintLen(n int) int {
	size := 1
	for n >= 0x80 {
		n >>= 7
		size++
	}
	return size
}

// cell returns the live count of (variant, region), making it when needed.
func cell(head *statev1.ServiceHead, variant, region string) *statev1.Cell {
	at, found := slices.BinarySearchFunc(head.Cells, variant+"\x00"+region, func(c *statev1.Cell, key string) int {
		switch have := c.Variant + "\x00" + c.Region; {
		case have < key:
			return -1
		case have > key:
			return 1
		}
		return 0
	})
	if !found {
		head.Cells = slices.Insert(head.Cells, at, &statev1.Cell{Variant: variant, Region: region})
	}
	return head.Cells[at]
}

// count sums the live endpoints of a variant in regions; no regions means any.
func count(head *statev1.ServiceHead, variant string, regions []string) (n int) {
	for _, c := range head.GetCells() {
		if c.Variant == variant && (len(regions) == 0 || slices.Contains(regions, c.Region)) {
			n += int(c.Live)
		}
	}
	return n
}

// LegalEndpoints counts the endpoints of a variant that may be picked: not
// draining, and in a region that the policy allows.
func (p *Plane) LegalEndpoints(tx store.ReadTx, service, variant string) (int, error) {
	policy, err := p.Policy(tx, service)
	if err != nil {
		return 0, err
	}
	var head statev1.ServiceHead
	if _, err := load(tx, headKey(service), &head); err != nil {
		return 0, err
	}
	return count(&head, variant, policy.GetResidency().GetAllowedRegions()), nil
}

// Endpoints counts the endpoints of a variant that are not draining, in any
// region.
func (p *Plane) Endpoints(tx store.ReadTx, service, variant string) (int, error) {
	var head statev1.ServiceHead
	if _, err := load(tx, headKey(service), &head); err != nil {
		return 0, err
	}
	return count(&head, variant, nil), nil
}

// Ensure makes the service, or keeps one that has nothing but endpoints from
// leaving the list with the last of them.
func (p *Plane) Ensure(tx store.Tx, service string) error {
	var head statev1.ServiceHead
	version, err := load(tx, headKey(service), &head)
	if err != nil || version != 0 && head.GetConfigured() {
		return err
	}
	return p.touch(tx, service, change{configured: true})
}

// Variants lists the variants with endpoints that are not draining, sorted.
func (p *Plane) Variants(tx store.ReadTx, service string) ([]string, error) {
	var head statev1.ServiceHead
	if _, err := load(tx, headKey(service), &head); err != nil {
		return nil, err
	}
	var variants []string
	for _, c := range head.GetCells() { // sorted by variant
		if c.Live > 0 && !slices.Contains(variants, c.Variant) {
			variants = append(variants, c.Variant)
		}
	}
	return variants, nil
}

// LegalIn counts the endpoints of a variant in one region that are not draining,
// and says whether the policy allows the region.
func (p *Plane) LegalIn(tx store.ReadTx, service, variant, region string) (endpoints int, allowed bool, err error) {
	policy, err := p.Policy(tx, service)
	if err != nil {
		return 0, false, err
	}
	var head statev1.ServiceHead
	if _, err := load(tx, headKey(service), &head); err != nil {
		return 0, false, err
	}
	regions := policy.GetResidency().GetAllowedRegions()
	return count(&head, variant, []string{region}), len(regions) == 0 || slices.Contains(regions, region), nil
}

// Policy reads the service's policy; an empty one when none is set.
func (p *Plane) Policy(tx store.ReadTx, service string) (*donav1.ServicePolicy, error) {
	var rec statev1.Policy
	if _, err := load(tx, policyKey(service), &rec); err != nil {
		return nil, err
	}
	if rec.Policy == nil {
		rec.Policy = &donav1.ServicePolicy{}
	}
	return rec.Policy, nil
}
