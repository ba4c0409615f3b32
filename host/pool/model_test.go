package pool_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

var (
	modelSeeds = flag.Int("seeds", 25, "seeds of the model test")
	redisSeeds = flag.Int("redis-seeds", 2, "the same over Redis")
	modelFirst = flag.Uint64("seed", 1, "the first of them")
)

const (
	modelSteps   = 300
	modelWorkers = 3
	modelProxies = 12
)

// gateway is a worker of the model. It follows the protocol of its own accord and keeps
// what it has in use by real time, also while nobody hears of it: cut off from all
// hosts, with a process that died, or with sessions that were replaced.
type gateway struct {
	id       string
	life     int // of its process
	up       bool
	session  string
	sequence uint64
	host     int
	stream   *channel
	old      []*channel                     // that have a view to issue, or had
	newest   string                         // id of the stream that it opened last
	inbox    []sent                         // not yet seen
	pending  []ack                          // given, on their way
	view     *controlplanev1.WorkerSnapshot // applied
	acked    *controlplanev1.WorkerSnapshot // the newest that a host has heard of
	got      int64                          // when the view came, ms
	uses     map[string]int
	last     *controlplanev1.ReportRuntimeRequest
	lost     bool  // it was told to register again
	cut      int64 // until when it hears of nobody, ms
}

// sent is a snapshot on its way. What takes longer than this has its stream ended.
type sent struct {
	snapshot *controlplanev1.WorkerSnapshot
	ms       int64
}

const longestWay = 9 * time.Second

type ack struct {
	session  string
	snapshot *controlplanev1.WorkerSnapshot
	accepted bool
}

// channel is a stream that is stepped by hand: what pool.Watch does, without its waits.
type channel struct {
	session, id string
	last        *controlplanev1.WorkerSnapshot
	slow        *pool.View // built, and not on record yet
}

// model is one run.
type model struct {
	*world
	seed      uint64
	rng       *rand.Rand
	hosts     []*pool.Pool
	gateways  []*gateway
	extracted map[string]bool
	keys      []*controlplanev1.ExtractRequest
	answers   map[string]*controlplanev1.ExtractResponse
	seen      map[string]int
	trace     []string
}

func newModel(t testing.TB, seed uint64, st store.Store, clk *clock) *model {
	m := &model{world: worldOver(t, st, clk), seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), extracted: map[string]bool{}, answers: map[string]*controlplanev1.ExtractResponse{}, seen: map[string]int{}}
	m.publish(strings.Replace(document, "ttl: 1h", "ttl: 6m\n    extractReserve: 1", 1))
	m.hosts = []*pool.Pool{m.p, m.host("h2")}
	for i := range modelWorkers {
		m.gateways = append(m.gateways, &gateway{id: fmt.Sprint("w", i+1), uses: map[string]int{}})
	}
	m.listAgain()
	return m
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s\nlast steps:\n  %s", m.seed, fmt.Sprintf(format, args...), strings.Join(m.trace[max(0, len(m.trace)-60):], "\n  "))
}

func (m *model) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%6d ", (m.clock.ms.Load()-1_700_000_000_000)/1000)+fmt.Sprintf(format, args...))
}

// listAgain imports all proxies; those that never were are checked at once.
func (m *model) listAgain() {
	list := &strings.Builder{}
	for i := range modelProxies {
		fmt.Fprintf(list, "192.0.2.%d:3128\n", i+1)
	}
	_, err := m.any().Import(m.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: list.String()})
	m.must(err)
	for _, s := range m.proxies() {
		if s.State == ownership.New && s.OwnerWorkerId != "" {
			m.seen["listed again"]++
		}
	}
}

func (m *model) any() *pool.Pool { return m.hosts[m.rng.IntN(len(m.hosts))] }

func (m *model) now() int64 { return m.clock.ms.Load() }

