package api_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
)

// detailKeys is what the detail of each kind of entry of this service's chains may
// have, and with a "!" what it always has.
var detailKeys = func() map[string]string {
	const (
		moved    = "id! step! percent! from_percent! requests! errors! missing check value bound cause! verified reason! config_version"
		endpoint = "endpoint_id! variant! region reason"
		deployed = "id! release_id! strategy! state! reason!"
		route    = "host! path_prefix! allowed_regions"
		shared   = "consumers! allowed_regions"
	)
	return map[string]string{
		"flag.set":      "flag! rollout_percent! rollout_variant disabled rules rules_sha256",
		"flag.delete":   "flag! rollout_percent rollout_variant disabled rules rules_sha256",
		"flag.exposure": "flag! variant reason! config_version! count! others others_count",
		"rollout.start": "id! canary! stable! steps! step_seconds! max_error_percent! min_requests! queries",
		"rollout.step":  moved, "rollout.hold": moved, "rollout.resume": moved, "rollout.pause": moved, "rollout.promote": moved,
		"rollout.rollback": moved, "rollout.abort": moved, "rollout.supersede": moved,
		"quarantine.lift": "variant! reason!", "policy.set": "changed! allowed_regions rule_id strategy probe",
		"artifact.register": "id! version! digest!", "release.create": "id! number! artifact_id! variant!",
		"deployment.start": deployed, "deployment.end": deployed,
		"ingress.set": route, "ingress.delete": route, "shared.set": shared, "shared.delete": shared,
		"endpoint.register": endpoint, "endpoint.gone": endpoint,
		"call.decision": "decision! allowed_regions endpoint_id endpoint_region rule_id config_version! count!",
		"stats.gap":     "reporter_id! missing!",
	}
}()

// entry is a line of a chain as far as these tests look.
type entry struct {
	Kind, Actor string
	Detail      map[string]string
}

// chain reads a chain.
func (e *edge) chain(service string) (entries []entry) {
	e.t.Helper()
	fatal(e.t, e.store.View(ctx(e.t), func(tx store.ReadTx) error {
		entries = nil
		lines, err := tx.ReadLog("audit/"+service, 1, 0)
		for _, l := range lines {
			var one entry
			if err := json.Unmarshal(l.Payload, &one); err != nil {
				return err
			}
			entries = append(entries, one)
		}
		return err
	}))
	return entries
}

// checkDetails holds every entry of every service to the table of kinds.
func (e *edge) checkDetails() {
	e.t.Helper()
	list, err := e.client.ListServices(ctx(e.t), &donav1.ListServicesRequest{})
	fatal(e.t, err)
	for _, service := range list.Services {
		for _, one := range e.chain(service) {
			row, known := detailKeys[one.Kind]
			if !known || one.Actor == "" {
				e.t.Errorf("%s: entry of an unknown kind, or without an actor: %+v", service, one)
			}
			may := strings.Fields(strings.ReplaceAll(row, "!", ""))
			for key, value := range one.Detail {
				if !slices.Contains(may, key) || value == "" {
					e.t.Errorf("%s: %s has %s=%q, allowed are %s, none empty", service, one.Kind, key, value, row)
				}
			}
			for key := range strings.FieldsSeq(row) {
				if must, always := strings.CutSuffix(key, "!"); always && one.Detail[must] == "" {
					e.t.Errorf("%s: %s lacks %s: %v", service, one.Kind, must, one.Detail)
				}
			}
		}
	}
}

func config(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return s
}

