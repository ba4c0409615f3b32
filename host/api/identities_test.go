package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

const domain = "example.org"

// secured is an edge with mTLS; what its own connection calls, admin/ann calls.
func secured(t *testing.T, ca *svidtest.CA, edits ...func(*api.Options)) *edge {
	return newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Minute}), serving(func(o *api.Options) {
		o.Dev, o.Identity, o.TrustDomain = false, ca.Source("/host/h1"), spiffeid.RequireTrustDomainFromString(domain)
		for _, edit := range edits {
			edit(o)
		}
	}, grpc.WithTransportCredentials(mtls(ca.Source("/admin/ann")))))
}

// mtls are the credentials of a client that talks to host/h1 alone.
func mtls(src api.Identity) credentials.TransportCredentials {
	return credentials.NewTLS(tlsconfig.MTLSClientConfig(src, src, tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/host/h1"))))
}

// as opens a connection to the edge.
func (e *edge) as(creds credentials.TransportCredentials) *grpc.ClientConn {
	e.t.Helper()
	conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(creds))
	fatal(e.t, err)
	e.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// counted is a metric's value; of a vector, that of all labels together.
func (e *edge) counted(name string) (n float64) {
	e.t.Helper()
	families, err := e.metrics.Gather()
	fatal(e.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// kinds is one identity of each kind, by the role that it has.
var kinds = map[api.Role]string{
	api.Workload: "/svc/web", api.Worker: "/prod/worker/w1", api.Checker: "/prod/checker/c1", api.Admin: "/admin/ann", api.Host: "/host/h2",
}

// TestEachCallForEachRole: over real connections, each method answers a role as the
// table says.
func TestEachCallForEachRole(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	conns := map[api.Role]*grpc.ClientConn{}
	for role, path := range kinds {
		conns[role] = e.as(mtls(ca.Source(path)))
	}
	calls := 0
	for service, info := range e.server.GetServiceInfo() {
		desc, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		fatal(t, err)
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			rule, ok := api.Policy[method]
			if !ok {
				t.Errorf("%s has no row", method)
				continue
			}
			md := desc.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(m.Name))
			for role, conn := range conns {
				calls++
				err := callEmpty(t, conn, method, md)
				allowed := slices.Contains(rule.Roles, role) || slices.Contains(rule.Roles, api.Anyone)
				switch code := status.Code(err); {
				case allowed && (code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.Unavailable):
					t.Errorf("%s as %s: %v", method, role, err)
				case !allowed && (code != codes.PermissionDenied || status.Convert(err).Message() != "this identity may not call this method"):
					t.Errorf("%s as %s: %v, want PERMISSION_DENIED", method, role, err)
				}
			}
		}
	}
	if calls < 5*len(kinds) {
		t.Errorf("%d calls only", calls)
	}
}

// callEmpty makes a call with an empty message; running out of time is an answer, too.
func callEmpty(t *testing.T, conn *grpc.ClientConn, method string, md protoreflect.MethodDescriptor) error {
	t.Helper()
	c := ctx(t)
	req, reply := dynamicpb.NewMessage(md.Input()), dynamicpb.NewMessage(md.Output())
	if !md.IsStreamingClient() && !md.IsStreamingServer() {
		return conn.Invoke(c, method, req, reply)
	}
	c, cancel := context.WithCancel(c)
	defer cancel()
	s, err := conn.NewStream(c, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	fatal(t, err)
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	fatal(t, s.CloseSend())
	answered := make(chan error, 1)
	go func() { answered <- s.RecvMsg(reply) }()
	select {
	case err := <-answered:
		return err
	case <-time.After(2 * time.Second): // it waits for something to tell: it was let in
		cancel()
		<-answered
		return nil
	}
}

// TestOtherObjects: what a request names has to be the caller's own, and the answer
// does not say whether there is another one of that name.
func TestOtherObjects(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	web, api_ := e.as(mtls(ca.Source("/svc/web"))), e.as(mtls(ca.Source("/svc/api")))
	checker := e.as(mtls(ca.Source("/prod/checker/c1")))
	registering(t, api_, "api", "a")
	for id, conn := range map[string]*grpc.ClientConn{"c1": checker, "c2": e.as(mtls(ca.Source("/prod/checker/c2")))} {
		_, err := controlplanev1.NewCheckerControlPlaneClient(conn).RegisterChecker(ctx(t), checkerNamed(id))
		fatal(t, err)
	}

	type object struct {
		conn     *grpc.ClientConn
		own      string
		others   [2]string // one that there is, one that there is not
		call     func(conn *grpc.ClientConn, name string) error
		wantElse codes.Code // of its own
	}
	_, err := controlplanev1.NewPoolAdminClient(e.conn).PublishConfig(ctx(t), &controlplanev1.PublishConfigRequest{Yaml: poolDocument})
	fatal(t, err)
	worker := e.as(mtls(ca.Source("/prod/worker/w1")))
	_, err = controlplanev1.NewWorkerControlPlaneClient(e.as(mtls(ca.Source("/prod/worker/w2")))).RegisterWorker(ctx(t), workerNamed("w2"))
	fatal(t, err)
	ofWorker := func(call func(c controlplanev1.WorkerControlPlaneClient, name string) error, own codes.Code) object {
		return object{worker, "w1", [2]string{"w2", "nope"}, func(conn *grpc.ClientConn, name string) error {
			return call(controlplanev1.NewWorkerControlPlaneClient(conn), name)
		}, own}
	}
	recv := func(s interface{ RecvMsg(any) error }, m proto.Message, err error) error {
		if err != nil {
			return err
		}
		return s.RecvMsg(m)
	}
	for method, o := range map[string]object{
		donav1.ControlPlane_RegisterEndpoint_FullMethodName: {web, "web", [2]string{"api", "nope"}, func(conn *grpc.ClientConn, name string) error {
			s, err := donav1.NewControlPlaneClient(conn).RegisterEndpoint(ctx(t))
			fatal(t, err)
			fatal(t, s.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = name })))
			_, err = s.CloseAndRecv()
			return err
		}, codes.OK},
		donav1.ControlPlane_WatchConfig_FullMethodName: {web, "web", [2]string{"api", "nope"}, func(conn *grpc.ClientConn, name string) error {
			s, err := donav1.NewControlPlaneClient(conn).WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "api", CallerService: name})
			return recv(s, &donav1.ConfigSnapshot{}, err)
		}, codes.OK},
		donav1.ControlPlane_ReportStats_FullMethodName: {web, "web", [2]string{"api", "nope"}, func(conn *grpc.ClientConn, name string) error {
			_, err := donav1.NewControlPlaneClient(conn).ReportStats(ctx(t), &donav1.StatsBatch{Calls: []*donav1.CallOutcome{
				{Service: "api", Variant: "v1", UnixMs: time.Now().UnixMilli()}, {Service: "api", Variant: "v1", CallerService: name, UnixMs: time.Now().UnixMilli()}}})
			return err
		}, codes.OK},
		donav1.Identity_IssueSvid_FullMethodName: {web, "web", [2]string{"api", "nope"}, func(conn *grpc.ClientConn, name string) error {
			_, err := donav1.NewIdentityClient(conn).IssueSvid(ctx(t), &donav1.IssueSvidRequest{Service: name, CsrPem: newCSR(t)})
			return err
		}, codes.OK},
		controlplanev1.CheckerControlPlane_RegisterChecker_FullMethodName: {checker, "c1", [2]string{"c2", "nope"}, func(conn *grpc.ClientConn, name string) error {
			_, err := controlplanev1.NewCheckerControlPlaneClient(conn).RegisterChecker(ctx(t), checkerNamed(name))
			return err
		}, codes.OK},
		controlplanev1.CheckerControlPlane_ReportObservations_FullMethodName: {checker, "c1", [2]string{"c2", "nope"}, func(conn *grpc.ClientConn, name string) error {
			_, err := controlplanev1.NewCheckerControlPlaneClient(conn).ReportObservations(ctx(t), &controlplanev1.ReportObservationsRequest{CheckerId: name,
				Observations: []*controlplanev1.HealthObservation{{TaskId: "service/api/a"}}})
			return err
		}, codes.OK},
		controlplanev1.CheckerControlPlane_StreamCheckTasks_FullMethodName: {checker, "c1", [2]string{"c2", "nope"}, func(conn *grpc.ClientConn, name string) error {
			c, cancel := context.WithTimeout(ctx(t), 2*time.Second)
			defer cancel()
			s, err := controlplanev1.NewCheckerControlPlaneClient(conn).StreamCheckTasks(c, &controlplanev1.StreamCheckTasksRequest{CheckerId: name, InstanceId: "i1",
				Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC}, MaxInFlight: 1})
			return recv(s, &controlplanev1.CheckTask{}, err)
		}, codes.Unavailable}, // there is nothing to check
		controlplanev1.WorkerControlPlane_RegisterWorker_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			_, err := c.RegisterWorker(ctx(t), workerNamed(name))
			return err
		}, codes.OK),
		controlplanev1.WorkerControlPlane_WatchSnapshots_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			s, err := c.WatchSnapshots(ctx(t), &controlplanev1.WatchSnapshotsRequest{WorkerId: name, SessionId: "s"})
			return recv(s, &controlplanev1.SnapshotUpdate{}, err)
		}, codes.FailedPrecondition),
		controlplanev1.WorkerControlPlane_AcknowledgeSnapshot_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			_, err := c.AcknowledgeSnapshot(ctx(t), &controlplanev1.AcknowledgeSnapshotRequest{WorkerId: name, SessionId: "s", Version: 1, Checksum: make([]byte, 32)})
			return err
		}, codes.FailedPrecondition),
		controlplanev1.WorkerControlPlane_ReportRuntime_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			_, err := c.ReportRuntime(ctx(t), &controlplanev1.ReportRuntimeRequest{WorkerId: name, SessionId: "s", ReportSequence: 1})
			return err
		}, codes.FailedPrecondition),
		controlplanev1.WorkerControlPlane_ReportOutcomes_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			s, err := c.ReportOutcomes(ctx(t))
			fatal(t, err)
			_ = s.Send(&controlplanev1.OutcomeBatch{WorkerId: name, SessionId: "s", Sequence: 1, Outcomes: []*controlplanev1.Outcome{{Routing: "r", Stage: controlplanev1.Outcome_STAGE_DIAL}}})
			_, err = s.CloseAndRecv()
			return err
		}, codes.FailedPrecondition),
		controlplanev1.WorkerControlPlane_AcknowledgeDrain_FullMethodName: ofWorker(func(c controlplanev1.WorkerControlPlaneClient, name string) error {
			_, err := c.AcknowledgeDrain(ctx(t), &controlplanev1.AcknowledgeDrainRequest{WorkerId: name, SessionId: "s", ProxyId: "p"})
			return err
		}, codes.FailedPrecondition),
	} {
		if api.Policy[method].Object == "" {
			t.Errorf("%s: the table names no object", method)
		}
		if err := o.call(o.conn, o.own); status.Code(err) != o.wantElse {
			t.Errorf("%s of %s: %v, want %s", method, o.own, err, o.wantElse)
		}
		there, not := status.Convert(o.call(o.conn, o.others[0])), status.Convert(o.call(o.conn, o.others[1]))
		if there.Code() != codes.PermissionDenied || there.Message() != not.Message() || there.Code() != not.Code() {
			t.Errorf("%s: of one that there is %v, of one that there is not %v; want the same PERMISSION_DENIED", method, there, not)
		}
		delete(unseen, method)
	}
	for method := range unseen {
		t.Errorf("%s names an object, and no case here calls it for another's", method)
	}
}