// run takes random steps, and checks after each that nobody has what he may not.
func (m *model) run(steps int) {
	actions := []struct {
		weight int
		name   string
		do     func()
	}{
		{220, "go on", m.goOn}, {5, "register", m.register}, {60, "step a stream", m.stepStream}, {60, "see a snapshot", m.see},
		{60, "deliver an ack", m.deliver}, {10, "forge an ack", m.forge}, {60, "report", m.report}, {20, "report late", m.reportLate},
		{120, "pick", m.pick}, {60, "end a use", m.endUse}, {6, "crash", m.crash}, {12, "cut off", m.cutOff}, {30, "drain", m.drain},
		{60, "allocate", m.allocateOn}, {40, "sweep", m.sweep}, {12, "extract", m.extract}, {10, "extract again", m.extractAgain},
		{80, "pass time", m.passTime}, {6, "pass much time", m.passMuchTime}, {40, "find", m.findState}, {20, "list again", m.listAgain},
		{20, "acknowledge a drain", m.acknowledgeDrain}, {20, "issue late", m.issueLate},
	}
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	for range steps {
		n := m.rng.IntN(total)
		for _, a := range actions {
			if n -= a.weight; n < 0 {
				m.note("%s", a.name)
				a.do()
				break
			}
		}
		m.check()
	}
}

func (m *model) gateway() *gateway { return m.gateways[m.rng.IntN(len(m.gateways))] }

// reachable is a gateway that is not cut off, or else one without anything.
func (m *model) reachable() *gateway {
	if g := m.gateway(); g.cut <= m.now() {
		return g
	}
	return &gateway{id: "nobody"}
}

// may lets through what a host is right to refuse.
func (m *model) may(err error, kinds ...refusal.Kind) bool {
	if err == nil {
		return true
	}
	for _, k := range append(kinds, refusal.Precondition) {
		if refusal.Is(err, k) {
			m.note("  refused: %v", err)
			return false
		}
	}
	m.fail("%v", err)
	return false
}

// goOn has a gateway do what it does when nothing is in its way, up to some point.
func (m *model) goOn() {
	g := m.gateway()
	if g.cut > m.now() {
		return
	}
	if !g.up || g.session == "" || m.rng.IntN(3) == 0 && g.lost {
		m.registerOne(g)
	}
	for _, step := range []func(*gateway){m.stepOne, m.seeOne, m.deliverOne, m.reportOne} {
		if m.rng.IntN(10) == 0 {
			return
		}
		step(g)
	}
}

// cutOff has a gateway hear of nobody for a while, as long as it takes to be given up
// sometimes.
func (m *model) cutOff() {
	g := m.gateway()
	g.cut = m.now() + int64(m.rng.IntN(300_000))
	m.note("  %s", g.id)
}

func (m *model) register() { m.registerOne(m.gateway()) }

func (m *model) registerOne(g *gateway) {
	g.lost = false
	if !g.up {
		g.up, g.life, g.uses, g.view, g.acked = true, g.life+1, map[string]int{}, nil, nil
	}
	g.host = m.rng.IntN(len(m.hosts))
	resp, err := m.hosts[g.host].Register(m.ctx, &controlplanev1.RegisterWorkerRequest{
		ClusterId: "c1", WorkerId: g.id, InstanceId: fmt.Sprint(g.id, "-", g.life), SupportedProtocolVersion: 1, MaxConnections: 100})
	m.must(err)
	g.session, g.sequence, g.acked, g.inbox, g.stream = resp.SessionId, 0, nil, nil, nil
	m.note("  %s has session %.6s", g.id, g.session)
}

// stepStream has a gateway's stream send what it would.
func (m *model) stepStream() { m.stepOne(m.reachable()) }

func (m *model) stepOne(g *gateway) {
	if !g.up || g.session == "" {
		return
	}
	if g.stream == nil || m.rng.IntN(20) == 0 {
		g.host = m.rng.IntN(len(m.hosts))
		last := uint64(0)
		if g.view != nil {
			last = g.view.Version
		}
		id, err := m.hosts[g.host].OpenStream(m.ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: g.id, SessionId: g.session, LastVersion: last})
		if !m.may(err) {
			g.lost = true
			return
		}
		g.stream, g.inbox, g.newest = &channel{session: g.session, id: id}, nil, id
	}
	if v := g.stream.slow; v != nil { // the host goes on where it stood
		g.stream.slow = nil
		m.issue(g, v)
		return
	}
	v, err := m.hosts[g.host].BuildView(m.ctx, g.id, g.stream.session, g.stream.id, g.stream.last)
	if !m.may(err, refusal.Aborted) {
		g.stream, g.lost = nil, g.lost || refusal.Is(err, refusal.Precondition)
		return
	}
	if v == nil {
		return
	}
	if m.rng.IntN(6) == 0 {
		g.stream.slow = v
		g.old = append(g.old, g.stream)
		return
	}
	m.issue(g, v)
}

