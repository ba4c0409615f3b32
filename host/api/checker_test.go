package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/dodona-project/dodona/host/limits"
)

const (
	basic   = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress  = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	healthy = controlplanev1.HealthObservation_RESULT_SUCCESS
	sick    = controlplanev1.HealthObservation_RESULT_FAILURE
)

func (e *edge) checker() controlplanev1.CheckerControlPlaneClient {
	return controlplanev1.NewCheckerControlPlaneClient(e.conn)
}

func checkerOf(change func(*controlplanev1.RegisterCheckerRequest)) *controlplanev1.RegisterCheckerRequest {
	r := &controlplanev1.RegisterCheckerRequest{CheckerId: "c1", InstanceId: "i1", Levels: []controlplanev1.CheckLevel{basic}, MaxInFlight: 4,
		SupportedProtocolVersion: 1, Probes: []*controlplanev1.ProbePlugin{{Name: "http", Version: "0.1.0"}}}
	if change != nil {
		change(r)
	}
	return r
}

// checked has n endpoints of the service web checked by http.
func (e *edge) checked(n int) {
	e.t.Helper()
	for i := range n {
		e.register(endpoint(func(b *donav1.EndpointHeartbeat) {
			b.EndpointId, b.Address = fmt.Sprint("e", i), fmt.Sprint("192.0.2.1:", 8000+i)
		}))
	}
	_, err := e.client.SetServicePolicy(ctx(e.t), &donav1.SetServicePolicyRequest{Service: "web", Probe: "http"})
	fatal(e.t, err)
	fatal(e.t, e.checks.Look(ctx(e.t), false))
}

func (e *edge) tasks(c context.Context, instance string) grpc.ServerStreamingClient[controlplanev1.CheckTask] {
	e.t.Helper()
	s, err := e.checker().StreamCheckTasks(c, &controlplanev1.StreamCheckTasksRequest{CheckerId: "c1", InstanceId: instance})
	fatal(e.t, err)
	return s
}

func seen(task *controlplanev1.CheckTask, result controlplanev1.HealthObservation_Result) *controlplanev1.HealthObservation {
	o := &controlplanev1.HealthObservation{TaskId: task.TaskId, LeaseToken: task.LeaseToken, Level: task.Level, Result: result, Detail: "as it is"}
	if result == sick {
		o.ErrorClass, o.Status = controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, 503
	}
	return o
}

func (e *edge) observe(observations ...*controlplanev1.HealthObservation) []*controlplanev1.ObservationReceipt {
	e.t.Helper()
	reply, err := e.checker().ReportObservations(ctx(e.t), &controlplanev1.ReportObservationsRequest{CheckerId: "c1", Observations: observations})
	fatal(e.t, err)
	if len(reply.Receipts) != len(observations) {
		e.t.Fatalf("%d receipts for %d observations", len(reply.Receipts), len(observations))
	}
	return reply.Receipts
}

// TestChecker: a checker outside registers, is given tasks within its window, more as
// it reports, and what it reports shows in the status.
func TestChecker(t *testing.T) {
	e := newEdge(t)
	c, cancel := context.WithCancel(ctx(t))
	defer cancel()
	_, err := e.tasks(c, "i1").Recv()
	refused(t, "not registered", err, codes.FailedPrecondition, "")
	granted, err := e.checker().RegisterChecker(c, checkerOf(nil))
	if err != nil || granted.MaxInFlight != 4 || granted.ProtocolVersion != 1 {
		t.Fatalf("registered as %v, %v", granted, err)
	}
	_, err = e.tasks(c, "i1").Recv()
	refused(t, "nothing to check", err, codes.Unavailable, "nothing to check")

	const n = 12
	e.checked(n)
	s := e.tasks(c, "i1")
	held, checked := map[string]*controlplanev1.CheckTask{}, map[string]bool{}
	finish := func() {
		t.Helper()
		for id, task := range held {
			receipts := e.observe(seen(task, healthy))
			if !receipts[0].Accepted || receipts[0].TaskId != id {
				t.Fatalf("a report of %v: %v", task, receipts)
			}
			delete(held, id)
			return
		}
	}
	for len(checked) < n {
		task, err := s.Recv()
		fatal(t, err)
		if task.Service != "web" || task.Level != basic || task.Probe != "http" || !strings.HasPrefix(task.EndpointAddress, "192.0.2.1:80") || task.EndpointId == "" ||
			len(task.LeaseToken) != 32 || task.ProxyId != "" || task.Timeout.AsDuration() != 5*time.Second || task.MaxAttempts != 1 ||
			time.Until(task.Deadline.AsTime()) > 6*time.Second {
			t.Fatalf("the task is %v", task)
		}
		if checked[task.TaskId] {
			t.Fatalf("%s is given twice within its interval", task.TaskId)
		}
		checked[task.TaskId], held[task.TaskId] = true, task
		switch {
		case len(held) > 2:
			t.Fatalf("%d tasks of one service are held in a window of 4", len(held))
		case len(held) == 2 && len(checked) == n/2: // a reconnect widens nothing
			cancel()
			c, cancel = context.WithCancel(ctx(t))
			defer cancel()
			s = e.tasks(c, "i1")
			finish()
		case len(held) == 2:
			finish()
		}
	}
	for len(held) > 0 {
		finish()
	}
	status, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	if status.Checks.LiveCheckers != 1 || len(status.Checks.Endpoints) != n {
		t.Errorf("the checks are %v", status.Checks)
	}
	for _, h := range status.Checks.Endpoints {
		if h.State != donav1.EndpointHealth_STATE_AVAILABLE || h.Reason != "success: as it is" {
			t.Errorf("%v", h)
		}
	}

	// Another process of it takes over; without a probe, and when the host stops, the
	// stream ends.
	_, err = e.checker().RegisterChecker(c, checkerOf(func(r *controlplanev1.RegisterCheckerRequest) { r.InstanceId = "i2" }))
	fatal(t, err)
	_, err = s.Recv()
	refused(t, "another process of it", err, codes.FailedPrecondition, "")
	s = e.tasks(c, "i2")
	_, err = e.client.SetServicePolicy(ctx(t), &donav1.SetServicePolicyRequest{Service: "web", Probe: "none"})
	fatal(t, err)
	fatal(t, e.checks.Look(ctx(t), false))
	_, err = s.Recv()
	refused(t, "nothing to check any more", err, codes.Unavailable, "nothing to check")
	e.checked(0)
	s = e.tasks(c, "i2")
	_, err = s.Recv()
	fatal(t, err)
	e.stop()
	for err == nil {
		_, err = s.Recv()
	}
	refused(t, "the host stops", err, codes.Unavailable, "stopping")
}