// unseen are the methods whose callers speak for something of their own.
var unseen = func() map[string]bool {
	m := map[string]bool{}
	for method, rule := range api.Policy {
		if rule.Object != "" {
			m[method] = true
		}
	}
	return m
}()

// TestObjectsAreNamed: a method that others than operators may call says what has to
// be the caller's own.
func TestObjectsAreNamed(t *testing.T) {
	for method, rule := range api.Policy {
		operators := len(rule.Roles) == 1 && rule.Roles[0] == api.Admin
		anyone := slices.Contains(rule.Roles, api.Anyone)
		if named := rule.Object != ""; named == (operators || anyone) {
			t.Errorf("%s, for %v, has the object %q", method, rule.Roles, rule.Object)
		}
	}
}

func checkerNamed(id string) *controlplanev1.RegisterCheckerRequest {
	return &controlplanev1.RegisterCheckerRequest{CheckerId: id, InstanceId: "i1", MaxInFlight: 8, SupportedProtocolVersion: 1,
		Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC}}
}

// registering holds an endpoint until the test ends.
func registering(t *testing.T, conn *grpc.ClientConn, service, id string) donav1.ControlPlane_RegisterEndpointClient {
	t.Helper()
	s, err := donav1.NewControlPlaneClient(conn).RegisterEndpoint(ctx(t))
	fatal(t, err)
	fatal(t, s.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.EndpointId = service, id })))
	header, err := s.Header()
	fatal(t, err)
	if len(header.Get("dona-lease-id")) != 1 {
		_, err := s.CloseAndRecv()
		t.Fatalf("registered: %v, %v", header, err)
	}
	return s
}

