package api_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/api"
)

// entriesOf are the entries of the pool's chain after the first, as "kind key=value".
func (e *edge) entriesOf(after int, actor string) (all []string) {
	e.t.Helper()
	for _, one := range e.chain("@pool")[after:] {
		parts := []string{one.Kind}
		for _, key := range slices.Sorted(maps.Keys(one.Detail)) {
			parts = append(parts, key+"="+one.Detail[key])
		}
		all = append(all, strings.Join(parts, " "))
		if one.Actor != actor {
			e.t.Errorf("the actor of %v is %s, want %s", parts, one.Actor, actor)
		}
	}
	return all
}

// TestPoolAdmin: what operators change has its revision and its entry, and the same
// again has neither; a dry run and what is refused for its revision change nothing.
func TestPoolAdmin(t *testing.T) {
	e := newEdge(t)
	c, pools := ctx(t), controlplanev1.NewPoolAdminClient(e.conn)
	at := 0
	wrote := func(what string, err error, want ...string) {
		t.Helper()
		fatal(t, err)
		got := e.entriesOf(at, api.DevActor)
		at += len(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s wrote\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	inForce := func(what string, revision uint64, yaml string) {
		t.Helper()
		got, err := pools.GetConfig(c, &controlplanev1.GetConfigRequest{})
		fatal(t, err)
		if got.Revision != revision || got.Yaml != yaml {
			t.Errorf("%s: revision %d of %d bytes is in force, want %d of %d", what, got.Revision, len(got.Yaml), revision, len(yaml))
		}
	}
	publish := func(req *controlplanev1.PublishConfigRequest, revision uint64, warnings ...string) error {
		t.Helper()
		resp, err := pools.PublishConfig(c, req)
		if err == nil && (resp.Revision != revision || !slices.Equal(resp.Warnings, warnings)) {
			t.Errorf("published as %v, want %d with %q", resp, revision, warnings)
		}
		return err
	}
	inForce("before the first", 0, "")
	_, err := pools.SetUpstreamEnabled(c, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "dc"})
	refused(t, "before the first", err, codes.Unavailable, "")
	wrote("a dry run", publish(&controlplanev1.PublishConfigRequest{Yaml: poolDocument, DryRun: true}, 0))
	inForce("after a dry run", 0, "")
	wrote("PublishConfig", publish(&controlplanev1.PublishConfigRequest{Yaml: poolDocument}, 1), "pool.config revision=1")
	refused(t, "overtaken", publish(&controlplanev1.PublishConfigRequest{Yaml: poolDocument, ExpectedRevision: 2}, 0), codes.FailedPrecondition, "expected_revision")
	inForce("after one that was overtaken", 1, poolDocument)
	second := poolDocument + "# once more\n"
	wrote("PublishConfig as expected", publish(&controlplanev1.PublishConfigRequest{Yaml: second, ExpectedRevision: 1}, 2), "pool.config revision=2")
	inForce("the second", 2, second)

	enabled := func(on bool, revision uint64) error {
		t.Helper()
		resp, err := pools.SetUpstreamEnabled(c, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "dc", Enabled: on})
		if err == nil && resp.Revision != revision {
			t.Errorf("revision %d, want %d", resp.Revision, revision)
		}
		return err
	}
	wrote("SetUpstreamEnabled", enabled(false, 3), "pool.upstream enabled=false name=dc")
	wrote("SetUpstreamEnabled again", enabled(false, 3))
	_, err = pools.Extract(c, &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1})
	refused(t, "of what is switched off", err, codes.FailedPrecondition, "")
	wrote("PublishConfig over a switch", publish(&controlplanev1.PublishConfigRequest{Yaml: poolDocument}, 4, "upstream dc stays disabled, as an operator switched it"), "pool.config revision=4")
	wrote("SetUpstreamEnabled back", enabled(true, 5), "pool.upstream enabled=true name=dc")
	route := func(req *controlplanev1.SetRoutingRequest, revision uint64) error {
		t.Helper()
		req.Routing = "all"
		resp, err := pools.SetRouting(c, req)
		if err == nil && resp.Revision != revision {
			t.Errorf("revision %d, want %d", resp.Revision, revision)
		}
		return err
	}
	wrote("SetRouting", route(&controlplanev1.SetRoutingRequest{}, 6), "pool.routing enabled=false name=all")
	wrote("SetRouting again", route(&controlplanev1.SetRoutingRequest{}, 6))
	wrote("SetRouting back", route(&controlplanev1.SetRoutingRequest{Enabled: true}, 7), "pool.routing enabled=true name=all")

	imported := func(list string, added, refreshed uint32, rejected ...string) error {
		t.Helper()
		resp, err := pools.ImportProxies(c, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: list, Ttl: durationpb.New(time.Hour)})
		if err == nil && (resp.Added != added || resp.Refreshed != refreshed || len(resp.Rejected) != len(rejected)) {
			t.Errorf("imported as %v", resp)
			return nil
		}
		for i, begin := range rejected {
			if err == nil && !strings.HasPrefix(resp.Rejected[i], begin) {
				t.Errorf("rejected as %q, want %s…", resp.Rejected[i], begin)
			}
		}
		return err
	}
	const bad = "192.0.2.1:80\nnot a proxy\n192.0.2.2:80\n"
	wrote("ImportProxies", imported(bad, 2, 0, "line 2: "), "pool.import added=2 rejected=1")
	wrote("ImportProxies again", imported(bad, 0, 2, "line 2: "), "pool.import added=0 rejected=1")
	wrote("ImportProxies of nothing", imported("not a proxy\n", 0, 0, "line 1: "))
	_, err = pools.BeginDrain(c, &controlplanev1.BeginDrainRequest{ProxyId: listAll(t, pools, 1)[0]})
	refused(t, "nobody's", err, codes.FailedPrecondition, "")
	wrote("what was refused", nil)
}