// issueLate has a host go on with a stream that was replaced since it built a view.
func (m *model) issueLate() {
	g := m.gateway()
	for len(g.old) > 0 {
		c := g.old[0]
		g.old = g.old[1:]
		if c == g.stream || c.slow == nil {
			continue
		}
		// One that only the gateway has left is the newest still; it speaks to nobody.
		if s, err := m.any().IssueView(m.ctx, g.id, c.session, c.id, c.slow); err == nil && c.id != g.newest {
			m.fail("a stream of %s that was replaced is given version %d", g.id, s.Version)
		}
		m.seen["late streams"]++
		return
	}
}

func (m *model) issue(g *gateway, v *pool.View) {
	s, err := m.hosts[g.host].IssueView(m.ctx, g.id, g.stream.session, g.stream.id, v)
	if !m.may(err, refusal.Aborted) {
		g.stream, g.lost = nil, g.lost || refusal.Is(err, refusal.Precondition)
		return
	}
	if last := g.stream.last; last != nil && s.Version != last.Version+1 || g.view != nil && s.OwnershipEpoch < g.view.OwnershipEpoch {
		m.fail("%s is sent version %d epoch %d after %v, holding %v", g.id, s.Version, s.OwnershipEpoch, last, g.view)
	}
	g.stream.last = s
	g.inbox = append(g.inbox, sent{s, m.now()})
	m.note("  %s is sent version %d, epoch %d, %d proxies", g.id, s.Version, s.OwnershipEpoch, len(s.Proxies))
}

// see has a gateway apply, or refuse, the next snapshot of its stream.
func (m *model) see() { m.seeOne(m.reachable()) }

func (m *model) seeOne(g *gateway) {
	if !g.up || len(g.inbox) == 0 {
		return
	}
	s := g.inbox[0].snapshot
	g.inbox = g.inbox[1:]
	if m.rng.IntN(40) == 0 {
		g.pending = append(g.pending, ack{g.session, s, false})
		g.stream, g.inbox = nil, nil // it watches again
		m.note("  %s refuses %d", g.id, s.Version)
		m.seen["refused by a worker"]++
		return
	}
	g.view, g.got = s, m.now()
	g.pending = append(g.pending, ack{g.session, s, true})
	m.note("  %s applies %d", g.id, s.Version)
}

// deliver brings an acknowledgement to a host, not always the oldest, and sometimes
// twice.
func (m *model) deliver() { m.deliverOne(m.reachable()) }

func (m *model) deliverOne(g *gateway) {
	if len(g.pending) == 0 {
		return
	}
	i := 0
	if m.rng.IntN(4) == 0 {
		i = m.rng.IntN(len(g.pending))
	}
	a := g.pending[i]
	if m.rng.IntN(6) > 0 {
		g.pending = append(g.pending[:i:i], g.pending[i+1:]...)
	}
	err := m.any().Acknowledge(m.ctx, &controlplanev1.AcknowledgeSnapshotRequest{WorkerId: g.id, SessionId: a.session,
		Version: a.snapshot.Version, OwnershipEpoch: a.snapshot.OwnershipEpoch, Checksum: a.snapshot.Checksum, Accepted: a.accepted})
	if m.may(err) && a.accepted && a.session == g.session && (g.acked == nil || g.acked.Version < a.snapshot.Version) {
		g.acked = a.snapshot
	}
}

