package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/store"
)

// TestDamagedRecords: a record that does not parse hides no other, and holds up no
// other service.
func TestDamagedRecords(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	for _, s := range []string{"bad", "web"} {
		e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = s }))
	}
	for i := range 3 {
		a, err := e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Version = fmt.Sprint(i) }))
		fatal(t, err)
		_, err = e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: "v2"})
		fatal(t, err)
		_, err = e.client.StartDeployment(c, &donav1.StartDeploymentRequest{ReleaseId: fmt.Sprint("web/", i+1), Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE})
		fatal(t, err)
		_, err = e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) { r.PathPrefix = fmt.Sprint("/", i) }))
		fatal(t, err)
	}
	deployments := e.status("web").Deployments
	fatal(t, e.store.Update(c, store.Hard, func(tx store.Tx) error {
		ingresses, err := tx.Scan("svc/web/ingress", 0, 0, 0)
		if err != nil {
			return err
		}
		for _, key := range []string{"svc/bad/head", "svc/web/artifact/1", "svc/web/release/2", "svc/web/deployment/" + deployments[1].Id, "ingress/" + ingresses[0].Member} {
			if rec, err := tx.Get(key); err != nil || !rec.Exists() {
				t.Errorf("%s is there: %v, %v", key, rec.Exists(), err)
			}
			if err := tx.Put(key, []byte{0xff}); err != nil {
				return err
			}
		}
		return nil
	}))
	services, err := e.client.ListServices(c, &donav1.ListServicesRequest{})
	if err != nil || !slices.Equal(services.Services, []string{"bad", "web"}) {
		t.Errorf("the services are %v, %v", services.GetServices(), err)
	}
	artifacts, err := e.client.ListArtifacts(c, &donav1.ListArtifactsRequest{Service: "web"})
	if err != nil || len(artifacts.Artifacts) != 3 || artifacts.Artifacts[1].Id != "web:1" || artifacts.Artifacts[1].Digest != "" || artifacts.Artifacts[0].Digest != sha {
		t.Errorf("the artifacts are %v, %v", artifacts, err)
	}
	releases, err := e.client.ListReleases(c, &donav1.ListReleasesRequest{Service: "web"})
	if err != nil || len(releases.Releases) != 3 || releases.Releases[1].Id != "web/2" || releases.Releases[1].Variant != "" || releases.Releases[0].Variant != "v2" {
		t.Errorf("the releases are %v, %v", releases, err)
	}
	s := e.status("web")
	if len(s.Deployments) != 3 || len(s.Ingresses) != 2 {
		t.Errorf("the status is %v", s)
	}
	for i, d := range s.Deployments {
		if damaged := d.State == donav1.Deployment_STATE_UNSPECIFIED && strings.Contains(d.Reason, "damaged"); d.Id != deployments[i].Id || damaged != (i == 1) {
			t.Errorf("deployment %d is %v, was %v", i, d, deployments[i])
		}
	}
	// A report about both counts for the one that is well.
	ack, err := e.client.ReportStats(c, &donav1.StatsBatch{Calls: []*donav1.CallOutcome{
		{Service: "bad", Variant: "v1", UnixMs: time.Now().UnixMilli()}, {Service: "web", Variant: "v1", UnixMs: time.Now().UnixMilli()}}})
	if err != nil || ack.Dropped != 1 || len(e.status("web").Stats) != 1 {
		t.Errorf("a report about both: %v, %v, %v", ack, err, e.status("web").Stats)
	}
	// And the operator is told what is damaged.
	found, err := e.admin.CheckStore(c, &donav1.CheckStoreRequest{})
	if err != nil || !strings.Contains(strings.Join(found.Problems, "\n"), "svc/bad/head does not parse") || !strings.Contains(strings.Join(found.Problems, "\n"), "record ingress/") {
		t.Errorf("the check finds %v, %v", found.GetProblems(), err)
	}
}
