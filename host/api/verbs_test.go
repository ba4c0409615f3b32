package api_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	pause   = donav1.ControlRolloutRequest_ACTION_PAUSE
	resume  = donav1.ControlRolloutRequest_ACTION_RESUME
	step    = donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP
	all     = donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL
	abort   = donav1.ControlRolloutRequest_ACTION_ABORT
	lift    = donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE
	pending = donav1.RolloutStatus_STATE_PENDING
	moving  = donav1.RolloutStatus_STATE_PROGRESSING
	holding = donav1.RolloutStatus_STATE_HOLDING
	paused  = donav1.RolloutStatus_STATE_PAUSED
	done    = donav1.RolloutStatus_STATE_PROMOTED
	back    = donav1.RolloutStatus_STATE_ROLLED_BACK
	aborted = donav1.RolloutStatus_STATE_ABORTED
)

// of is a service with the canary v2 beside the stable v1, and its rollout of 10,
// 50 and 100 %.
func of(service string, seconds uint32) *donav1.StartRolloutRequest {
	return start(func(r *donav1.StartRolloutRequest) {
		r.Service, r.Steps, r.StepSeconds = service, []uint32{10, 50, 100}, seconds
	})
}

func (e *edge) variant(service, variant string) held {
	e.t.Helper()
	return e.register(endpoint(func(b *donav1.EndpointHeartbeat) {
		b.Service, b.EndpointId, b.Variant = service, service+"-"+variant, variant
	}))
}

// another is the same host over a connection of its own.
func (e *edge) another(options ...grpc.DialOption) *edge {
	e.t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(patient))
	conn, err := grpc.NewClient(e.conn.Target(), options...)
	fatal(e.t, err)
	e.t.Cleanup(func() { _ = conn.Close() })
	other := *e
	other.conn, other.client = conn, donav1.NewControlPlaneClient(conn)
	return &other
}

func (e *edge) control(service string, action donav1.ControlRolloutRequest_Action, words string) (*donav1.RolloutStatus, error) {
	r := &donav1.ControlRolloutRequest{Service: service, Action: action, Reason: words}
	if action == lift {
		r.Variant = "v2"
	}
	return e.client.ControlRollout(ctx(e.t), r)
}

func (e *edge) start(req *donav1.StartRolloutRequest) error {
	_, err := e.client.StartRollout(ctx(e.t), req)
	return err
}

func (e *edge) status(service string) *donav1.StatusReply {
	e.t.Helper()
	s, err := e.client.GetStatus(ctx(e.t), &donav1.GetStatusRequest{Service: service})
	fatal(e.t, err)
	return s
}

// until ticks the rollouts until a service's is in a state.
func (e *edge) until(service string, want donav1.RolloutStatus_State) {
	e.t.Helper()
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		e.rollouts.Tick(ctx(e.t))
		got := e.status(service).Rollout
		if got.GetState() == want {
			return
		}
		if time.Since(begin) > patience {
			e.t.Fatalf("%s: the rollout is %v, want %s", service, got, want)
		}
	}
}

// fails reports failed calls of the canary, as many as a gate needs.
func (e *edge) fails(service string) {
	e.t.Helper()
	ack, err := e.client.ReportStats(ctx(e.t), &donav1.StatsBatch{Calls: []*donav1.CallOutcome{
		{Service: service, Variant: "v2", UnixMs: time.Now().UnixMilli(), ConfigVersion: 1 << 60, Count: 20}}})
	if err != nil || ack.Dropped != 0 {
		e.t.Fatalf("%s: %v, %v", service, ack, err)
	}
}