// forge acknowledges what was never sent so.
func (m *model) forge() {
	g := m.gateway()
	if g.session == "" {
		return
	}
	version := uint64(m.rng.IntN(200) + 1)
	err := m.any().Acknowledge(m.ctx, &controlplanev1.AcknowledgeSnapshotRequest{WorkerId: g.id, SessionId: g.session,
		Version: version, OwnershipEpoch: uint64(m.rng.IntN(50)), Checksum: make([]byte, 32), Accepted: true})
	if !refusal.Is(err, refusal.Precondition) {
		m.fail("a forged acknowledgement of %d: %v", version, err)
	}
}

func (m *model) request(g *gateway) *controlplanev1.ReportRuntimeRequest {
	g.sequence += 1 + uint64(m.rng.IntN(2))
	req := &controlplanev1.ReportRuntimeRequest{WorkerId: g.id, SessionId: g.session, ReportSequence: g.sequence, SnapshotVersion: g.acked.Version, OwnershipEpoch: g.acked.OwnershipEpoch}
	for _, id := range slices.Sorted(maps.Keys(g.uses)) {
		if n := g.uses[id]; n > 0 {
			req.Counters = append(req.Counters, &controlplanev1.RuntimeCounter{ProxyId: id, Active: uint32(n), Draining: g.view == nil || !has(g.view, id)})
		}
	}
	return req
}

// report tells what a gateway uses, sometimes twice.
func (m *model) report() { m.reportOne(m.reachable()) }

func (m *model) reportOne(g *gateway) {
	// A report is under the view that is in force: what is applied and acknowledged.
	if !g.up || g.acked == nil || g.view == nil || g.view.Version < g.acked.Version {
		return
	}
	req := m.request(g)
	req.Draining = m.rng.IntN(60) == 0
	resp, err := m.any().ReportRuntime(m.ctx, "w", req)
	if !m.may(err) {
		g.lost = m.rng.IntN(2) == 0 || g.lost
		return
	}
	g.last = req
	m.note("  %s reports %d uses under %d, released %d", g.id, len(req.Counters), req.SnapshotVersion, len(resp.ReleasedProxyIds))
	for _, id := range resp.ReleasedProxyIds {
		if g.uses[id] > 0 {
			m.fail("%s is released while %s uses it", id, g.id)
		}
	}
	if m.rng.IntN(4) == 0 {
		again, err := m.any().ReportRuntime(m.ctx, "w", req)
		m.must(err)
		if !slices.Equal(again.ReleasedProxyIds, resp.ReleasedProxyIds) || again.AcceptedSequence != resp.AcceptedSequence {
			m.fail("a replay is answered %v, the first was %v", again, resp)
		}
	}
}

// reportLate brings an older report again, or changes it.
func (m *model) reportLate() {
	g := m.gateway()
	if g.last == nil {
		return
	}
	req := proto.CloneOf(g.last)
	req.Counters = nil // as if nothing were used
	_, err := m.any().ReportRuntime(m.ctx, "w", req)
	if err == nil && (len(g.last.Counters) > 0 || req.SessionId != g.session) {
		m.fail("the report %d of %s was taken with other content", req.ReportSequence, g.id)
	}
	m.may(err, refusal.AlreadyExists, refusal.Aborted)
}

// usable reports whether a gateway may begin to use a proxy now.
func (m *model) usable(g *gateway, p *controlplanev1.Proxy) bool {
	if !g.up || g.view == nil {
		return false
	}
	// It knows no clock but its own, and counts from when the view came.
	since, made := time.Duration(m.now()-g.got)*time.Millisecond, g.view.GeneratedAt.AsTime()
	return since < g.view.ValidUntil.AsTime().Sub(made) && since < p.UsableUntil.AsTime().Sub(made) && p.Health != controlplanev1.Health_HEALTH_UNHEALTHY
}

// pick begins a use.
func (m *model) pick() {
	g := m.gateway()
	if g.view == nil || len(g.view.Proxies) == 0 {
		return
	}
	if p := g.view.Proxies[m.rng.IntN(len(g.view.Proxies))]; m.usable(g, p) {
		g.uses[p.ProxyId]++
		m.seen["used"]++
		m.note("  %s uses %.6s", g.id, p.ProxyId)
	}
}

