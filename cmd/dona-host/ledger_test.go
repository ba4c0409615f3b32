package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// ledger is the service "web" as nothing but its audit chain tells it. What the
// records of the store say has to be the same: then no action is without its
// entry and no entry without its action.
type ledger struct {
	flags       map[string]string // "variant percent"
	settings    map[string][]string
	endpoints   map[string]string // variant
	rollouts    map[string]*told
	newest      string // id of the newest rollout
	quarantined map[string]bool
	decisions   map[string]int // entries by rule id

	releases    map[string]string // variant by id
	deployments map[string]*deployed
	holder      string // who got all traffic at once; empty = weights are a rollout's
	artifacts   int
	ingresses   map[string]bool
	shared      bool
}

// deployed is one deployment.
type deployed struct {
	state string
	ends  int
}

// told is one rollout.
type told struct {
	canary, stable string
	entries        uint64
	state          donav1.RolloutStatus_State
	percent        int
	ends           int
}

var states = map[string]donav1.RolloutStatus_State{
	"rollout.step": donav1.RolloutStatus_STATE_PROGRESSING, "rollout.resume": donav1.RolloutStatus_STATE_PROGRESSING,
	"rollout.pause": donav1.RolloutStatus_STATE_PAUSED, "rollout.hold": donav1.RolloutStatus_STATE_HOLDING, "rollout.promote": donav1.RolloutStatus_STATE_PROMOTED,
	"rollout.rollback": donav1.RolloutStatus_STATE_ROLLED_BACK, "rollout.abort": donav1.RolloutStatus_STATE_ABORTED,
}

var ends = []string{"rollout.promote", "rollout.rollback", "rollout.abort"}

// readLedger checks both chains and folds the service's.
func readLedger(t *testing.T, tx store.ReadTx, log *audit.Log) *ledger {
	t.Helper()
	l := &ledger{
		flags: map[string]string{}, settings: map[string][]string{}, endpoints: map[string]string{},
		rollouts: map[string]*told{}, quarantined: map[string]bool{}, decisions: map[string]int{},
		releases: map[string]string{}, deployments: map[string]*deployed{}, ingresses: map[string]bool{},
	}
	for _, chain := range []string{"web", audit.HostChain} {
		if _, err := log.Check(tx, chain); err != nil {
			t.Errorf("chain %s: %v", chain, err)
		}
	}
	const page = 1000
	for from := uint64(1); ; from += page {
		lines, err := tx.ReadLog("audit/web", from, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			var e struct {
				Kind   string
				Detail map[string]string
			}
			if err := json.Unmarshal(line.Payload, &e); err != nil {
				t.Fatal(err)
			}
			l.add(t, e.Kind, e.Detail)
		}
		if len(lines) < page {
			return l
		}
	}
}

func (l *ledger) add(t *testing.T, kind string, d map[string]string) {
	t.Helper()
	switch kind {
	case "flag.set":
		l.flags[d["flag"]] = d["rollout_variant"] + " " + d["rollout_percent"]
		l.settings[d["flag"]] = append(l.settings[d["flag"]], d["rollout_variant"])
	case "endpoint.register":
		l.endpoints[d["endpoint_id"]] = d["variant"]
	case "endpoint.gone":
		if l.endpoints[d["endpoint_id"]] == "" {
			t.Errorf("audit: %s is gone and was not there", d["endpoint_id"])
		}
		delete(l.endpoints, d["endpoint_id"])
	case "call.decision":
		l.decisions[d["rule_id"]]++
	case "quarantine.lift":
		if !l.quarantined[d["variant"]] {
			t.Errorf("audit: the quarantine of %s was lifted and there was none", d["variant"])
		}
		delete(l.quarantined, d["variant"])
	case "rollout.start":
		if l.rollouts[d["id"]] != nil {
			t.Errorf("audit: rollout %s started twice", d["id"])
		}
		l.newest, l.holder = d["id"], ""
		l.rollouts[d["id"]] = &told{canary: d["canary"], stable: d["stable"], entries: 1, state: donav1.RolloutStatus_STATE_PENDING}
	case "artifact.register":
		l.artifacts++
	case "release.create":
		l.releases[d["id"]] = d["variant"]
	case "deployment.start", "deployment.end":
		l.deploy(t, kind, d)
	case "ingress.set", "ingress.delete":
		l.ingresses[d["host"]+d["path_prefix"]] = kind == "ingress.set"
	case "shared.set", "shared.delete":
		l.shared = kind == "shared.set"
	default:
		if strings.HasPrefix(kind, "rollout.") {
			l.move(t, kind, d)
		}
	}
}

