package api_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

const sha = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func artifact(change func(*donav1.RegisterArtifactRequest)) *donav1.RegisterArtifactRequest {
	r := &donav1.RegisterArtifactRequest{Service: "web", Version: "1", Digest: sha, Uri: "oci://registry.example.com/web"}
	if change != nil {
		change(r)
	}
	return r
}

func route(change func(*donav1.SetIngressRequest)) *donav1.SetIngressRequest {
	r := &donav1.SetIngressRequest{Service: "web", Host: "www.example.com", PathPrefix: "/", AllowedRegions: []string{"eu"}}
	if change != nil {
		change(r)
	}
	return r
}

func share(change func(*donav1.SetSharedServiceRequest)) *donav1.SetSharedServiceRequest {
	r := &donav1.SetSharedServiceRequest{Service: "web", Consumers: []string{"shop"}}
	if change != nil {
		change(r)
	}
	return r
}

func many(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("s", i))
	}
	return list
}

// deliveryRows are the bad requests about artifacts, releases, deployments,
// ingress and sharing.
func deliveryRows() (rows []row) {
	const invalid = codes.InvalidArgument
	type client = donav1.ControlPlaneClient
	type A = donav1.RegisterArtifactRequest
	type I = donav1.SetIngressRequest
	type S = donav1.SetSharedServiceRequest
	for _, n := range names {
		rows = append(rows,
			unary("RegisterArtifact: service "+n.what, client.RegisterArtifact, artifact(func(r *A) { r.Service = n.value }), invalid, "service"),
			unary("RegisterArtifact: version "+n.what, client.RegisterArtifact, artifact(func(r *A) { r.Version = n.value }), invalid, "version"),
			unary("RegisterArtifact: digest "+n.what, client.RegisterArtifact, artifact(func(r *A) { r.Digest = n.value }), invalid, "digest"),
			unary("CreateRelease: service "+n.what, client.CreateRelease, &donav1.CreateReleaseRequest{Service: n.value, ArtifactId: "web:1", Variant: "v1"}, invalid, "service"),
			unary("CreateRelease: artifact "+n.what, client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: n.value, Variant: "v1"}, invalid, "artifact_id"),
			unary("CreateRelease: variant "+n.what, client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:1", Variant: n.value}, invalid, "variant"),
			unary("StartDeployment: release "+n.what, client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: n.value, Strategy: 1}, invalid, "release_id"),
			unary("StartDeployment: environment "+n.what, client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Environment: n.value, Strategy: 1}, invalid, "environment"),
			unary("StartDeployment: region "+n.what, client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Regions: []string{n.value}, Strategy: 1}, invalid, "regions[0]"),
			unary("SetIngress: service "+n.what, client.SetIngress, route(func(r *I) { r.Service = n.value }), invalid, "service"),
			unary("SetIngress: host "+n.what, client.SetIngress, route(func(r *I) { r.Host = n.value }), invalid, "host"),
			unary("SetIngress: prefix "+n.what, client.SetIngress, route(func(r *I) { r.PathPrefix = n.value }), invalid, "path_prefix"),
			unary("SetIngress: region "+n.what, client.SetIngress, route(func(r *I) { r.AllowedRegions = []string{n.value} }), invalid, "allowed_regions[0]"),
			unary("SetSharedService: service "+n.what, client.SetSharedService, share(func(r *S) { r.Service = n.value }), invalid, "service"),
			unary("SetSharedService: consumer "+n.what, client.SetSharedService, share(func(r *S) { r.Consumers = []string{"shop", n.value} }), invalid, "consumers[1]"),
			unary("SetSharedService: region "+n.what, client.SetSharedService, share(func(r *S) { r.AllowedRegions = []string{n.value} }), invalid, "allowed_regions[0]"),
			unary("ListArtifacts: service "+n.what, client.ListArtifacts, &donav1.ListArtifactsRequest{Service: n.value}, invalid, "service"),
			unary("ListReleases: service "+n.what, client.ListReleases, &donav1.ListReleasesRequest{Service: n.value}, invalid, "service"),
		)
	}
	return append(rows,
		unary("RegisterArtifact: empty", client.RegisterArtifact, &A{}, invalid, "service"),
		unary("RegisterArtifact: no digest", client.RegisterArtifact, artifact(func(r *A) { r.Digest = "" }), invalid, "digest"),
		unary("RegisterArtifact: another hash", client.RegisterArtifact, artifact(func(r *A) { r.Digest = "sha512:" + sha[7:] }), invalid, "digest"),
		unary("RegisterArtifact: 63 digits", client.RegisterArtifact, artifact(func(r *A) { r.Digest = sha[:70] }), invalid, "digest"),
		unary("RegisterArtifact: 65 digits", client.RegisterArtifact, artifact(func(r *A) { r.Digest = sha + "0" }), invalid, "digest"),
		unary("RegisterArtifact: no hex", client.RegisterArtifact, artifact(func(r *A) { r.Digest = sha[:70] + "g" }), invalid, "digest"),
		unary("RegisterArtifact: a password", client.RegisterArtifact, artifact(func(r *A) { r.Uri = "https://ci:secret@example.com/web" }), invalid, "uri"),
		unary("RegisterArtifact: a password in no URL", client.RegisterArtifact, artifact(func(r *A) { r.Uri = "https://ci:100%@example.com/web" }), invalid, "uri"),
		unary("RegisterArtifact: a long uri", client.RegisterArtifact, artifact(func(r *A) { r.Uri = strings.Repeat("u", limits.URLLen+1) }), invalid, "uri"),
		unary("RegisterArtifact: 33 labels", client.RegisterArtifact, artifact(func(r *A) { r.Labels = labels(33) }), invalid, "labels"),
		unary("RegisterArtifact: a long label", client.RegisterArtifact, artifact(func(r *A) { r.Labels = map[string]string{"k": strings.Repeat("v", 257)} }), invalid, `labels["k"]`),
		unary("CreateRelease: empty", client.CreateRelease, &donav1.CreateReleaseRequest{}, invalid, "service"),
		unary("CreateRelease: unknown artifact", client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:9", Variant: "v1"}, codes.NotFound, "artifact_id"),
		unary("StartDeployment: empty", client.StartDeployment, &donav1.StartDeploymentRequest{}, invalid, "release_id"),
		unary("StartDeployment: no strategy", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1"}, invalid, "strategy"),
		unary("StartDeployment: strategy 99", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 99}, invalid, "strategy"),
		unary("StartDeployment: strategy -1", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: -1}, invalid, "strategy"),
		unary("StartDeployment: a release of no plain number", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/01", Strategy: 1}, invalid, "release_id"),
		unary("StartDeployment: canary beside RECREATE", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 1, Canary: &donav1.StartRolloutRequest{}}, invalid, "canary"),
		unary("StartDeployment: canary of another service", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 3, Canary: &donav1.StartRolloutRequest{Service: "pay", StableVariant: "v1"}}, invalid, "canary.service"),
		unary("CreateRelease: an artifact of another service", client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "pay:1", Variant: "v1"}, invalid, "artifact_id"),
		unary("StartDeployment: CANARY without", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 3}, invalid, "canary"),
		unary("StartDeployment: steps", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 3, Canary: &donav1.StartRolloutRequest{StableVariant: "v1", Steps: []uint32{5, 5}}}, invalid, "canary.steps[1]"),
		unary("StartDeployment: unknown release", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/9", Strategy: 1}, codes.NotFound, "release_id"),
		unary("StartDeployment: a day and a second", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 1, ReadyTimeoutSeconds: 86_401}, invalid, "ready_timeout_seconds"),
		unary("StartDeployment: 65 regions", client.StartDeployment, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 1, Regions: many(65)}, invalid, "regions"),
		unary("SetIngress: empty", client.SetIngress, &I{}, invalid, "service"),
		unary("SetIngress: no host", client.SetIngress, route(func(r *I) { r.Host = "" }), invalid, "host"),
		unary("SetIngress: a port", client.SetIngress, route(func(r *I) { r.Host = "a.b:80" }), invalid, "host"),
		unary("SetIngress: upper case", client.SetIngress, route(func(r *I) { r.Host = "A.b" }), invalid, "host"),
		unary("SetIngress: a star within", client.SetIngress, route(func(r *I) { r.Host = "a.*.b" }), invalid, "host"),
		unary("SetIngress: a star alone", client.SetIngress, route(func(r *I) { r.Host = "*" }), invalid, "host"),
		unary("SetIngress: no slash", client.SetIngress, route(func(r *I) { r.PathPrefix = "api" }), invalid, "path_prefix"),
		unary("SetIngress: a slash at the end", client.SetIngress, route(func(r *I) { r.PathPrefix = "/api/" }), invalid, "path_prefix"),
		unary("SetIngress: a long prefix", client.SetIngress, route(func(r *I) { r.PathPrefix = "/" + strings.Repeat("p", limits.PathPrefixLen) }), invalid, "path_prefix"),
		unary("SetIngress: a region twice", client.SetIngress, route(func(r *I) { r.AllowedRegions = []string{"eu", "eu"} }), invalid, "allowed_regions[1]"),
		unary("SetIngress: 65 regions", client.SetIngress, route(func(r *I) { r.AllowedRegions = many(65) }), invalid, "allowed_regions"),
		unary("SetIngress: unknown service", client.SetIngress, route(func(r *I) { r.Service = "nope" }), codes.NotFound, "nope"),
		unary("SetIngress: delete what is not there", client.SetIngress, route(func(r *I) { r.Delete = true }), codes.NotFound, "web"),
		unary("SetSharedService: empty", client.SetSharedService, &S{}, invalid, "service"),
		unary("SetSharedService: nobody", client.SetSharedService, share(func(r *S) { r.Consumers = nil }), invalid, "consumers"),
		unary("SetSharedService: twice", client.SetSharedService, share(func(r *S) { r.Consumers = []string{"*", "*"} }), invalid, "consumers[1]"),
		unary("SetSharedService: 501", client.SetSharedService, share(func(r *S) { r.Consumers = many(limits.ConsumersPerService + 1) }), invalid, "consumers"),
		unary("SetSharedService: delete what is not there", client.SetSharedService, share(func(r *S) { r.Delete = true }), codes.NotFound, "web"),
		unary("ListArtifacts: unknown", client.ListArtifacts, &donav1.ListArtifactsRequest{Service: "nope"}, codes.NotFound, "nope"),
		unary("ListReleases: unknown", client.ListReleases, &donav1.ListReleasesRequest{Service: "nope"}, codes.NotFound, "nope"),
	)
}

