package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
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

// TestDamageWithinAService: what does not parse inside a service takes nothing else
// of it away. Who watches keeps its last good form, and all that changes around it;
// alarms name it; and whoever writes it anew mends it.
func TestDamageWithinAService(t *testing.T) {
	shared := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = shared.Close() })
	e := newEdge(t, onStore(shared))
	c := ctx(t)
	flag := func(name string) {
		t.Helper()
		_, err := e.client.SetFlag(c, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: name, RolloutPercent: 10, RolloutVariant: "v1"}})
		if err != nil {
			t.Errorf("set flag %s: %v", name, err)
		}
	}
	flag("f")
	flag("g")
	ids := []string{"a", "b", "c"}
	streams := map[string]held{}
	for _, id := range ids {
		streams[id] = e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = id; b.Variant = "v" + id }))
	}
	watch := func(feeds *snapshot.Feeds) (next func(what string, endpoints, flags []string)) {
		w, err := feeds.Subscribe("web", snapshot.Watcher{})
		fatal(t, err)
		t.Cleanup(w.Close)
		return func(what string, endpoints, flags []string) {
			t.Helper()
			for {
				frame, err := w.Next(c)
				if err != nil {
					t.Fatalf("waiting for %s: %v", what, err)
				}
				var f donav1.ConfigSnapshot
				fatal(t, proto.Unmarshal(frame.EncodedMessage(), &f))
				var eps, fs []string
				for _, ep := range f.Endpoints {
					eps = append(eps, ep.Id)
				}
				for _, r := range f.Flags {
					fs = append(fs, r.Flag)
				}
				if slices.Equal(eps, endpoints) && slices.Equal(fs, flags) {
					return
				}
			}
		}
	}
	damage := func(value []byte, keys ...string) {
		t.Helper()
		fatal(t, shared.Update(c, store.Hard, func(tx store.Tx) error {
			for _, key := range keys {
				if err := tx.Put("svc/web/"+key, value); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	alarmed := func(feeds *snapshot.Feeds, parts ...string) {
		t.Helper()
		for {
			all := strings.Join(feeds.Alarms(), "\n")
			found := len(parts) > 0 || all == ""
			for _, p := range parts {
				found = found && strings.Contains(all, p)
			}
			if found {
				return
			}
			select {
			case <-c.Done():
				t.Fatalf("the alarms are %q, wanted is %q", all, parts)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	next := watch(e.feeds)
	next("all", ids, []string{"f", "g"})
	// Bytes that are no message, and bytes that are an empty one.
	for _, value := range [][]byte{{0xff}, {}} {
		damage(value, "flag/f", "ep/b", "calls/a", "plan")
		flag("h")
		next("what changed around the damage", ids, []string{"f", "g", "h"})
		alarmed(e.feeds, "web", "svc/web/flag/f", "svc/web/ep/b")
		// Another host, which never saw them whole, gives out the rest and says so.
		other, err := snapshot.New(snapshot.Options{Store: shared, Source: service.New(shared, audit.New("example.org"), "h2").Source()})
		fatal(t, err)
		t.Cleanup(other.Close)
		nextThere := watch(other)
		nextThere("the rest", []string{"a", "c"}, []string{"g", "h"})
		alarmed(other, "svc/web/flag/f", "svc/web/ep/b")
		if s := e.status("web"); len(s.Config.Flags) != 2 || len(s.Config.Endpoints) != 2 {
			t.Errorf("the status has %v", s.Config)
		}
		// Whoever writes them anew mends them.
		flag("f")
		if _, err := e.client.SetFlag(c, &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "h"}}); err != nil {
			t.Error(err)
		}
		// A heartbeat finds that there is nothing to go on from: its client registers
		// anew.
		fatal(t, streams["b"].stream.Send(&donav1.EndpointHeartbeat{Sequence: 1}))
		if err := streams["b"].ended(); status.Code(err) != codes.Aborted {
			t.Errorf("a heartbeat of a damaged endpoint: %v", err)
		}
		next("the damaged endpoint has gone", []string{"a", "c"}, []string{"f", "g"})
		streams["b"] = e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "b"; b.Variant = "vb" }))
		next("it is back", ids, []string{"f", "g"})
		nextThere("all, at the other host", ids, []string{"f", "g"})
		// And one that comes while the damaged record is still there takes its place.
		damage(value, "ep/c")
		streams["c"] = e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "c"; b.Variant = "vc" }))
		// One that is deleted is gone.
		flag("i")
		damage(value, "flag/i")
		if _, err := e.client.SetFlag(c, &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "i"}}); err != nil {
			t.Errorf("delete a damaged flag: %v", err)
		}
		alarmed(e.feeds)
		alarmed(other)
		// What they were counted as holds, too.
		fatal(t, shared.Update(c, store.Hard, func(tx store.Tx) error {
			for _, derived := range []string{"plan", "calls/a"} { // a planner and reports write these anew
				if err := tx.Delete("svc/web/" + derived); err != nil {
					return err
				}
			}
			return nil
		}))
		found, err := e.admin.CheckStore(c, &donav1.CheckStoreRequest{})
		if err != nil || len(found.Problems) > 0 {
			t.Errorf("the check finds %v, %v", found.GetProblems(), err)
		}
	}
}