func (m *model) endUse() {
	g := m.gateway()
	if ids := slices.Sorted(maps.Keys(g.uses)); len(ids) > 0 {
		id := ids[m.rng.IntN(len(ids))]
		if g.uses[id]--; g.uses[id] <= 0 {
			delete(g.uses, id)
		}
	}
}

// crash ends a gateway's process and all that it had.
func (m *model) crash() {
	g := m.gateway()
	g.up, g.uses, g.view, g.acked, g.stream, g.inbox = false, map[string]int{}, nil, nil, nil, nil
	if m.rng.IntN(2) == 0 {
		g.pending = nil // or they were on their way
	}
	m.note("  %s", g.id)
}

func (m *model) drain() {
	ids := m.ids()
	id := ids[m.rng.IntN(len(ids))]
	_, err := m.any().BeginDrain(m.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
	m.may(err, refusal.NotFound)
}

func (m *model) ids() (ids []string) {
	for id := range m.proxies() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		return []string{"none"}
	}
	return ids
}

func (m *model) acknowledgeDrain() {
	g := m.gateway()
	if !g.up || g.acked == nil || g.view == nil {
		return
	}
	all := m.proxies()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		s := all[id]
		// It says so of what it does not use and cannot begin to use.
		if s.OwnerWorkerId == g.id && g.uses[id] == 0 && !has(g.view, id) {
			err := m.any().AcknowledgeDrain(m.ctx, "w", &controlplanev1.AcknowledgeDrainRequest{WorkerId: g.id, SessionId: g.session, ProxyId: id,
				AssignmentEpoch: s.Proxy.AssignmentEpoch, SnapshotVersion: g.acked.Version})
			m.may(err, refusal.NotFound)
			return
		}
	}
}

func (m *model) allocateOn() { m.must(m.any().Allocate(m.ctx)) }

func (m *model) sweep() {
	m.must(m.any().Sweep(m.ctx))
	all := m.proxies()
	for id := range m.extracted { // what has ended may be listed again
		if all[id] == nil {
			delete(m.extracted, id)
		}
	}
}

func (m *model) extract() {
	req := &controlplanev1.ExtractRequest{IdempotencyKey: fmt.Sprint("k", len(m.keys)), Upstream: "dc", Count: 1}
	resp, err := m.any().Extract(m.ctx, operator, req)
	if !m.may(err, refusal.Exhausted) {
		return
	}
	m.keys = append(m.keys, req)
	m.answers[req.IdempotencyKey] = resp
	for _, x := range resp.Proxies {
		id := x.Proxy.ProxyId
		m.note("  %.6s is extracted", id)
		if m.extracted[id] {
			m.fail("%s is extracted twice", id)
		}
		m.extracted[id] = true
	}
}

func (m *model) extractAgain() {
	if len(m.keys) == 0 {
		return
	}
	req := m.keys[m.rng.IntN(len(m.keys))]
	resp, err := m.any().Extract(m.ctx, operator, req)
	m.must(err)
	want := proto.CloneOf(m.answers[req.IdempotencyKey])
	want.Replayed = true
	if !proto.Equal(resp, want) {
		m.fail("key %s is answered %v, first it was %v", req.IdempotencyKey, resp, want)
	}
}

// pass lets time go by: gateways that have gone without a valid view for too long
// close what they have.
func (m *model) pass(d time.Duration) {
	m.clock.advance(d)
	for _, g := range m.gateways {
		if len(g.inbox) > 0 && m.now()-g.inbox[0].ms > longestWay.Milliseconds() {
			g.inbox, g.stream = nil, nil
		}
		if g.up && g.view != nil && m.now() >= g.got+(130*time.Second).Milliseconds() {
			g.uses = map[string]int{}
			m.note("  %s closes what runs", g.id)
		}
	}
}

func (m *model) passTime()     { m.pass(time.Duration(1+m.rng.IntN(4000)) * time.Millisecond) }
func (m *model) passMuchTime() { m.pass(time.Duration(30+m.rng.IntN(400)) * time.Second) }