// TestPagesOfProxies: pages of any size have each proxy once, by upstream and state.
func TestPagesOfProxies(t *testing.T) {
	f := newFleet(t)
	const n = 25
	want := f.available(n)
	_, err := f.pools.ImportProxies(ctx(t), &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "192.0.2.99:80"})
	fatal(t, err)
	all := listAll(t, f.pools, 1000)
	if len(all) != n+1 {
		t.Fatalf("%d proxies, want %d", len(all), n+1)
	}
	for _, size := range []uint32{1, 7, n, n + 1, 0} {
		if got := listAll(t, f.pools, size); !slices.Equal(got, all) {
			t.Errorf("pages of %d have %v, want %v", size, got, all)
		}
	}
	slices.Sort(want)
	for state, n := range map[string]int{"available": n, "NEW": 1, "extracted": 0} {
		resp, err := f.pools.ListProxies(ctx(t), &controlplanev1.ListProxiesRequest{Upstream: "dc", State: state})
		fatal(t, err)
		if len(resp.Proxies) != n || resp.NextPageToken != "" {
			t.Errorf("%d are %s, want %d", len(resp.Proxies), state, n)
		}
		for _, p := range resp.Proxies {
			if _, known := slices.BinarySearch(want, p.Proxy.ProxyId); known != (state == "available") {
				t.Errorf("%s is %s", p.Proxy.ProxyId, state)
			}
		}
	}
	got, err := f.pools.ListProxies(ctx(t), &controlplanev1.ListProxiesRequest{Upstream: "nope"})
	if err != nil || len(got.Proxies) != 0 {
		t.Errorf("of no upstream: %v, %v", got, err)
	}
}

// listAll reads all pages of a size.
func listAll(t *testing.T, pools controlplanev1.PoolAdminClient, size uint32) (ids []string) {
	t.Helper()
	for token, pages := "", 0; ; pages++ {
		resp, err := pools.ListProxies(ctx(t), &controlplanev1.ListProxiesRequest{PageSize: size, PageToken: token})
		fatal(t, err)
		if size > 0 && len(resp.Proxies) > int(size) || pages > 1000 {
			t.Fatalf("a page of %d has %d", size, len(resp.Proxies))
		}
		for _, p := range resp.Proxies {
			ids = append(ids, p.Proxy.ProxyId)
		}
		if token = resp.NextPageToken; token == "" {
			return ids
		}
	}
}
