package delivery_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

func TestArtifacts(t *testing.T) {
	w := newWorld(t)
	req := &donav1.RegisterArtifactRequest{Service: svc, Version: "1.4.2+b7", Uri: "oci://registry.example.com/checkout", Digest: digest("a"), Labels: map[string]string{"commit": "abc"}}
	a, err := w.d.RegisterArtifact(w.ctx, "local:dev", req)
	if err != nil {
		t.Fatal(err)
	}
	if a.Id != "checkout:1.4.2+b7" || a.Digest != req.Digest || a.CreatedUnix != 1_700_000_000 || !maps.Equal(a.Labels, req.Labels) || a.Uri != req.Uri {
		t.Errorf("the artifact is %v", a)
	}
	before := w.written()
	again := proto.CloneOf(req)
	again.Uri, again.Digest = "oci://elsewhere", strings.ToUpper(req.Digest[7:])
	again.Digest = "sha256:" + again.Digest
	if b, err := w.d.RegisterArtifact(w.ctx, "local:dev", again); err != nil || !proto.Equal(a, b) || w.written() != before {
		t.Errorf("the same digest again: %v, %v", b, err)
	}
	other := proto.CloneOf(req)
	other.Digest = digest("b")
	_, err = w.d.RegisterArtifact(w.ctx, "local:dev", other)
	refused(t, "another digest", err, refusal.AlreadyExists, "digest")
	if w.written() != before {
		t.Error("a refusal stored something")
	}
	e := w.chain()
	if len(e) != 1 || e[0].Kind != "artifact.register" || e[0].Actor != "local:dev" || e[0].Detail["digest"] != a.Digest || e[0].Detail["id"] != a.Id {
		t.Errorf("the chain is %v", e)
	}
	w.clock.advance(time.Second)
	w.release("2", "v2")
	w.view(func(tx store.ReadTx) error {
		list, err := w.d.Artifacts(tx, svc)
		if err != nil || len(list) != 2 || list[0].Version != "2" || !proto.Equal(list[1], a) {
			t.Errorf("the list is %v, %v", list, err)
		}
		_, err = w.d.Artifacts(tx, "nope")
		refused(t, "the list of no service", err, refusal.NotFound, "")
		_, err = w.d.Releases(tx, "No")
		refused(t, "the list of no name", err, refusal.Invalid, "service")
		return nil
	})
}