func (l *ledger) deploy(t *testing.T, kind string, d map[string]string) {
	t.Helper()
	have := l.deployments[d["id"]]
	if kind == "deployment.start" {
		if have != nil || l.releases[d["release_id"]] == "" {
			t.Errorf("audit: deployment %s of %s: known is %+v", d["id"], d["release_id"], have)
		}
		l.deployments[d["id"]] = &deployed{state: d["state"]}
		return
	}
	if have == nil || have.ends > 0 {
		t.Errorf("audit: deployment %s ends, known is %+v", d["id"], have)
		return
	}
	have.state = d["state"]
	have.ends++
	if d["state"] == "SUCCEEDED" && d["strategy"] != "CANARY" {
		l.holder = l.releases[d["release_id"]]
	}
}

func (l *ledger) move(t *testing.T, kind string, d map[string]string) {
	t.Helper()
	r := l.rollouts[d["id"]]
	state, known := states[kind]
	switch {
	case r == nil || d["id"] != l.newest:
		t.Errorf("audit: %s of rollout %s, the newest is %s", kind, d["id"], l.newest)
		return
	case !known:
		t.Errorf("audit: nobody asked for %s", kind)
	case r.ends > 0:
		t.Errorf("audit: %s of rollout %s after its end", kind, d["id"])
	case d["from_percent"] != strconv.Itoa(r.percent):
		t.Errorf("audit: %s of rollout %s from %s %%, it was at %d", kind, d["id"], d["from_percent"], r.percent)
	}
	r.entries++
	r.state = state
	r.percent, _ = strconv.Atoi(d["percent"])
	if slices.Contains(ends, kind) {
		r.ends++
	}
	if kind == "rollout.rollback" {
		l.quarantined[r.canary] = true
	}
}

// agrees compares the records with the ledger.
func (l *ledger) agrees(t *testing.T, tx store.ReadTx) {
	t.Helper()
	members := func(index string) []string {
		entries, err := tx.Scan(index, 0, store.MaxScore, 0)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Member)
		}
		slices.Sort(names)
		return names
	}
	load := func(key string, m proto.Message) {
		if _, err := store.Load(tx, key, m); err != nil {
			t.Fatal(err)
		}
	}

	flags := map[string]string{}
	for _, name := range members("svc/web/flag") {
		var f statev1.FlagState
		load("svc/web/flag/"+name, &f)
		flags[name] = f.Rule.GetRolloutVariant() + " " + strconv.Itoa(int(f.Rule.GetRolloutPercent()))
	}
	if !maps.Equal(flags, l.flags) {
		t.Errorf("flags: the records say %v, the audit chain %v", flags, l.flags)
	}
	endpoints := map[string]string{}
	for _, id := range members("svc/web/ep") {
		var e statev1.EndpointState
		load("svc/web/ep/"+id, &e)
		endpoints[id] = e.GetEndpoint().GetVariant()
	}
	if !maps.Equal(endpoints, l.endpoints) {
		t.Errorf("endpoints: the records say %v, the audit chain %v", endpoints, l.endpoints)
	}
	var head statev1.ServiceHead
	load("svc/web/head", &head)
	if int(head.Flags) != len(flags) || int(head.Endpoints) != len(endpoints) {
		t.Errorf("the head counts %d flags and %d endpoints, the records %d and %d", head.Flags, head.Endpoints, len(flags), len(endpoints))
	}

	var q statev1.Quarantine
	load("svc/web/quarantine", &q)
	quarantined := map[string]bool{}
	for _, v := range q.Variants {
		quarantined[v.Variant] = true
	}
	if !maps.Equal(quarantined, l.quarantined) {
		t.Errorf("quarantine: the record says %v, the audit chain %v", quarantined, l.quarantined)
	}
	l.rolloutAgrees(t, tx, members("rollout/live"))
	l.deliveryAgrees(t, tx, members)
}