// TestConsumersAreIdentities: whom a service is shared with is who watches it by
// certificate, and others' reports about it count for nothing.
func TestConsumersAreIdentities(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	registering(t, e.as(mtls(ca.Source("/svc/db"))), "db", "d")
	_, err := e.client.SetSharedService(ctx(t), &donav1.SetSharedServiceRequest{Service: "db", Consumers: []string{"web"}})
	fatal(t, err)
	watch := func(path string) error {
		s, err := donav1.NewControlPlaneClient(e.as(mtls(ca.Source(path)))).WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "db"})
		fatal(t, err)
		_, err = s.Recv()
		return err
	}
	if err := watch("/svc/web"); err != nil {
		t.Errorf("a consumer: %v", err)
	}
	if err := watch("/svc/api"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("no consumer: %v", err)
	}
	batch := &donav1.StatsBatch{ReporterId: "r", Sequence: 7, Calls: []*donav1.CallOutcome{{Service: "db", Variant: "v1", Success: true, UnixMs: time.Now().UnixMilli()}}}
	for path, dropped := range map[string]uint32{"/svc/web": 0, "/svc/db": 0, "/svc/api": 1} {
		// One reporter_id and one sequence of three services: none is a replay of another.
		ack, err := donav1.NewControlPlaneClient(e.as(mtls(ca.Source(path)))).ReportStats(ctx(t), batch)
		if err != nil || ack.Dropped != dropped {
			t.Errorf("%s: %v, %v, want %d dropped", path, ack, err, dropped)
		}
	}
	if got := e.status("db").Stats; len(got) != 1 || got[0].Requests != 2 {
		t.Errorf("counted are %v, want 2 requests", got)
	}
}