// TestDelivery goes from an artifact to a deployment's end, over the wire.
func TestDelivery(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	a, err := e.client.RegisterArtifact(c, artifact(nil)) // makes the service
	fatal(t, err)
	_, err = e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Digest = sha[:70] + "0" }))
	refused(t, "another digest", err, codes.AlreadyExists, "digest")
	r, err := e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: "v1"})
	fatal(t, err)
	d, err := e.client.StartDeployment(c, &donav1.StartDeploymentRequest{ReleaseId: r.Id, Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE, Regions: []string{"eu"}})
	fatal(t, err)
	if d.State != donav1.Deployment_STATE_WAITING || d.Id == "" {
		t.Errorf("the deployment begins as %v", d)
	}
	stream, err := e.client.WatchStatus(c, &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	first, err := stream.Recv()
	fatal(t, err)
	if len(first.Deployments) != 1 || first.Deployments[0].Id != d.Id {
		t.Errorf("the status shows %v", first.Deployments)
	}
	e.register(endpoint(nil))
	for last := first; last.Deployments[0].State != donav1.Deployment_STATE_SUCCEEDED; {
		last, err = stream.Recv()
		fatal(t, err)
	}
	artifacts, err := e.client.ListArtifacts(c, &donav1.ListArtifactsRequest{Service: "web"})
	if err != nil || len(artifacts.Artifacts) != 1 || !proto.Equal(artifacts.Artifacts[0], a) {
		t.Errorf("the artifacts are %v, %v", artifacts, err)
	}
	releases, err := e.client.ListReleases(c, &donav1.ListReleasesRequest{Service: "web"})
	if err != nil || len(releases.Releases) != 1 || !proto.Equal(releases.Releases[0], r) {
		t.Errorf("the releases are %v, %v", releases, err)
	}
}