// TestVerbs is the table of each state of a rollout and each thing an operator can
// ask: where it leads, what the chain says, and that a refusal changes nothing.
func TestVerbs(t *testing.T) {
	e := newEdge(t, withHeartbeat(time.Hour)) // nobody sends one
	must := func(service string, action donav1.ControlRolloutRequest_Action) {
		t.Helper()
		_, err := e.control(service, action, "")
		fatal(t, err)
	}
	same := func(r *donav1.StartRolloutRequest) {}
	other := func(r *donav1.StartRolloutRequest) { r.MinRequests++ }
	instead := func(r *donav1.StartRolloutRequest) { r.MinRequests, r.Supersede = r.MinRequests+1, true }
	again := func(r *donav1.StartRolloutRequest) { r.Retry = true }
	asks := []struct {
		name   string
		action donav1.ControlRolloutRequest_Action
		start  func(*donav1.StartRolloutRequest)
	}{
		{name: "PAUSE", action: pause}, {name: "RESUME", action: resume}, {name: "PROMOTE_STEP", action: step},
		{name: "PROMOTE_ALL", action: all}, {name: "ABORT", action: abort}, {name: "LIFT_QUARANTINE", action: lift},
		{name: "start the same", start: same}, {name: "start another", start: other},
		{name: "supersede", start: instead}, {name: "retry", start: again},
	}
	// What each ask, in the order above, leads to: a state with the canary's percent
	// and the entries it writes, "=" for no change and no error, or a refusal.
	const (
		no     = "FailedPrecondition"
		none   = "NotFound"
		begins = "PENDING 0 rollout.start"
		others = "PENDING 0 rollout.supersede rollout.start"
	)
	states := []struct {
		name    string
		seconds uint32
		canary  bool                 // has an endpoint when the rollout starts
		rest    bool                 // no rollout is started
		early   func(service string) // what has to be done before the first tick
		prepare func(service string)
		late    func(service string) // what the next tick would act on
		want    []string
	}{
		{name: "no rollout", rest: true, want: []string{none, none, none, none, none, no, begins, begins, begins, begins}},
		{name: "PENDING", want: []string{
			"PAUSED 0 rollout.pause", no, no, no, "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PENDING with an endpoint", canary: true, want: []string{
			"PAUSED 0 rollout.pause", no, no, "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PROGRESSING", canary: true, prepare: func(s string) { e.until(s, moving) }, want: []string{
			"PAUSED 10 rollout.pause", no, "PROGRESSING 50 rollout.step", "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PROGRESSING, the last step", canary: true, prepare: func(s string) { e.until(s, moving); must(s, step); must(s, step) }, want: []string{
			"PAUSED 100 rollout.pause", no, "PROMOTED 100 rollout.promote", "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PROGRESSING, a breach stands", canary: true, prepare: func(s string) { e.until(s, moving) }, late: e.fails, want: []string{
			"PAUSED 10 rollout.pause", no, no, no, "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "HOLDING", seconds: 1, canary: true, prepare: func(s string) { e.until(s, holding) }, want: []string{
			"PAUSED 10 rollout.pause", no, "PROGRESSING 50 rollout.step", "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PAUSED in PENDING", early: func(s string) { must(s, pause) }, want: []string{
			no, "PENDING 0 rollout.resume", no, no, "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PAUSED in PENDING with an endpoint", canary: true, early: func(s string) { must(s, pause) }, want: []string{
			no, "PENDING 0 rollout.resume", no, "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PAUSED in PROGRESSING", canary: true, prepare: func(s string) { e.until(s, moving); must(s, pause) }, want: []string{
			no, "PROGRESSING 10 rollout.resume", "PAUSED 50 rollout.step", "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PAUSED in HOLDING", seconds: 1, canary: true, prepare: func(s string) { e.until(s, holding); must(s, pause) }, want: []string{
			no, "HOLDING 10 rollout.resume", "PAUSED 50 rollout.step", "PROMOTED 100 rollout.promote", "ABORTED 0 rollout.abort", no, "=", no, others, "="}},
		{name: "PROMOTED", canary: true, early: func(s string) { must(s, all) }, want: []string{
			no, no, no, no, no, no, no, no, no, no}}, // v1 does not hold 100 any more
		{name: "ROLLED_BACK", canary: true, prepare: func(s string) { e.until(s, moving); e.fails(s); e.until(s, back) }, want: []string{
			no, no, no, no, no, "ROLLED_BACK 0 quarantine.lift", no, no, no, "PENDING 0 quarantine.lift rollout.start"}},
		{name: "ABORTED", canary: true, early: func(s string) { must(s, abort) }, want: []string{
			no, no, no, no, no, no, begins, begins, begins, begins}},
	}
	// All are made before anything is asked, and together, for a tick moves all.
	each := func(do func(i int, service string)) {
		for i := range states {
			for j := range asks {
				do(i, fmt.Sprintf("s%d-%d", i, j))
			}
		}
	}
	seconds := func(i int) uint32 { return cmp.Or(states[i].seconds, 3600) }
	moves := func(i int) bool { return states[i].early != nil || states[i].prepare != nil }
	apps := make([]*edge, len(states)) // a connection takes 250 streams
	for i := range apps {
		apps[i] = e.another()
	}
	each(func(i int, s string) {
		apps[i].variant(s, "v1")
		if states[i].canary {
			apps[i].variant(s, "v2")
		}
		if moves(i) {
			fatal(t, e.start(of(s, seconds(i))))
		}
		if early := states[i].early; early != nil {
			early(s)
		}
	})
	each(func(i int, s string) {
		if prepare := states[i].prepare; prepare != nil {
			prepare(s)
		}
	})
	each(func(i int, s string) {
		if !states[i].rest && !moves(i) {
			fatal(t, e.start(of(s, seconds(i))))
		}
		if late := states[i].late; late != nil {
			late(s)
		}
	})
	for i, st := range states {
		for j, ask := range asks {
			s, what := fmt.Sprintf("s%d-%d", i, j), st.name+", "+ask.name
			was, chain, revision := e.status(s).Rollout, e.kinds(s), e.written()
			var err error
			var answer *donav1.RolloutStatus
			if ask.start != nil {
				req := of(s, seconds(i))
				ask.start(req)
				err = e.start(req)
			} else {
				answer, err = e.control(s, ask.action, "because of "+what)
			}
			now := e.status(s)
			if code := status.Code(err); code != codes.OK || st.want[j] == "=" {
				got := code.String()
				if code == codes.OK {
					got = "="
				} else {
					refused(t, what, err, code, "")
				}
				if got != st.want[j] {
					t.Errorf("%s: %s (%v), want %s", what, got, err, st.want[j])
				}
				if e.written() != revision || now.Rollout.GetState() != was.GetState() || now.Rollout.GetId() != was.GetId() {
					t.Errorf("%s: nothing should change, and something was stored: %v", what, now.Rollout)
				}
				continue
			}
			percent := uint32(0)
			if len(now.Config.Weights) > 0 {
				percent = now.Config.Weights[0].Weight
			}
			got := fmt.Sprintf("%s %d%s", strings.TrimPrefix(now.Rollout.State.String(), "STATE_"), percent, strings.TrimPrefix(e.kinds(s), chain))
			if got != st.want[j] {
				t.Errorf("%s: %s, want %s", what, got, st.want[j])
			}
			if answer != nil && (answer.State != now.Rollout.State || answer.Id != now.Rollout.Id || answer.Service != s) {
				t.Errorf("%s: the answer is %v, the status %v", what, answer, now.Rollout)
			}
			if ended := now.Rollout.State; answer != nil && ask.action != lift && ended != moving && ended != pending && ended != holding &&
				!strings.Contains(now.Rollout.Reason, "because of "+what) {
				t.Errorf("%s: the operator's words are not in %q", what, now.Rollout.Reason)
			}
		}
	}
	e.checkDetails()
}

// TestStartRefusedByState: what the state of a service does not allow.
func TestStartRefusedByState(t *testing.T) {
	e := newEdge(t, withHeartbeat(time.Hour)) // nobody sends one
	for _, v := range []string{"v1", "v2", "v3"} {
		e.variant("web", v)
	}
	e.variant("pay", "v9")
	asks := func(what string, change func(*donav1.StartRolloutRequest), code codes.Code, field string) {
		t.Helper()
		before := e.written()
		refused(t, what, e.start(start(change)), code, field)
		if e.written() != before {
			t.Errorf("%s: refused, and something was stored", what)
		}
	}
	const no = codes.FailedPrecondition
	asks("no stable endpoint", func(r *donav1.StartRolloutRequest) { r.Service = "pay" }, no, "stable_variant")
	fatal(t, e.start(start(nil)))
	asks("supersede with another stable", func(r *donav1.StartRolloutRequest) { r.StableVariant, r.Supersede = "v3", true }, no, "stable_variant")
	_, err := e.control("web", all, "")
	fatal(t, err)
	asks("the stable holds 0", func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v3" }, no, "stable_variant")
	fatal(t, e.start(start(func(r *donav1.StartRolloutRequest) { r.CanaryVariant, r.StableVariant = "v3", "v2" })))
	e.until("web", moving)
	if ack, err := e.client.ReportStats(ctx(t), &donav1.StatsBatch{Calls: []*donav1.CallOutcome{
		{Service: "web", Variant: "v3", UnixMs: time.Now().UnixMilli(), ConfigVersion: 1 << 60, Count: 20}}}); err != nil || ack.Dropped != 0 {
		t.Fatal(ack, err)
	}
	e.until("web", back)
	again := func(r *donav1.StartRolloutRequest) { r.CanaryVariant, r.StableVariant = "v3", "v2" }
	asks("the canary was rolled back", again, no, "canary_variant")
	if s := e.status("web").Config; strings.Join(s.QuarantinedVariants, " ") != "v3" || s.Weights[0].Variant != "v3" || s.Weights[0].Weight != 0 {
		t.Errorf("a quarantined variant stays in the weights with 0: %v", s)
	}
	_, err = e.client.ControlRollout(ctx(t), &donav1.ControlRolloutRequest{Service: "web", Action: lift, Variant: "v3", Reason: "fixed"})
	fatal(t, err)
	fatal(t, e.start(start(again)))
	if s := e.status("web"); len(s.Config.QuarantinedVariants) != 0 || s.Rollout.State != pending {
		t.Errorf("after the lift: %v", s)
	}
	asks("an unknown provider", func(r *donav1.StartRolloutRequest) {
		r.Supersede, r.Analysis = true, []*donav1.AnalysisQuery{{Name: "q", Provider: "nope"}}
	}, codes.InvalidArgument, "analysis[0].provider")
	e.checkDetails()
}

// TestDeploymentStates is the table of each state of a deployment and what may be
// asked while it is in it.
func TestDeploymentStates(t *testing.T) {
	e := newEdge(t, withHeartbeat(time.Hour)) // nobody sends one
	c := ctx(t)
	wait := func(service string, want donav1.Deployment_State) *donav1.Deployment {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			d := e.status(service).Deployments[0]
			if d.State == want {
				return d
			}
			if time.Since(begin) > patience {
				t.Fatalf("%s: the deployment is %v, want %s", service, d, want)
			}
		}
	}
	deploy := func(service, number string, canary bool) *donav1.StartDeploymentRequest {
		r := &donav1.StartDeploymentRequest{ReleaseId: service + "/" + number, Environment: "prod", Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE}
		if canary {
			r.Strategy = donav1.StartDeploymentRequest_STRATEGY_CANARY
			r.Canary = &donav1.StartRolloutRequest{StableVariant: "v1", Steps: []uint32{10, 100}, StepSeconds: 3600, MaxErrorPercent: 5, MinRequests: 10}
		}
		return r
	}
	ask := func(req *donav1.StartDeploymentRequest) (*donav1.Deployment, error) {
		return e.client.StartDeployment(c, req)
	}
	begin := func(service string, canary bool) *donav1.Deployment {
		t.Helper()
		e.variant(service, "v1")
		a, err := e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Service = service }))
		fatal(t, err)
		for _, v := range []string{"v2", "v3"} {
			_, err = e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: service, ArtifactId: a.Id, Variant: v})
			fatal(t, err)
		}
		d, err := ask(deploy(service, "1", canary))
		fatal(t, err)
		return d
	}
	rolloutOf := func(service string) *donav1.StartRolloutRequest { return of(service, 3600) }
	ends := func(service, suffix string) {
		t.Helper()
		if chain := e.kinds(service); !strings.HasSuffix(chain, suffix) {
			t.Errorf("%s: the chain ends with %s, want %s", service, chain, suffix)
		}
	}
	const no = codes.FailedPrecondition
	unchanged := func(what, service string, want *donav1.Deployment, do func() error, code codes.Code) {
		t.Helper()
		chain := e.kinds(service)
		err := do()
		if code == codes.OK {
			fatal(t, err)
		} else {
			refused(t, what, err, code, "")
		}
		if d := e.status(service).Deployments[0]; d.Id != want.Id || d.State != want.State || e.kinds(service) != chain {
			t.Errorf("%s: the deployment is %v, want %v", what, d, want)
		}
	}

	// WAITING: for v2, which has no endpoint.
	w := begin("waits", false)
	unchanged("WAITING, the same again", "waits", w, func() error {
		d, err := ask(deploy("waits", "1", false))
		if d.GetId() != w.Id {
			t.Errorf("the same again is %v, want %s", d, w.Id)
		}
		return err
	}, codes.OK)
	unchanged("WAITING, ABORT", "waits", w, func() error { _, err := e.control("waits", abort, ""); return err }, codes.NotFound)
	d, err := ask(deploy("waits", "2", false))
	fatal(t, err)
	if all := e.status("waits").Deployments; d.Id == w.Id || len(all) != 2 || all[0].Id != d.Id || all[1].State != donav1.Deployment_STATE_FAILED || !strings.Contains(all[1].Reason, d.Id) {
		t.Errorf("WAITING, another: %v", all)
	}
	ends("waits", "deployment.start deployment.end deployment.start")
	fatal(t, e.start(rolloutOf("waits"))) // a rollout moves the traffic, so the deployment may not
	e.variant("waits", "v3")
	wait("waits", donav1.Deployment_STATE_FAILED)
	_, err = ask(deploy("waits", "2", false))
	refused(t, "a rollout is live", err, no, "release_id")

	// RUNNING: its rollout moves the traffic.
	begin("runs", true)
	e.variant("runs", "v2")
	r := wait("runs", donav1.Deployment_STATE_RUNNING)
	unchanged("RUNNING, the same again", "runs", r, func() error { _, err := ask(deploy("runs", "1", true)); return err }, codes.OK)
	unchanged("RUNNING, another", "runs", r, func() error { _, err := ask(deploy("runs", "2", true)); return err }, no)
	unchanged("RUNNING, another rollout", "runs", r, func() error { return e.start(rolloutOf("runs")) }, no)
	_, err = e.control("runs", pause, "")
	fatal(t, err)
	if d := e.status("runs").Deployments[0]; d.State != donav1.Deployment_STATE_RUNNING {
		t.Errorf("its rollout paused, the deployment is %v", d)
	}
	_, err = e.control("runs", abort, "enough")
	fatal(t, err)
	if d := e.status("runs").Deployments[0]; d.State != donav1.Deployment_STATE_FAILED || !strings.Contains(d.Reason, "enough") {
		t.Errorf("its rollout aborted, the deployment is %v", d)
	}
	ends("runs", "rollout.abort deployment.end")

	// FAILED: and once more.
	_, err = ask(deploy("runs", "1", true))
	fatal(t, err)
	wait("runs", donav1.Deployment_STATE_RUNNING)
	req := rolloutOf("runs")
	req.Supersede = true
	fatal(t, e.start(req))
	if d := e.status("runs").Deployments[0]; d.State != donav1.Deployment_STATE_FAILED {
		t.Errorf("its rollout superseded, the deployment is %v", d)
	}

	// SUCCEEDED, by its rollout and without one.
	begin("good", true)
	e.variant("good", "v2")
	wait("good", donav1.Deployment_STATE_RUNNING)
	_, err = e.control("good", all, "")
	fatal(t, err)
	g := wait("good", donav1.Deployment_STATE_SUCCEEDED)
	unchanged("SUCCEEDED, the same again", "good", g, func() error { _, err := ask(deploy("good", "1", true)); return err }, no) // v1 holds nothing
	e.variant("good", "v3")
	_, err = ask(deploy("good", "2", false))
	fatal(t, err)
	if d = wait("good", donav1.Deployment_STATE_SUCCEEDED); d.ReleaseId != "good/2" {
		t.Errorf("the newest is %v", d)
	}
	blue := deploy("good", "2", false)
	blue.Strategy = donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN
	unchanged("BLUE_GREEN to what has all", "good", d, func() error { _, err := ask(blue); return err }, no)

	// ROLLED_BACK: measured to be worse.
	begin("bad", true)
	e.variant("bad", "v2")
	wait("bad", donav1.Deployment_STATE_RUNNING)
	e.until("bad", moving)
	e.fails("bad")
	e.until("bad", back)
	b := wait("bad", donav1.Deployment_STATE_ROLLED_BACK)
	ends("bad", "rollout.rollback deployment.end")
	unchanged("ROLLED_BACK, the same again", "bad", b, func() error { _, err := ask(deploy("bad", "1", true)); return err }, no)
	unchanged("ROLLED_BACK, at once", "bad", b, func() error { _, err := ask(deploy("bad", "1", false)); return err }, no)
	retry := deploy("bad", "1", true)
	retry.Canary.Retry = true
	_, err = ask(retry)
	fatal(t, err)
	wait("bad", donav1.Deployment_STATE_RUNNING)
	if q := e.status("bad").Config.QuarantinedVariants; len(q) != 0 {
		t.Errorf("after the retry %v are quarantined", q)
	}
	e.checkDetails()
}