// TestActorIsTheIdentity: what is on record names the certificate, not the request.
func TestActorIsTheIdentity(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	_, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	fatal(t, e.store.View(context.Background(), func(tx store.ReadTx) error {
		lines, err := tx.ReadLog("audit/web", 1, 0)
		if err == nil && (len(lines) != 1 || !strings.Contains(string(lines[0].Payload), `"actor":"spiffe://example.org/admin/ann"`)) {
			t.Errorf("on record is %v", lines)
		}
		return err
	}))
}

// TestNoHandshake: who does not prove an identity of the trust domain reaches no
// handler.
func TestNoHandshake(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	uri := func(text string) *url.URL { u, err := url.Parse(text); fatal(t, err); return u }
	alone := func(id string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = []*url.URL{uri(id)} }
	}
	selfSigned := svidtest.NewCA(t, domain)
	good := ca.Source("/svc/web")
	config := func(src api.Identity) *tls.Config {
		return tlsconfig.MTLSClientConfig(src, ca.Bundle(), tlsconfig.AuthorizeAny())
	}
	old := config(good)
	old.MaxVersion = tls.VersionTLS12
	anonymous := tlsconfig.TLSClientConfig(ca.Bundle(), tlsconfig.AuthorizeAny())
	for name, c := range map[string]credentials.TransportCredentials{
		"plaintext":      insecure.NewCredentials(),
		"no certificate": credentials.NewTLS(anonymous),
		"TLS 1.2":        credentials.NewTLS(old),
		"expired":        credentials.NewTLS(config(ca.Source("/svc/web", svidtest.Lasting(-time.Second)))),
		"not yet valid": credentials.NewTLS(config(ca.Source("/svc/web", func(c *x509.Certificate) {
			c.NotBefore = time.Now().Add(time.Hour)
			c.NotAfter = c.NotBefore.Add(time.Hour)
		}))),
		"of another domain":             credentials.NewTLS(config(svidtest.NewCA(t, "other.org").Source("/svc/web"))),
		"our authority, another domain": credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://other.org/svc/web")))),
		"another authority, our domain": credentials.NewTLS(config(selfSigned.Source("/svc/web"))),
		"self-signed":                   credentials.NewTLS(config(selfSigned.Self("/svc/web"))),
		"two URI SANs":                  credentials.NewTLS(config(ca.Source("/svc/web", func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://example.org/admin/ann")) }))),
		"no URI SAN":                    credentials.NewTLS(config(ca.Source("/svc/web", func(c *x509.Certificate) { c.URIs = nil; c.DNSNames = []string{"web"} }))),
		"a common name": credentials.NewTLS(config(ca.Source("/svc/web", func(c *x509.Certificate) {
			c.URIs, c.Subject = nil, pkix.Name{CommonName: "spiffe://example.org/admin/ann"}
		}))),
		"a CA":                              credentials.NewTLS(config(ca.Source("/svc/web", func(c *x509.Certificate) { c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign }))),
		"the trust domain's own ID":         credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://example.org")))),
		"an ID of no kind":                  credentials.NewTLS(config(ca.Source("/svc/web/more"))),
		"an ID of no kind that begins well": credentials.NewTLS(config(ca.Source("/admin/ann/more"))),
		"upper case":                        credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://EXAMPLE.org/svc/web")))),
		"dots":                              credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://example.org/svc/../admin/ann")))),
		"an escape":                         credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://example.org/admin%2Fann")))),
		"two slashes":                       credentials.NewTLS(config(ca.Source("/svc/web", alone("spiffe://example.org//admin/ann")))),
	} {
		before := e.counted("dona_grpc_connections_refused_total")
		conn := e.as(c)
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx(t), &grpc_health_v1.HealthCheckRequest{})
		if code := status.Code(err); code != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
		eventually(t, name+": counted as refused", func() bool { return e.counted("dona_grpc_connections_refused_total") > before })
	}
	if n := e.counted("dona_rpc_total"); n != 0 {
		t.Errorf("%v calls reached a handler", n)
	}
	if _, err := grpc_health_v1.NewHealthClient(e.as(mtls(good))).Check(ctx(t), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("a good one: %v", err)
	}
	eventually(t, "only the good one is counted", func() bool { return e.counted("dona_grpc_connections") == 1 })
}

// TestExpiry: a connection ends with its certificate, and what it registered lasts
// until its client is back with a new one.
func TestExpiry(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca)
	const life = 3 * time.Second
	begin := time.Now()
	conn := e.as(mtls(ca.Source("/svc/web", svidtest.Lasting(life))))
	beats := registering(t, conn, "web", "a")
	watch, err := donav1.NewControlPlaneClient(conn).WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "web"})
	fatal(t, err)
	for err == nil {
		_, err = watch.Recv()
	}
	if took := time.Since(begin); status.Code(err) != codes.Unauthenticated || took < life-2*time.Second {
		t.Errorf("after %s the watch ended with %v", took, err)
	}
	if _, err := beats.CloseAndRecv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the registration ended with %v", err)
	}
	if _, err := donav1.NewControlPlaneClient(conn).ReportStats(ctx(t), &donav1.StatsBatch{}); status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.Unavailable {
		t.Errorf("a call after it: %v", err)
	}
	if got := e.status("web").Config.Endpoints; len(got) != 1 {
		t.Errorf("the endpoints are %v", got)
	}
	eventually(t, "hung up", func() bool { return e.counted("dona_grpc_connections") == 1 })
	registering(t, e.as(mtls(ca.Source("/svc/web"))), "web", "a")
}