func (m *model) findState() {
	ids := m.ids()
	states := []controlplanev1.ProxyStatus_State{ownership.Available, ownership.Available, ownership.Available, ownership.Available, ownership.Available, ownership.Available, ownership.Suspect, ownership.Unhealthy}
	for _, id := range ids {
		if m.rng.IntN(2) == 0 {
			m.find(states[m.rng.IntN(len(states))], id)
		}
	}
}

// check is what must hold after every step.
func (m *model) check() {
	m.t.Helper()
	all := m.proxies()
	using := map[string]string{}
	for _, g := range m.gateways {
		for id, n := range g.uses {
			if n == 0 {
				continue
			}
			if by := using[id]; by != "" {
				m.fail("%s is used by %s and %s", id, by, g.id)
			}
			using[id] = g.id
		}
	}
	for _, g := range m.gateways {
		if g.view == nil {
			continue
		}
		for _, p := range g.view.Proxies {
			if !m.usable(g, p) {
				continue
			}
			s := all[p.ProxyId]
			if s == nil {
				m.fail("%s may use %s, which is forgotten", g.id, p.ProxyId)
				return
			}
			// The last moments of a proxy's time it may have seconds longer, as long as the
			// snapshot was on its way. Nobody else has it then.
			if s.OwnerWorkerId != g.id && (s.OwnerWorkerId != "" || s.State != ownership.Expired) {
				m.fail("%s may use %s, which is owned by %q, %s", g.id, p.ProxyId, s.OwnerWorkerId, s.State)
			}
			if by := using[p.ProxyId]; by != "" && by != g.id {
				m.fail("%s may use %s, which %s uses", g.id, p.ProxyId, by)
			}
		}
	}
	for id, by := range using {
		s := all[id]
		switch {
		case s == nil: // forgotten once nobody can use it
			m.fail("%s uses %s, which is forgotten", by, id)
		case s.State == ownership.Extracted:
			m.fail("%s uses %s, which is extracted", by, id)
		case s.OwnerWorkerId != "" && s.OwnerWorkerId != by:
			m.fail("%s uses %s, which is owned by %s", by, id, s.OwnerWorkerId)
		case s.OwnerWorkerId == "" && s.State != ownership.Expired:
			m.fail("%s uses %s, which is nobody's in state %s", by, id, s.State)
		}
	}
	for id, s := range all {
		if s.State == ownership.Extracted && s.OwnerWorkerId != "" {
			m.fail("%s is extracted and owned by %s", id, s.OwnerWorkerId)
		}
	}
}

// TestModel takes random steps over three workers and two hosts on one store: late,
// negative and forged acknowledgements, reports late and again, crashes, silence,
// drains, ends, extractions. No proxy ever has two owners, is extracted while it is
// owned or in use, or is used anew past its time.
func TestModel(t *testing.T) {
	seen := map[string]int{}
	for i := range uint64(*modelSeeds) {
		runModel(t, *modelFirst+i, seen)
	}
	t.Logf("over %d seeds: %v", *modelSeeds, seen)
	for _, kind := range []string{"RELEASED", "FORCE_RELEASED", "PENDING", "pool.extract", "used", "listed again", "refused by a worker", "late streams"} {
		if *modelSeeds >= 20 && seen[kind] == 0 {
			t.Errorf("never seen: %s; the model does not go where it should", kind)
		}
	}
}

func runModel(t *testing.T, seed uint64, seen map[string]int) {
	clk := newClock()
	st := memory(clk)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := newModel(t, seed, st, clk)
	m.ctx = ctx
	m.run(modelSteps)
	if _, problems := verified(t, st); len(problems) > 0 {
		t.Errorf("seed %d: in the store does not hold: %q", seed, problems)
	}
	m.sum(seen)
	if err := st.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}

// sum adds up what a run has come to.
func (m *model) sum(seen map[string]int) {
	for _, e := range m.chain() {
		seen[e.Kind]++
		seen[e.Detail["state"]]++
		if e.Kind == "pool.drain" && e.Detail["state"] == "PENDING" && e.Actor == "host:h1" {
			seen["by the host"]++
		}
	}
	for what, n := range m.seen {
		seen[what] += n
	}
}