// TestObservations: what is refused is refused alone, says why, and changes nothing;
// the same report again is accepted and counts once.
func TestObservations(t *testing.T) {
	e := newEdge(t)
	_, err := e.checker().ReportObservations(ctx(t), &controlplanev1.ReportObservationsRequest{CheckerId: "c1", Observations: []*controlplanev1.HealthObservation{{TaskId: "service/web/a"}}})
	refused(t, "not registered", err, codes.FailedPrecondition, "")
	_, err = e.checker().RegisterChecker(ctx(t), checkerOf(nil))
	fatal(t, err)
	e.checked(1) // so that nothing else is leased meanwhile
	task, err := e.tasks(ctx(t), "i1").Recv()
	fatal(t, err)
	with := func(change func(*controlplanev1.HealthObservation)) *controlplanev1.HealthObservation {
		o := seen(task, sick)
		change(o)
		return o
	}
	rows := []struct {
		what   string
		o      *controlplanev1.HealthObservation
		reason string
	}{
		{"empty", &controlplanev1.HealthObservation{}, "gone"},
		{"no task", with(func(o *controlplanev1.HealthObservation) { o.TaskId = "service/web/nobody" }), "gone"},
		{"no plane", with(func(o *controlplanev1.HealthObservation) { o.TaskId = "pool/web/e0" }), "gone"},
		{"a path", with(func(o *controlplanev1.HealthObservation) { o.TaskId = "../../svc/web/head" }), "gone"},
		{"a long name", with(func(o *controlplanev1.HealthObservation) { o.TaskId = "service/web/" + strings.Repeat("x", 100_000) }), "gone"},
		{"a guessed token", with(func(o *controlplanev1.HealthObservation) { o.LeaseToken = strings.Repeat("0", 32) }), "overtaken"},
		{"no token", with(func(o *controlplanev1.HealthObservation) { o.LeaseToken = "" }), "overtaken"},
		{"a proxy", with(func(o *controlplanev1.HealthObservation) { o.ProxyId = "p1" }), "proxy"},
		{"another level", with(func(o *controlplanev1.HealthObservation) { o.Level = egress }), "level"},
		{"no level", with(func(o *controlplanev1.HealthObservation) { o.Level = 0 }), "level"},
		{"a routing", with(func(o *controlplanev1.HealthObservation) { o.RoutingName = "r" }), "target"},
		{"a URL", with(func(o *controlplanev1.HealthObservation) { o.TargetUrl = "http://a" }), "target"},
		{"an exit", with(func(o *controlplanev1.HealthObservation) { o.EgressIp = "192.0.2.1" }), "target"},
		{"no result", with(func(o *controlplanev1.HealthObservation) { o.Result = 0 }), "bad result"},
		{"status 7", with(func(o *controlplanev1.HealthObservation) { o.Status = 7 }), "bad result"},
	}
	before := e.written()
	for _, row := range rows {
		if got := e.observe(row.o)[0]; got.Accepted || got.Reason != row.reason || len(got.TaskId) > 384 {
			t.Errorf("%s: %v, want %s", row.what, got, row.reason)
		}
	}
	if e.written() != before {
		t.Error("refused, and something was stored")
	}
	all := []*controlplanev1.HealthObservation{with(func(o *controlplanev1.HealthObservation) { o.Detail = "a\x1b[31m\nb" + strings.Repeat("d", 5000) })}
	for _, row := range rows {
		all = append(all, row.o)
	}
	for i, got := range e.observe(all...) {
		if got.Accepted != (i == 0) {
			t.Errorf("%d of a batch: %v", i, got)
		}
	}
	if got := e.observe(all[0], all[0]); !got[0].Accepted || !got[1].Accepted {
		t.Errorf("said again: %v", got)
	}
	status, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	for _, h := range status.Checks.Endpoints {
		if h.EndpointId != task.EndpointId {
			continue
		}
		if h.Failures != 1 || h.State != donav1.EndpointHealth_STATE_SUSPECT || !strings.HasPrefix(h.Reason, "failure (target status), status 503: a") || strings.ContainsAny(h.Reason, "\x1b\n") || len(h.Reason) > 1100 {
			t.Errorf("%v", h)
		}
	}
}