// changing is an identity whose bundle can be taken away.
type changing struct {
	svidtest.Source
	bundle atomic.Pointer[x509bundle.Bundle]
}

func (c *changing) GetX509BundleForTrustDomain(spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return c.bundle.Load(), nil
}

var _ x509svid.Source = (*changing)(nil)

// TestReauthorisation: a connection outlives a new authority beside the old one, and
// not its authority's removal.
func TestReauthorisation(t *testing.T) {
	ca, next := svidtest.NewCA(t, domain), svidtest.NewCA(t, domain)
	id := &changing{Source: ca.Source("/host/h1")}
	id.bundle.Store(ca.Bundle())
	e := secured(t, ca, func(o *api.Options) { o.Identity, o.Reauthorise = id, 10*time.Millisecond })
	watch, err := donav1.NewControlPlaneClient(e.as(mtls(ca.Source("/svc/web")))).WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "web"})
	fatal(t, err)
	_, err = watch.Recv()
	fatal(t, err)

	both := ca.Bundle()
	for _, c := range next.Bundle().X509Authorities() {
		both.AddX509Authority(c)
	}
	id.bundle.Store(both)
	time.Sleep(100 * time.Millisecond) // several looks, none of which may end it
	registering(t, e.as(mtls(ca.Source("/svc/web"))), "web", "a")
	if m, err := watch.Recv(); err != nil || len(m.Endpoints) != 1 {
		t.Fatalf("with both authorities: %v, %v", m, err)
	}
	id.bundle.Store(next.Bundle())
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "no longer trusted") {
		t.Errorf("without its authority the watch ended with %v", err)
	}
}