func TestIngress(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	for _, s := range []string{"web", "pay"} {
		e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = s }))
	}
	set := func(change func(*donav1.SetIngressRequest)) error {
		_, err := e.client.SetIngress(c, route(change))
		return err
	}
	fatal(t, set(nil))
	fatal(t, set(func(r *donav1.SetIngressRequest) { r.Host, r.PathPrefix, r.AllowedRegions = "*.example.com", "", nil }))
	before := e.written()
	fatal(t, set(nil))
	if e.written() != before {
		t.Error("the same rule again stored something")
	}
	refused(t, "another service", set(func(r *donav1.SetIngressRequest) { r.Service = "pay" }), codes.AlreadyExists, "host")
	refused(t, "deleted by another service", set(func(r *donav1.SetIngressRequest) { r.Service, r.Delete = "pay", true }), codes.NotFound, "pay")
	if e.written() != before {
		t.Error("a refusal stored something")
	}
	fatal(t, set(func(r *donav1.SetIngressRequest) { r.AllowedRegions = []string{"us"} }))
	fatal(t, set(func(r *donav1.SetIngressRequest) { r.Service, r.PathPrefix = "pay", "/pay" }))
	s, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	if len(s.Ingresses) != 2 || s.Ingresses[0].Host != "*.example.com" || s.Ingresses[0].PathPrefix != "/" || s.Ingresses[1].AllowedRegions[0] != "us" {
		t.Errorf("the rules are %v", s.Ingresses)
	}
	fatal(t, set(func(r *donav1.SetIngressRequest) { r.Delete = true }))
	fatal(t, set(func(r *donav1.SetIngressRequest) { r.Service = "pay" })) // free again
	chain := e.kinds("web")
	if !strings.HasSuffix(chain, "ingress.set ingress.set ingress.set ingress.delete") {
		t.Errorf("the chain is %s", chain)
	}
}