func TestReleases(t *testing.T) {
	w := newWorld(t)
	first := w.release("1", "v1")
	if first.Id != "checkout/1" || first.Number != 1 || first.ArtifactId != "checkout:1" || first.Variant != "v1" {
		t.Errorf("the release is %v", first)
	}
	req := &donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v2", Config: map[string]string{"POOL": "8", "motd": "a\nb"}}
	second, err := w.d.CreateRelease(w.ctx, "local:dev", req)
	if err != nil || second.Number != 2 || !maps.Equal(second.Config, req.Config) {
		t.Errorf("the second release is %v, %v", second, err)
	}
	for _, e := range w.chain() {
		if text := fmt.Sprint(e.Detail); strings.Contains(text, "POOL") || strings.Contains(text, "motd") {
			t.Errorf("the chain tells the configuration: %v", e)
		}
	}
	before := w.written()
	for name, c := range map[string]struct {
		req   *donav1.CreateReleaseRequest
		kind  refusal.Kind
		field string
	}{
		"no artifact":            {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:9", Variant: "v1"}, refusal.NotFound, "artifact_id"},
		"of another service":     {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "pay:1", Variant: "v1"}, refusal.Invalid, "artifact_id"},
		"no service's artifact":  {&donav1.CreateReleaseRequest{Service: "pay", ArtifactId: "pay:1", Variant: "v1"}, refusal.NotFound, "artifact_id"},
		"an id of another form":  {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "1", Variant: "v1"}, refusal.Invalid, "artifact_id"},
		"no variant":             {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1"}, refusal.Invalid, "variant"},
		"an empty key":           {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1", Config: map[string]string{"": "x"}}, refusal.Invalid, `config[""]`},
		"a zero byte":            {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1", Config: map[string]string{"k": "\x00"}}, refusal.Invalid, `config["k"]`},
		"a byte of config more":  {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1", Config: map[string]string{"k": strings.Repeat("v", limits.ReleaseConfigLen)}}, refusal.Invalid, "config"},
		"a byte of a key more":   {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1", Config: map[string]string{strings.Repeat("k", limits.ReleaseConfigKeyLen+1): "v"}}, refusal.Invalid, `config["` + strings.Repeat("k", 48) + `"…]`},
		"a path for an artifact": {&donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:../x", Variant: "v1"}, refusal.Invalid, "artifact_id"},
	} {
		_, err := w.d.CreateRelease(w.ctx, "local:dev", c.req)
		refused(t, name, err, c.kind, c.field)
	}
	if w.written() != before {
		t.Error("a refusal stored something")
	}
	req.Config = map[string]string{strings.Repeat("k", limits.ReleaseConfigKeyLen): strings.Repeat("v", limits.ReleaseConfigLen-limits.ReleaseConfigKeyLen)}
	if r, err := w.d.CreateRelease(w.ctx, "local:dev", req); err != nil || r.Number != 3 {
		t.Errorf("a configuration as large as allowed: %v", err)
	}
	w.view(func(tx store.ReadTx) error {
		list, err := w.d.Releases(tx, svc)
		if err != nil || len(list) != 3 || list[0].Number != 3 || !proto.Equal(list[1], second) || !proto.Equal(list[2], first) {
			t.Errorf("the list is %v, %v", list, err)
		}
		return nil
	})
}

// TestLimits: the last that is allowed, and the first that is not.
func TestLimits(t *testing.T) {
	w := newWorld(t)
	w.release("1", "v1")
	w.update(func(tx store.Tx) error {
		return store.Save(tx, "svc/"+svc+"/delivery", &statev1.Delivery{Artifacts: limits.ArtifactsPerService - 1, Releases: limits.ReleasesPerService - 1})
	})
	last := w.release("2", "v1")
	if last.Number != limits.ReleasesPerService {
		t.Errorf("the last release is %v", last)
	}
	_, err := w.d.RegisterArtifact(w.ctx, "local:dev", &donav1.RegisterArtifactRequest{Service: svc, Version: "3", Digest: digest("3")})
	refused(t, "an artifact more", err, refusal.Exhausted, "")
	_, err = w.d.CreateRelease(w.ctx, "local:dev", &donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1"})
	refused(t, "a release more", err, refusal.Exhausted, "")
	if _, err = w.d.RegisterArtifact(w.ctx, "local:dev", &donav1.RegisterArtifactRequest{Service: svc, Version: "2", Digest: digest("2")}); err != nil {
		t.Errorf("at the limit, one that is there: %v", err)
	}
}

// TestListIsBounded: a list has the newest that one answer takes.
func TestListIsBounded(t *testing.T) {
	w := newWorld(t)
	w.release("1", "v1")
	config := map[string]string{"k": strings.Repeat("v", 60<<10)}
	const n = 80 // more than 4 MiB
	for range n {
		if _, err := w.d.CreateRelease(w.ctx, "local:dev", &donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1", Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	w.view(func(tx store.ReadTx) error {
		list, err := w.d.Releases(tx, svc)
		size := 0
		for _, r := range list {
			size += proto.Size(r)
		}
		if err != nil || size > limits.ListBytes || size < limits.ListBytes*9/10 || list[0].Number != n+1 {
			t.Errorf("the list has %d of %d bytes, %v", len(list), size, err)
		}
		return err
	})
}

// TestListLength: as many as are listed, and one more.
func TestListLength(t *testing.T) {
	w := newWorld(t)
	w.release("1", "v1")
	for n := 1; n <= limits.ListLen; n++ {
		w.view(func(tx store.ReadTx) error {
			if n < limits.ListLen {
				return nil
			}
			list, err := w.d.Releases(tx, svc)
			if err != nil || len(list) != limits.ListLen || list[limits.ListLen-1].Number != 1 {
				t.Errorf("of %d releases %d are listed, %v", n, len(list), err)
			}
			return err
		})
		if _, err := w.d.CreateRelease(w.ctx, "local:dev", &donav1.CreateReleaseRequest{Service: svc, ArtifactId: "checkout:1", Variant: "v1"}); err != nil {
			t.Fatal(err)
		}
	}
	w.view(func(tx store.ReadTx) error {
		list, err := w.d.Releases(tx, svc)
		if err != nil || len(list) != limits.ListLen || list[limits.ListLen-1].Number != 2 {
			t.Errorf("of one more %d are listed, %v", len(list), err)
		}
		return err
	})
}

func TestRecreate(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 2)
	r := w.release("2", "v2")
	d := w.start(deployment(r, recreate, regions("eu", "us")))
	if d.State != donav1.Deployment_STATE_WAITING || d.ReleaseId != r.Id || d.Environment != "prod" || !strings.Contains(d.Reason, "no endpoint of v2 in eu; no endpoint of v2 in us; until then all traffic stays with v1") {
		t.Errorf("it begins as %v", d)
	}
	if w.weights() != "v2=0 v1=100" {
		t.Errorf("the weights are %s: v2 would have a share as soon as it has an endpoint", w.weights())
	}
	w.endpoints("v2", "eu", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_WAITING, "waits: no endpoint of v2 in us (1 of 10 s)")
	if w.weights() != "v2=0 v1=100" {
		t.Errorf("one of two regions is ready, and the weights are %s", w.weights())
	}
	w.endpoints("v2", "us", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_SUCCEEDED, "all traffic goes to v2")
	if w.weights() != "v2=100" {
		t.Errorf("the weights are %s", w.weights())
	}
	key := "svc/" + svc + "/deployment/" + d.Id
	for _, other := range []string{"svc/" + svc + "/weights", "svc/" + svc + "/head", "audit/" + svc + "/head", "svc/" + svc + "/delivery"} {
		if w.version(other) != w.version(key) {
			t.Errorf("%s has revision %d, the deployment %d", other, w.version(other), w.version(key))
		}
	}
	if got := w.kinds(); got != "artifact.register release.create deployment.start deployment.end" {
		t.Errorf("the chain is %s", got)
	}
	e := w.chain()[3]
	if e.Actor != "host:h1" || e.Detail["state"] != "SUCCEEDED" || e.Detail["strategy"] != "RECREATE" || e.Detail["id"] != d.Id || e.Detail["release_id"] != r.Id {
		t.Errorf("the end is told as %v", e)
	}
	before := w.written()
	w.tick()
	if w.written() != before {
		t.Error("a tick after the end stored something")
	}
}

func TestBlueGreen(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 2)
	r := w.release("2", "v2")
	w.start(deployment(r, blueGreen))
	w.tick()
	w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v2 that may serve")
	w.endpoints("v2", "eu", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_SUCCEEDED, "v1 is at 0")
	if w.weights() != "v2=100 v1=0" {
		t.Errorf("the weights are %s", w.weights())
	}
	// And back.
	_, err := w.d.Start(w.ctx, "local:dev", deployment(r, blueGreen))
	refused(t, "it serves already", err, refusal.Precondition, "strategy")
	back := w.release("1", "v1")
	w.start(deployment(back, blueGreen))
	w.tick()
	w.is(donav1.Deployment_STATE_SUCCEEDED, "")
	if w.weights() != "v1=100 v2=0" {
		t.Errorf("the weights are %s", w.weights())
	}
}

// TestFirstDeployment: the service has nothing yet, and nothing has to be kept.
func TestFirstDeployment(t *testing.T) {
	for _, strategy := range []donav1.StartDeploymentRequest_Strategy{recreate, blueGreen} {
		w := newWorld(t)
		w.start(deployment(w.release("1", "v1"), strategy))
		w.tick()
		w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v1")
		if w.weights() != "" {
			t.Errorf("the weights are %s", w.weights())
		}
		w.endpoints("v1", "eu", 1)
		w.tick()
		w.is(donav1.Deployment_STATE_SUCCEEDED, "")
		if w.weights() != "v1=100" {
			t.Errorf("the weights are %s", w.weights())
		}
	}
}

func TestReadyTimeout(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.start(deployment(w.release("2", "v2"), recreate, regions("eu")))
	w.clock.advance(time.Hour) // nobody looked: an hour that nobody waited
	for range 8 {
		w.tick()
		w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v2 in eu")
	}
	w.tick()
	w.is(donav1.Deployment_STATE_FAILED, "not ready within 10s: no endpoint of v2 in eu")
	if w.weights() != "v2=0 v1=100" {
		t.Errorf("the weights are %s", w.weights())
	}
	if got := w.kinds(); !strings.HasSuffix(got, "deployment.start deployment.end") {
		t.Errorf("the chain is %s", got)
	}
}

// TestResidency: endpoints where the policy lets nobody go count for nothing.
func TestResidency(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.endpoints("v2", "us", 1)
	if err := w.plane.SetPolicy(w.ctx, "local:dev", &donav1.SetServicePolicyRequest{Service: svc, Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	w.start(deployment(w.release("2", "v2"), recreate, regions("us")))
	w.tick()
	w.is(donav1.Deployment_STATE_WAITING, "the residency policy does not allow us")
	w.start(deployment(w.release("3", "v2"), recreate))
	w.tick()
	w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v2 that may serve")
}

// TestCanary follows a rollout to each of its ends.
// begun is how many rollouts the metric has as begun.
func (w *world) begun() (n float64) {
	families, err := w.told.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "dona_rollout_transitions_total" && m.GetLabel()[0].GetValue() == "start" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestCanary(t *testing.T) {
	for _, c := range []struct {
		name  string
		act   func(w *world)
		state donav1.Deployment_State
		why   string
		split string
		kinds string // of the chain's last entries
	}{
		{"promoted", func(w *world) {
			for range 30 {
				w.report("v2", 20, 0)
				w.tick()
			}
		}, donav1.Deployment_STATE_SUCCEEDED, "was promoted: every step served", "v2=100 v1=0", "rollout.promote deployment.end"},
		{"rolled back", func(w *world) { w.report("v2", 40, 20); w.tick() }, donav1.Deployment_STATE_ROLLED_BACK, "was rolled back: ", "v2=0 v1=100", "rollout.rollback deployment.end"},
		{"aborted", func(w *world) { w.control(donav1.ControlRolloutRequest_ACTION_ABORT) }, donav1.Deployment_STATE_FAILED, "was stopped: because", "v2=0 v1=100", "rollout.abort deployment.end"},
		{"promoted by hand", func(w *world) { w.control(donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL) }, donav1.Deployment_STATE_SUCCEEDED, "was promoted: because", "v2=100 v1=0", "rollout.promote deployment.end"},
		{"superseded", func(w *world) {
			w.endpoints("v3", "eu", 1)
			req := deployment(&donav1.Release{}, canary).Canary
			req.Service, req.CanaryVariant, req.Supersede = svc, "v3", true
			if err := w.rollouts.Start(w.ctx, "local:dev", req); err != nil {
				w.t.Fatal(err)
			}
		}, donav1.Deployment_STATE_FAILED, "was stopped: replaced by rollout", "v3=0 v1=100", "rollout.supersede deployment.end rollout.start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.endpoints("v1", "eu", 1)
			d := w.start(deployment(w.release("2", "v2"), canary, regions("eu")))
			if w.weights() != "v2=0 v1=100" || w.rollout() != nil {
				t.Fatalf("it begins with weights %s and rollout %v", w.weights(), w.rollout())
			}
			w.tick()
			w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v2 in eu")
			w.endpoints("v2", "eu", 1)
			w.tick()
			w.is(donav1.Deployment_STATE_RUNNING, "rollout r")
			if n := w.begun(); n != 1 {
				t.Errorf("%v rollouts are counted as begun", n)
			}
			if st := w.rollout(); st.GetState() != donav1.RolloutStatus_STATE_PENDING || st.CanaryVariant != "v2" || !strings.Contains(w.deployments()[0].Reason, st.Id) {
				t.Fatalf("the rollout is %v, the deployment %v", st, w.deployments())
			}
			key := "svc/" + svc + "/deployment/" + d.Id
			if w.version("svc/"+svc+"/rollout") != w.version(key) {
				t.Error("the rollout and its deployment are not one transaction")
			}
			w.tick()
			if w.weights() != "v2=25 v1=75" {
				t.Fatalf("the rollout began with %s", w.weights())
			}
			c.act(w)
			w.is(c.state, c.why)
			if w.weights() != c.split || !strings.HasSuffix(w.kinds(), c.kinds) {
				t.Errorf("weights %s, chain %s", w.weights(), w.kinds())
			}
			if c.name != "superseded" && w.version("svc/"+svc+"/rollout") != w.version(key) {
				t.Error("the end of the rollout and that of the deployment are not one transaction")
			}
			w.tick()
			w.is(c.state, c.why)
		})
	}
}

// TestCanaryWaitsForItsPlugin: a provider that is away is waited for, one that is
// gone ends it.
func TestCanaryWaitsForItsPlugin(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.endpoints("v2", "eu", 1)
	query := func(r *donav1.StartDeploymentRequest) {
		r.Canary.Analysis = []*donav1.AnalysisQuery{{Name: "p99", PrometheusUrl: "http://127.0.0.1:9090", Query: "up", MaxValue: 1}}
	}
	req := deployment(w.release("2", "v2"), canary, query)
	w.analyzer.away.Store(true)
	_, err := w.d.Start(w.ctx, "local:dev", req)
	refused(t, "a plugin that is away", err, refusal.Unavailable, "canary.analysis[0].provider")
	w.analyzer.away.Store(false)
	w.start(req)
	w.analyzer.away.Store(true)
	w.tick()
	w.is(donav1.Deployment_STATE_WAITING, "it is not running and cannot check the query; try again (1 of 10 s)")
	w.analyzer.away.Store(false)
	w.tick()
	w.is(donav1.Deployment_STATE_RUNNING, "")
}

// TestBlockedMeanwhile: what was allowed at the start is not when it is ready.
func TestBlockedMeanwhile(t *testing.T) {
	byHand := func(w *world) {
		req := deployment(&donav1.Release{}, canary).Canary
		req.Service, req.CanaryVariant = svc, "v3"
		if err := w.rollouts.Start(w.ctx, "local:dev", req); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, strategy := range []donav1.StartDeploymentRequest_Strategy{recreate, blueGreen, canary} {
		w := newWorld(t)
		w.endpoints("v1", "eu", 1)
		w.start(deployment(w.release("2", "v2"), strategy))
		byHand(w)
		w.tick()
		w.is(donav1.Deployment_STATE_WAITING, "no endpoint of v2")
		w.endpoints("v2", "eu", 1)
		w.tick()
		w.is(donav1.Deployment_STATE_FAILED, "rollout")
		if w.weights() != "v3=0 v1=100" {
			t.Errorf("%s: the weights are %s", strategy, w.weights())
		}
	}
	// One that says so takes the place of the rollout.
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	byHand(w)
	r := w.release("2", "v2")
	_, err := w.d.Start(w.ctx, "local:dev", deployment(r, recreate))
	refused(t, "beside a rollout", err, refusal.Precondition, "release_id")
	_, err = w.d.Start(w.ctx, "local:dev", deployment(r, canary))
	refused(t, "a canary beside a rollout", err, refusal.Precondition, "canary.service")
	w.start(deployment(r, canary, func(r *donav1.StartDeploymentRequest) { r.Canary.Supersede = true }))
	w.endpoints("v2", "eu", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_RUNNING, "")
	if st := w.rollout(); st.CanaryVariant != "v2" || !strings.HasSuffix(w.kinds(), "deployment.start rollout.supersede rollout.start") {
		t.Errorf("the rollout is %v, the chain %s", st, w.kinds())
	}

	w = newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.start(deployment(w.release("2", "v2"), recreate))
	w.update(func(tx store.Tx) error { return w.plane.Quarantine(tx, svc, "v2", "r0", "it was bad") })
	w.endpoints("v2", "eu", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_FAILED, `"v2" is quarantined`)
}

func TestOneAtATime(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	r2, r3 := w.release("2", "v2"), w.release("3", "v3")
	req := deployment(r2, recreate)
	first := w.start(req)
	before := w.written()
	if again := w.start(req); again.Id != first.Id || w.written() != before {
		t.Errorf("the same request again gives %v, want %v", again, first)
	}
	w.clock.advance(time.Second)
	second := w.start(deployment(r3, canary))
	list := w.deployments()
	if len(list) != 2 || list[0].Id != second.Id || list[1].State != donav1.Deployment_STATE_FAILED || !strings.Contains(list[1].Reason, second.Id+" took its place") {
		t.Errorf("the deployments are %v", list)
	}
	w.endpoints("v3", "eu", 1)
	w.tick()
	w.is(donav1.Deployment_STATE_RUNNING, "")
	before = w.written()
	_, err := w.d.Start(w.ctx, "local:dev", req)
	refused(t, "another moves traffic", err, refusal.Precondition, "release_id")
	if again := w.start(deployment(r3, canary)); again.Id != second.Id || w.written() != before {
		t.Errorf("the one that runs, again: %v", again)
	}
	w.control(donav1.ControlRolloutRequest_ACTION_ABORT)
	w.clock.advance(time.Second)
	if third := w.start(deployment(r3, canary)); third.Id == second.Id {
		t.Error("after its end the same request gives the ended deployment")
	}
}

// TestDeploymentsKept: the newest stay, the chain tells of all.
func TestDeploymentsKept(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	r := w.release("1", "v1")
	var newest *donav1.Deployment
	for range limits.DeploymentsKept + 2 {
		newest = w.start(deployment(r, recreate))
		w.tick()
	}
	list := w.deployments()
	if len(list) != limits.DeploymentsKept || list[0].Id != newest.Id {
		t.Errorf("%d deployments are kept, want %d", len(list), limits.DeploymentsKept)
	}
	if n := strings.Count(w.kinds(), "deployment.end"); n != limits.DeploymentsKept+2 {
		t.Errorf("the chain tells of %d ends", n)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.endpoints("v4", "eu", 1)
	r2, r1 := w.release("2", "v2"), w.release("1", "v1")
	w.update(func(tx store.Tx) error { return w.plane.Quarantine(tx, svc, "v9", "r0", "it was bad") })
	r9 := w.release("9", "v9")
	with := func(change func(*donav1.StartDeploymentRequest)) *donav1.StartDeploymentRequest {
		return deployment(r2, canary, change)
	}
	before := w.written()
	for _, c := range []struct {
		name  string
		req   *donav1.StartDeploymentRequest
		kind  refusal.Kind
		field string
	}{
		{"empty", &donav1.StartDeploymentRequest{}, refusal.Invalid, "release_id"},
		{"an id of another form", with(func(r *donav1.StartDeploymentRequest) { r.ReleaseId = "checkout/02" }), refusal.Invalid, "release_id"},
		{"no such release", with(func(r *donav1.StartDeploymentRequest) { r.ReleaseId = "checkout/77" }), refusal.NotFound, "release_id"},
		{"no such service", with(func(r *donav1.StartDeploymentRequest) { r.ReleaseId, r.Canary.Service = "nope/1", "" }), refusal.NotFound, "release_id"},
		{"environment", with(func(r *donav1.StartDeploymentRequest) { r.Environment = "a b" }), refusal.Invalid, "environment"},
		{"region", with(func(r *donav1.StartDeploymentRequest) { r.Regions = []string{"eu", "../x"} }), refusal.Invalid, "regions[1]"},
		{"region twice", with(func(r *donav1.StartDeploymentRequest) { r.Regions = []string{"eu", "eu"} }), refusal.Invalid, "regions[1]"},
		{"no strategy", with(func(r *donav1.StartDeploymentRequest) { r.Strategy = 0 }), refusal.Invalid, "strategy"},
		{"strategy 99", with(func(r *donav1.StartDeploymentRequest) { r.Strategy = 99 }), refusal.Invalid, "strategy"},
		{"timeout", with(func(r *donav1.StartDeploymentRequest) { r.ReadyTimeoutSeconds = limits.MaxReadySeconds + 1 }), refusal.Invalid, "ready_timeout_seconds"},
		{"CANARY without", with(func(r *donav1.StartDeploymentRequest) { r.Canary = nil }), refusal.Invalid, "canary"},
		{"RECREATE with", with(func(r *donav1.StartDeploymentRequest) { r.Strategy = recreate }), refusal.Invalid, "canary"},
		{"no stable variant", with(func(r *donav1.StartDeploymentRequest) { r.Canary.StableVariant = "" }), refusal.Invalid, "canary.stable_variant"},
		{"no steps", with(func(r *donav1.StartDeploymentRequest) { r.Canary.Steps = nil }), refusal.Invalid, "canary.steps"},
		{"another service", with(func(r *donav1.StartDeploymentRequest) { r.Canary.Service = "pay" }), refusal.Invalid, "canary.service"},
		{"provider", with(func(r *donav1.StartDeploymentRequest) {
			r.Canary.Analysis = []*donav1.AnalysisQuery{{Name: "x", Provider: "nope", Query: "up", MaxValue: 1}}
		}), refusal.Invalid, "canary.analysis[0].provider"},
		{"another variant", with(func(r *donav1.StartDeploymentRequest) { r.Canary.CanaryVariant = "v3" }), refusal.Precondition, "canary.canary_variant"},
		{"stable is the release", deployment(r1, canary), refusal.Precondition, "canary.stable_variant"},
		{"stable without endpoint", with(func(r *donav1.StartDeploymentRequest) { r.Canary.StableVariant = "v8" }), refusal.Precondition, "canary.stable_variant"},
		{"CANARY of what is quarantined", deployment(r9, canary), refusal.Precondition, "canary.canary_variant"},
		{"RECREATE of what is quarantined", deployment(r9, recreate), refusal.Precondition, "release_id"},
		{"RECREATE beside two without weights", deployment(r2, recreate), refusal.Precondition, "strategy"},
	} {
		_, err := w.d.Start(w.ctx, "local:dev", c.req)
		refused(t, c.name, err, c.kind, c.field)
		if w.written() != before {
			t.Errorf("%s: refused, and something was stored", c.name)
		}
	}
	// At the limit, and with what may be said twice.
	d := w.start(with(func(r *donav1.StartDeploymentRequest) {
		r.ReadyTimeoutSeconds, r.Canary.Service, r.Canary.CanaryVariant = limits.MaxReadySeconds, svc, "v2"
	}))
	if !strings.Contains(d.Reason, "stays with v1") {
		t.Errorf("it begins as %v", d)
	}
}

// TestTwoHosts: however many tick, each deployment moves once.
func TestTwoHosts(t *testing.T) {
	for _, strategy := range []donav1.StartDeploymentRequest_Strategy{recreate, canary} {
		w := newWorld(t)
		w.endpoints("v1", "eu", 1)
		w.endpoints("v2", "eu", 1)
		w.start(deployment(w.release("2", "v2"), strategy))
		w.clock.advance(time.Second)
		var all sync.WaitGroup
		for i := range 8 {
			c := w.controller(fmt.Sprint("h", i))
			all.Go(func() {
				for range 20 {
					c.Tick(w.ctx)
				}
			})
		}
		all.Wait()
		want := "deployment.start deployment.end"
		if strategy == canary {
			want = "deployment.start rollout.start"
		}
		if got := w.kinds(); !strings.HasSuffix(got, want) || strings.Count(got, "deployment.") > 2 {
			t.Errorf("%s: the chain is %s", strategy, got)
		}
	}
}

// TestDamage: a record that nobody can act on stands still, and keeps no rollout
// from ending.
func TestDamage(t *testing.T) {
	w := newWorld(t)
	w.endpoints("v1", "eu", 1)
	w.endpoints("v2", "eu", 1)
	d := w.start(deployment(w.release("2", "v2"), canary))
	w.tick()
	w.is(donav1.Deployment_STATE_RUNNING, "")
	w.update(func(tx store.Tx) error { return tx.Put("svc/"+svc+"/deployment/"+d.Id, []byte{0xff}) })
	w.tick()
	w.control(donav1.ControlRolloutRequest_ACTION_ABORT)
	if st := w.rollout(); st.State != donav1.RolloutStatus_STATE_ABORTED {
		t.Errorf("the rollout is %v", st)
	}
	if strings.Contains(w.kinds(), "deployment.end") {
		t.Errorf("the chain is %s", w.kinds())
	}
}