// TestCaps: each bound holds, and what was counted is given back.
func TestCaps(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca, func(o *api.Options) { o.Caps = api.Caps{Connections: 4, ConnectionsPerPeer: 2, StreamsPerPeer: 3} })
	check := func(conn *grpc.ClientConn) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx(t), &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	web := ca.Source("/svc/web")
	first, second := e.as(mtls(web)), e.as(mtls(web))
	fatal(t, check(first))
	fatal(t, check(second))
	third := e.as(mtls(web))
	if err := check(third); status.Code(err) != codes.Unavailable {
		t.Errorf("a third connection of one identity: %v", err)
	}
	_ = third.Close()
	fatal(t, check(e.as(mtls(ca.Source("/svc/api")))))
	fatal(t, check(e.as(mtls(ca.Source("/svc/db")))))
	fifth := e.as(mtls(ca.Source("/svc/x")))
	if err := check(fifth); status.Code(err) != codes.Unavailable {
		t.Errorf("a fifth connection: %v", err)
	}
	_ = fifth.Close()
	fatal(t, second.Close())
	var open []grpc.ServerStreamingClient[donav1.ConfigSnapshot]
	for range 3 {
		s, err := donav1.NewControlPlaneClient(first).WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "web"})
		fatal(t, err)
		_, err = s.Recv()
		fatal(t, err)
		open = append(open, s)
	}
	if err := check(first); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a fourth call of one identity: %v", err)
	}
	fatal(t, first.Close())
	for _, s := range open {
		_, _ = s.Recv()
	}
	eventually(t, "the identity may call again", func() bool {
		conn := e.as(mtls(web))
		defer func() { _ = conn.Close() }()
		return check(conn) == nil
	})
}