// TestRulesAtTheLimit: as many and as large as allowed, and one more.
func TestRulesAtTheLimit(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	e.register(endpoint(nil))
	_, err := e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) {
		r.Host, r.PathPrefix, r.AllowedRegions = strings.Repeat("a.", 126)+"b", "/"+strings.Repeat("p", limits.PathPrefixLen-1), many(limits.RegionsPerRule)
	}))
	fatal(t, err)
	for i := range limits.IngressesPerService - 1 {
		_, err := e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) { r.PathPrefix = fmt.Sprint("/p", i) }))
		fatal(t, err)
	}
	_, err = e.client.SetIngress(c, route(nil))
	refused(t, "a rule more", err, codes.ResourceExhausted, "web")
	_, err = e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) { r.PathPrefix, r.AllowedRegions = "/p0", nil }))
	fatal(t, err)

	names := many(limits.ConsumersPerService)
	for i := range names {
		names[i] = strings.Repeat("c", limits.ServiceNameLen-len(names[i])) + names[i]
	}
	regions := many(limits.RegionsPerRule)
	for i := range regions {
		regions[i] += strings.Repeat("r", limits.NameLen-len(regions[i]))
	}
	_, err = e.client.SetSharedService(c, share(func(r *donav1.SetSharedServiceRequest) { r.Consumers, r.AllowedRegions = names, regions }))
	fatal(t, err)
	_, err = e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) {
		r.Service, r.Version, r.Uri, r.Labels = strings.Repeat("s", limits.ServiceNameLen), strings.Repeat("1", limits.NameLen), strings.Repeat("u", limits.URLLen), labels(limits.Labels)
	}))
	fatal(t, err)
	_, err = e.client.StartDeployment(c, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: 1, Regions: many(64), ReadyTimeoutSeconds: 86_400, Environment: strings.Repeat("e", limits.NameLen)})
	refused(t, "all at the limit, of no release", err, codes.NotFound, "release_id")
}