// TestEntries: what each control action writes into the chain, key by key, and who
// did it.
func TestEntries(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	e.register(endpoint(nil))
	at := len(e.chain("web"))
	wrote := func(what string, err error, want ...string) {
		t.Helper()
		fatal(t, err)
		all := e.chain("web")
		var got []string
		for _, one := range all[at:] {
			parts := []string{one.Kind}
			for _, key := range slices.Sorted(maps.Keys(one.Detail)) {
				value := one.Detail[key]
				if key == "id" && !strings.HasPrefix(one.Kind, "artifact") && !strings.HasPrefix(one.Kind, "release") {
					value = "ID"
				}
				parts = append(parts, key+"="+value)
			}
			got = append(got, strings.Join(parts, " "))
			if one.Actor != "local:dev" {
				t.Errorf("%s: the actor is %s", what, one.Actor)
			}
		}
		at = len(all)
		if !slices.Equal(got, want) {
			t.Errorf("%s wrote\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	flag := func(change func(*donav1.SetFlagRequest)) error {
		req := flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = 25 })
		change(req)
		_, err := e.client.SetFlag(c, req)
		return err
	}
	wrote("SetFlag", flag(func(*donav1.SetFlagRequest) {}), "flag.set flag=f rollout_percent=25 rollout_variant=v1")
	wrote("SetFlag again", flag(func(*donav1.SetFlagRequest) {}))
	wrote("SetFlag disabled", flag(func(r *donav1.SetFlagRequest) { r.Rule.Disabled = true }), "flag.set disabled=true flag=f rollout_percent=25 rollout_variant=v1")
	wrote("SetFlag delete", flag(func(r *donav1.SetFlagRequest) { r.Delete = true }), "flag.delete flag=f")

	policy := func(req *donav1.SetServicePolicyRequest) error {
		req.Service = "web"
		_, err := e.client.SetServicePolicy(c, req)
		return err
	}
	wrote("SetServicePolicy", policy(&donav1.SetServicePolicyRequest{
		Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "ch"}, RuleId: "gdpr"}, Strategy: "round-robin", Probe: "http"}),
		"policy.set allowed_regions=eu,ch changed=probe,residency,strategy probe=http rule_id=gdpr strategy=round-robin")
	wrote("SetServicePolicy config", policy(&donav1.SetServicePolicyRequest{StrategyConfig: config(map[string]any{"a": 1.0})}),
		"policy.set allowed_regions=eu,ch changed=strategy_config probe=http rule_id=gdpr strategy=round-robin")
	wrote("SetServicePolicy config again", policy(&donav1.SetServicePolicyRequest{StrategyConfig: config(map[string]any{"a": 1.0})}))
	wrote("SetServicePolicy back", policy(&donav1.SetServicePolicyRequest{Strategy: "default", Probe: "none", ClearResidency: true}),
		"policy.set changed=probe,residency,strategy,strategy_config")

	ingress := func(change func(*donav1.SetIngressRequest)) error {
		_, err := e.client.SetIngress(c, route(change))
		return err
	}
	wrote("SetIngress", ingress(nil), "ingress.set allowed_regions=eu host=www.example.com path_prefix=/")
	wrote("SetIngress again", ingress(nil))
	wrote("SetIngress delete", ingress(func(r *donav1.SetIngressRequest) { r.Delete = true }), "ingress.delete allowed_regions=eu host=www.example.com path_prefix=/")
	shared := func(change func(*donav1.SetSharedServiceRequest)) error {
		_, err := e.client.SetSharedService(c, share(change))
		return err
	}
	wrote("SetSharedService", shared(func(r *donav1.SetSharedServiceRequest) {
		r.Consumers, r.AllowedRegions = []string{"shop", "pay"}, []string{"eu"}
	}),
		"shared.set allowed_regions=eu consumers=shop,pay")
	wrote("SetSharedService delete", shared(func(r *donav1.SetSharedServiceRequest) { r.Delete = true }), "shared.delete allowed_regions=eu consumers=shop,pay")

	_, err := e.client.RegisterArtifact(c, artifact(nil))
	wrote("RegisterArtifact", err, "artifact.register digest="+sha+" id=web:1 version=1")
	_, err = e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) {
		r.Digest, r.Uri = strings.Replace(strings.ToUpper(sha), "SHA256", "sha256", 1), "oci://elsewhere"
	}))
	wrote("RegisterArtifact again", err)
	_, err = e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:1", Variant: "v2", Config: map[string]string{"secret": "no"}})
	wrote("CreateRelease", err, "release.create artifact_id=web:1 id=web/1 number=1 variant=v2")
	_, err = e.client.StartDeployment(c, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE})
	wrote("StartDeployment", err,
		"deployment.start id=ID reason=waits: no endpoint of v2 that may serve; until then all traffic stays with v1 release_id=web/1 state=WAITING strategy=RECREATE")

	wrote("StartRollout", e.start(start(func(r *donav1.StartRolloutRequest) {
		r.Analysis = []*donav1.AnalysisQuery{{Name: "p99", PrometheusUrl: "http://127.0.0.1:9090", Query: "up", MaxValue: 1}}
	})), "rollout.start canary=v2 id=ID max_error_percent=5 min_requests=10 queries=p99 stable=v1 step_seconds=10 steps=10,100")
	_, err = e.control("web", pause, "lunch")
	wrote("PAUSE", err, "rollout.pause cause=operator errors=0 from_percent=0 id=ID percent=0 reason=lunch requests=0 step=0")
	_, err = e.control("web", abort, "")
	wrote("ABORT", err, "rollout.abort cause=operator errors=0 from_percent=0 id=ID percent=0 reason=aborted by an operator requests=0 step=0")
	e.checkDetails()
}