// TestShedding: what goes on at which part of the memory limit.
func TestShedding(t *testing.T) {
	var percent atomic.Uint64
	e := newEdge(t, serving(func(o *api.Options) {
		o.Memory = func() (uint64, uint64) { return percent.Load(), 100 }
	}))
	e.register(endpoint(nil))
	item := func() *donav1.AuditEvent {
		return &donav1.AuditEvent{Service: "web", Decision: donav1.AuditEvent_DECISION_ALLOW, UnixMs: time.Now().UnixMilli(), Count: 1}
	}
	sequence := uint64(0)
	calls := map[string]func() error{
		"watch": func() error {
			s, err := e.client.WatchConfig(ctx(t), &donav1.WatchConfigRequest{Service: "web"})
			fatal(t, err)
			_, err = s.Recv()
			return err
		},
		"audit": func() error {
			sequence++
			_, err := e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: "r", Sequence: sequence, Audits: []*donav1.AuditEvent{item()}})
			return err
		},
		"admin": func() error {
			_, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
			return err
		},
		"beats": func() error {
			s, err := e.client.RegisterEndpoint(ctx(t))
			fatal(t, err)
			fatal(t, s.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "b" })))
			_, err = s.CloseAndRecv()
			return err
		},
	}
	for _, tc := range []struct {
		percent uint64
		refused string
		reports int // of ten that are refused
	}{
		{79, "", 0}, {80, "watch", 5}, {89, "watch", 5}, {90, "watch", 10}, {94, "watch", 10}, {95, "admin audit watch", 10}, {120, "admin audit watch", 10}, {0, "", 0},
	} {
		percent.Store(tc.percent)
		time.Sleep(150 * time.Millisecond) // longer than a look is good for
		var refused []string
		for name, call := range calls {
			err := call()
			if err != nil {
				refused = append(refused, name)
				if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "memory") {
					t.Errorf("at %d %%, %s: %v", tc.percent, name, err)
				}
			}
		}
		slices.Sort(refused)
		if got := strings.Join(refused, " "); got != tc.refused {
			t.Errorf("at %d %% refused are %q, want %q", tc.percent, got, tc.refused)
		}
		reports := 0
		for range 10 {
			if _, err := e.client.ReportStats(ctx(t), &donav1.StatsBatch{}); err != nil {
				reports++
			}
		}
		if reports != tc.reports {
			t.Errorf("at %d %% refused are %d of 10 reports, want %d", tc.percent, reports, tc.reports)
		}
	}
	if e.counted("dona_rpc_shed_total") == 0 {
		t.Error("nothing was counted")
	}
}

// TestEnvironment: a host of one environment takes its workers and checkers alone;
// services, operators and hosts are of none.
func TestEnvironment(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca, func(o *api.Options) { o.Environment = "prod" })
	for path, want := range map[string]codes.Code{"/prod/checker/c1": codes.OK, "/stage/checker/c1": codes.PermissionDenied, "/prod/worker/c1": codes.PermissionDenied} {
		_, err := controlplanev1.NewCheckerControlPlaneClient(e.as(mtls(ca.Source(path)))).RegisterChecker(ctx(t), checkerNamed("c1"))
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	registering(t, e.as(mtls(ca.Source("/svc/web"))), "web", "a")
	if got := e.status("web").Config.Endpoints; len(got) != 1 {
		t.Errorf("an operator sees %v", got)
	}
}