// TestSharing: who is not named may not watch, and a watch that is open ends when
// its caller is shut out.
func TestSharing(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	set := func(change func(*donav1.SetSharedServiceRequest)) {
		t.Helper()
		_, err := e.client.SetSharedService(ctx(t), share(change))
		fatal(t, err)
	}
	as := func(caller, region string) donav1.ControlPlane_WatchConfigClient {
		return e.watch(&donav1.WatchConfigRequest{Service: "web", CallerService: caller, CallerRegion: region})
	}
	in := func(w donav1.ControlPlane_WatchConfigClient) { t.Helper(); next(t, w, endpoints(1)) }
	out := func(what string, w donav1.ControlPlane_WatchConfigClient) {
		t.Helper()
		_, err := w.Recv()
		for err == nil {
			_, err = w.Recv()
		}
		if errors.Is(err, io.EOF) {
			t.Errorf("%s: the watch ended without a reason", what)
		}
		refused(t, what, err, codes.PermissionDenied, "")
		if s := status.Convert(err); strings.Contains(s.Message(), "web") {
			t.Errorf("%s: %q tells that the service is there", what, s.Message())
		}
	}

	shop, pay, nobody := as("shop", "eu"), as("pay", "eu"), as("", "")
	in(shop)
	in(pay)
	in(nobody)
	before := e.kinds("web")
	set(nil) // shop alone
	out("a caller that is not named", pay)
	out("a caller without a name", nobody)
	out("a new watch of one that is not named", as("pay", "eu"))
	in(as("shop", "us"))

	set(func(r *donav1.SetSharedServiceRequest) { r.AllowedRegions = []string{"eu"} })
	out("the right caller in another region", as("shop", "us"))
	out("the right caller in no region", as("shop", ""))
	in(as("shop", "eu"))

	set(func(r *donav1.SetSharedServiceRequest) { r.Consumers = []string{"*"} })
	anyone := as("", "")
	in(anyone)
	in(as("pay", "us"))
	revision := e.written()
	set(func(r *donav1.SetSharedServiceRequest) { r.Consumers = []string{"*"} })
	if e.written() != revision {
		t.Error("the same sharing again stored something")
	}
	s, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	if err != nil || len(s.Shared.GetConsumers()) != 1 {
		t.Errorf("the status shows %v, %v", s.GetShared(), err)
	}

	set(func(r *donav1.SetSharedServiceRequest) { r.Delete = true })
	in(as("", "mars"))
	// Those that had the right all along were never disturbed.
	_, err = e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	for _, w := range []donav1.ControlPlane_WatchConfigClient{shop, anyone} {
		next(t, w, func(f *donav1.ConfigSnapshot) bool { return len(f.Flags) == 1 })
	}
	if got := strings.TrimPrefix(e.kinds("web"), before); got != " shared.set shared.set shared.set shared.delete flag.set" {
		t.Errorf("the chain goes on with %s", got)
	}
	// It makes a service, like a flag does.
	_, err = e.client.SetSharedService(ctx(t), share(func(r *donav1.SetSharedServiceRequest) { r.Service = "new" }))
	fatal(t, err)
	list, err := e.client.ListServices(ctx(t), &donav1.ListServicesRequest{})
	if err != nil || strings.Join(list.Services, " ") != "new web" {
		t.Errorf("the services are %v, %v", list.GetServices(), err)
	}
}

// kinds is a chain in short.
func (e *edge) kinds(chain string) string {
	e.t.Helper()
	var kinds []string
	fatal(e.t, e.store.View(ctx(e.t), func(tx store.ReadTx) error {
		kinds = nil
		var head statev1.ChainHead
		if _, err := store.Load(tx, "audit/"+chain+"/head", &head); err != nil {
			return err
		}
		lines, err := tx.ReadLog("audit/"+chain, 1, 0)
		if uint64(len(lines)) != head.Seq {
			e.t.Errorf("chain %s has %d entries, its head says %d", chain, len(lines), head.Seq)
		}
		for _, l := range lines {
			_, rest, _ := strings.Cut(string(l.Payload), `"kind":"`)
			kind, _, _ := strings.Cut(rest, `"`)
			kinds = append(kinds, kind)
		}
		return err
	}))
	return strings.Join(kinds, " ")
}