func (l *ledger) deliveryAgrees(t *testing.T, tx store.ReadTx, members func(string) []string) {
	t.Helper()
	var totals statev1.Delivery
	if _, err := store.Load(tx, "svc/web/delivery", &totals); err != nil {
		t.Fatal(err)
	}
	if a, r := len(members("svc/web/artifact")), len(members("svc/web/release")); a != l.artifacts || r != len(l.releases) || int(totals.Artifacts) != a || int(totals.Releases) != r {
		t.Errorf("%d artifacts and %d releases are there, counted as %v; the audit chain tells of %d and %d", a, r, &totals, l.artifacts, len(l.releases))
	}
	live := ""
	for _, id := range members("svc/web/deployment") {
		var d statev1.DeploymentState
		if _, err := store.Load(tx, "svc/web/deployment/"+id, &d); err != nil {
			t.Fatal(err)
		}
		state := strings.TrimPrefix(d.State.String(), "STATE_")
		told := l.deployments[id]
		if state == "RUNNING" && told != nil && told.state == "WAITING" {
			state = "WAITING" // that it runs is told by its rollout's start
			if r := l.rollouts[d.RolloutId]; r == nil || r.ends > 0 {
				t.Errorf("deployment %s follows the rollout %s, the audit chain says %+v", id, d.RolloutId, r)
			}
		}
		if told == nil || told.state != state {
			t.Errorf("deployment %s is %s, the audit chain says %+v", id, state, told)
			continue
		}
		if told.ends == 0 {
			live = id
		}
	}
	if totals.LiveDeployment != live || slices.Equal(members("deployment/live"), []string{"web"}) != (live != "") {
		t.Errorf("the live deployment is %q, recorded as %q, indexed are %v", live, totals.LiveDeployment, members("deployment/live"))
	}
	rules := 0
	for _, there := range l.ingresses {
		if there {
			rules++
		}
	}
	if n := len(members("svc/web/ingress")); n != rules {
		t.Errorf("%d ingress rules are there, the audit chain tells of %d", n, rules)
	}
	if rec, err := tx.Get("shared/web"); err != nil || rec.Exists() != l.shared {
		t.Errorf("shared is %v, the audit chain says %v, %v", rec.Exists(), l.shared, err)
	}
}

func (l *ledger) rolloutAgrees(t *testing.T, tx store.ReadTx, live []string) {
	t.Helper()
	var r statev1.Rollout
	if _, err := store.Load(tx, "svc/web/rollout", &r); err != nil {
		t.Fatal(err)
	}
	var w statev1.Weights
	if _, err := store.Load(tx, "svc/web/weights", &w); err != nil {
		t.Fatal(err)
	}
	want := l.rollouts[l.newest]
	if l.holder != "" {
		if len(w.Weights) == 0 || w.Weights[0].Variant != l.holder || w.Weights[0].Weight != 100 || w.RolloutId != "" || len(live) > 0 {
			t.Errorf("the audit chain gives all traffic to %s: the weights are %v, live are %v", l.holder, &w, live)
		}
		return
	}
	if want == nil {
		// A deployment keeps the traffic where it is before its rollout begins.
		kept := len(l.deployments) > 0 && len(w.Weights) == 2 && w.Weights[0].Weight == 0 && w.Weights[1].Weight == 100
		if r.Id != "" || len(w.Weights) > 0 && !kept || len(live) > 0 {
			t.Errorf("the audit chain knows no rollout: the record says %v, the weights %v, live are %v", &r, &w, live)
		}
		return
	}
	if r.Id != l.newest || r.State != want.state || r.Transitions != want.entries {
		t.Errorf("rollout: the record says %s %s after %d transitions, the audit chain %s %s after %d",
			r.Id, r.State, r.Transitions, l.newest, want.state, want.entries)
	}
	if len(w.Weights) != 2 || w.RolloutId != l.newest ||
		w.Weights[0].Variant != want.canary || int(w.Weights[0].Weight) != want.percent ||
		w.Weights[1].Variant != want.stable || int(w.Weights[1].Weight) != 100-want.percent {
		t.Errorf("weights: the record says %v, the audit chain %s %d %%", &w, want.canary, want.percent)
	}
	if (want.ends == 0) != slices.Equal(live, []string{"web"}) {
		t.Errorf("rollout %s is %s, live are %v", l.newest, want.state, live)
	}
}