// TestPublishedEnvironment: the environment that the published configuration names goes
// before the host's, for workers and checkers alike and from the next call on; a worker
// of it speaks for itself alone.
func TestPublishedEnvironment(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e := secured(t, ca, func(o *api.Options) { o.Environment = "prod" })
	register := func(path, worker string) error {
		_, err := controlplanev1.NewWorkerControlPlaneClient(e.as(mtls(ca.Source(path)))).RegisterWorker(ctx(t), workerNamed(worker))
		return err
	}
	publish := func(environment string) {
		t.Helper()
		_, err := controlplanev1.NewPoolAdminClient(e.conn).PublishConfig(ctx(t), &controlplanev1.PublishConfigRequest{Yaml: "cluster: {id: c1" + environment + "}\n"})
		fatal(t, err)
	}
	publish("")
	for _, tc := range []struct {
		published  string // before the calls; empty = nothing
		path, name string
		want       codes.Code
	}{
		{"", "/prod/worker/w1", "w1", codes.OK},
		{"", "/prod/worker/w1", "w2", codes.PermissionDenied},
		{"", "/stage/worker/w1", "w1", codes.PermissionDenied},
		{", environment: stage", "/prod/worker/w1", "w1", codes.PermissionDenied},
		{"", "/stage/worker/w1", "w1", codes.OK},
		{"", "/stage/worker/w1", "w2", codes.PermissionDenied},
		{"", "/stage/checker/w1", "w1", codes.PermissionDenied}, // of another kind
	} {
		if tc.published != "" {
			publish(tc.published)
		}
		if err := register(tc.path, tc.name); status.Code(err) != tc.want {
			t.Errorf("after %q %s as %s: %v, want %s", tc.published, tc.path, tc.name, err, tc.want)
		}
	}
	if err := register("/prod/worker/w1", "w1"); !strings.Contains(fmt.Sprint(err), "of environment prod, and this host serves stage") {
		t.Errorf("the refusal says %v", err)
	}
	for path, want := range map[string]codes.Code{"/prod/checker/c1": codes.PermissionDenied, "/stage/checker/c1": codes.OK} {
		_, err := controlplanev1.NewCheckerControlPlaneClient(e.as(mtls(ca.Source(path)))).RegisterChecker(ctx(t), checkerNamed("c1"))
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// elsewhere takes connections as if they came from another machine.
type elsewhere struct{ net.Listener }

func (l elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return abroad{c}, err
}

type abroad struct{ net.Conn }

func (abroad) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1} }

// TestPlaintextKeepsCredentials: a host without identities, which whoever runs it has
// asked for in words, sends credentials of proxies to loopback alone.
func TestPlaintextKeepsCredentials(t *testing.T) {
	e := newEdge(t, serving(func(o *api.Options) { o.Dev, o.Plaintext = false, true }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	go func() { _ = e.server.Serve(elsewhere{l}) }() // ends with the server
	other, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	defer func() { _ = other.Close() }()
	_, err = controlplanev1.NewPoolAdminClient(e.conn).PublishConfig(ctx(t), &controlplanev1.PublishConfigRequest{Yaml: "cluster: {id: c1}\nupstreams: [{name: dc, protocol: http, source: {type: static, proxies: [192.0.2.1:3128]}}]\n"})
	fatal(t, err)
	for _, tc := range []struct {
		from           string
		conn           *grpc.ClientConn
		watch, extract codes.Code
	}{
		{"loopback", e.conn, codes.OK, codes.ResourceExhausted}, // nothing is available
		{"another machine", other, codes.PermissionDenied, codes.PermissionDenied},
	} {
		workers := controlplanev1.NewWorkerControlPlaneClient(tc.conn)
		session, err := workers.RegisterWorker(ctx(t), workerNamed("w1"))
		fatal(t, err)
		stream, err := workers.WatchSnapshots(ctx(t), &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: session.SessionId})
		fatal(t, err)
		if _, err = stream.Recv(); status.Code(err) != tc.watch {
			t.Errorf("a watch from %s: %v, want %s", tc.from, err, tc.watch)
		}
		_, err = controlplanev1.NewPoolAdminClient(tc.conn).Extract(ctx(t), &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1})
		if status.Code(err) != tc.extract {
			t.Errorf("an extraction from %s: %v, want %s", tc.from, err, tc.extract)
		}
		tasks, err := controlplanev1.NewCheckerControlPlaneClient(tc.conn).StreamCheckTasks(ctx(t), &controlplanev1.StreamCheckTasksRequest{CheckerId: "k1", InstanceId: "i1", MaxInFlight: 1})
		fatal(t, err)
		if _, err = tasks.Recv(); (status.Code(err) == codes.PermissionDenied) != (tc.watch == codes.PermissionDenied) {
			t.Errorf("tasks for %s: %v", tc.from, err)
		}
	}
}

// TestOneWayIn: a server is made for identities or for none, never by accident.
func TestOneWayIn(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	for _, o := range []api.Options{{}, {Dev: true, Identity: ca.Source("/host/h1")}, {Plaintext: true, Identity: ca.Source("/host/h1")}} {
		if _, err := api.New(o); err == nil {
			t.Errorf("%s was taken", fmt.Sprint(o.Dev, o.Plaintext, o.Identity != nil))
		}
	}
}