// checkerRows is each bad request that a checker may make.
func checkerRows() (rows []row) {
	const invalid = codes.InvalidArgument
	register := func(name string, change func(*controlplanev1.RegisterCheckerRequest), code codes.Code, field string) {
		rows = append(rows, row{"RegisterChecker: " + name, func(c context.Context, e *edge) error {
			_, err := e.checker().RegisterChecker(c, checkerOf(change))
			return err
		}, code, field})
	}
	stream := func(name string, req *controlplanev1.StreamCheckTasksRequest, code codes.Code, field string) {
		rows = append(rows, row{"StreamCheckTasks: " + name, func(c context.Context, e *edge) error {
			s, err := e.checker().StreamCheckTasks(c, req)
			if err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}, code, field})
	}
	report := func(name, id string, n int, code codes.Code, field string) {
		rows = append(rows, row{"ReportObservations: " + name, func(c context.Context, e *edge) error {
			req := &controlplanev1.ReportObservationsRequest{CheckerId: id}
			for range n {
				req.Observations = append(req.Observations, &controlplanev1.HealthObservation{})
			}
			_, err := e.checker().ReportObservations(c, req)
			return err
		}, code, field})
	}
	type request = controlplanev1.RegisterCheckerRequest
	for _, n := range append(names, struct{ what, value string }{"empty", ""}, struct{ what, value string }{"a colon", "a:b"}) {
		register("id "+n.what, func(r *request) { r.CheckerId = n.value }, invalid, "checker_id")
		stream("id "+n.what, &controlplanev1.StreamCheckTasksRequest{CheckerId: n.value, InstanceId: "i"}, invalid, "checker_id")
		report("id "+n.what, n.value, 1, invalid, "checker_id")
		register("probe "+n.what, func(r *request) { r.Probes[0].Name = n.value }, invalid, "probes[0].name")
		if n.what != "a colon" {
			register("instance "+n.what, func(r *request) { r.InstanceId = n.value }, invalid, "instance_id")
			stream("instance "+n.what, &controlplanev1.StreamCheckTasksRequest{CheckerId: "c", InstanceId: n.value}, invalid, "instance_id")
		}
	}
	register("a host's id", func(r *request) { r.CheckerId = "host-0123" }, invalid, "checker_id")
	register("no level", func(r *request) { r.Levels = nil }, invalid, "levels")
	register("level 0", func(r *request) { r.Levels = []controlplanev1.CheckLevel{basic, 0} }, invalid, "levels[1]")
	register("level 4", func(r *request) { r.Levels = []controlplanev1.CheckLevel{4} }, invalid, "levels[0]")
	register("a level twice", func(r *request) { r.Levels = []controlplanev1.CheckLevel{basic, basic} }, invalid, "levels[1]")
	register("no window", func(r *request) { r.MaxInFlight = 0 }, invalid, "max_in_flight")
	register("a nil probe", func(r *request) { r.Probes = []*controlplanev1.ProbePlugin{nil} }, invalid, "probes[0].name")
	register("a probe twice", func(r *request) { r.Probes = append(r.Probes, r.Probes[0]) }, invalid, "probes[1].name")
	register("a probe's version", func(r *request) { r.Probes[0].Version = "a b" }, invalid, "probes[0].version")
	register("257 probes", func(r *request) {
		for i := range limits.Probes {
			r.Probes = append(r.Probes, &controlplanev1.ProbePlugin{Name: fmt.Sprint("p", i)})
		}
	}, invalid, "probes")
	register("another protocol", func(r *request) { r.SupportedProtocolVersion = 2 }, codes.FailedPrecondition, "")
	register("no protocol", func(r *request) { r.SupportedProtocolVersion = 0 }, codes.FailedPrecondition, "")
	stream("level 9", &controlplanev1.StreamCheckTasksRequest{CheckerId: "c", InstanceId: "i", Levels: []controlplanev1.CheckLevel{9}}, invalid, "levels[0]")
	stream("not registered", &controlplanev1.StreamCheckTasksRequest{CheckerId: "c", InstanceId: "i"}, codes.FailedPrecondition, "")
	report("nothing", "c", 0, invalid, "observations")
	report("1,001 observations", "c", limits.Observations+1, invalid, "observations")
	report("not registered", "c", 1, codes.FailedPrecondition, "")
	return rows
}
