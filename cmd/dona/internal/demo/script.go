package demo

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/spawn"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	analysisPlugin = "prometheus"
	// pluginAway is how long the host waits before it starts a plugin again that
	// ended: long enough that two steps are served without it: an
	// answer from before still counts for 5 s.
	pluginAway = 9 * time.Second
	stepTime   = 4 * time.Second
	maxP95     = 250 // milliseconds
	perVariant = 2   // endpoints
	badPercent = 30  // of the bad variant's answers are errors
	// hostAway is how long the client is on its own.
	hostAway = 3 * time.Second
)

var steps = []uint32{10, 50, 100}

// facts are what the acts found; the claims are judged on them.
type facts struct {
	good, bad      string // ids of the rollouts
	killed, reborn int    // pids of the analysis plugin
	killedAt       time.Time
	before, after  *donav1.StatusReply // around the host's restart
	alone          int                 // requests answered while no host ran
	aloneFor       time.Duration
	backAfter      time.Duration // until the host answered again
	rolledBack     time.Time     // when the client had applied it
	sinceRollback  int           // requests before that moment
	attested       *attested
	end            totals
	ended          bool // the last act was played
}

// play runs the acts.
func (s *stage) play(ctx context.Context) error {
	s.plugins = map[int]string{}
	for _, act := range []func(context.Context) error{s.opening, s.goodCanary, s.badCanary, s.hostRestart, s.attestation} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	s.facts.end, s.facts.ended = s.traffic.totals(), true
	return nil
}

// opening starts the host, the first variant and the client.
func (s *stage) opening(ctx context.Context) (err error) {
	s.story.line(s.story.style.Bold("Dodona demo") + ": a host, a service in three variants and a client, all on this machine")
	if s.ports, err = freePorts(); err != nil {
		return err
	}
	if s.conn, err = dialHost(s.ports.grpc); err != nil {
		return err
	}
	s.control, s.admin = donav1.NewControlPlaneClient(s.conn), donav1.NewHostAdminClient(s.conn)
	s.story.chapter("1. A host, a service, a client")
	if err := s.startHost(ctx); err != nil {
		return err
	}
	s.story.tell("the host answers on %s (pid %d)", s.ports.grpc, s.host.PID())

	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopWatch = stop
	s.background.Go(func() { s.seen.watch(watch, s.control) })
	if err := s.startVariant("v1", 0); err != nil {
		return err
	}
	if err := s.endpoints(ctx, "v1", perVariant); err != nil {
		return err
	}
	s.story.tell("%s v1 registered %d endpoints", service, perVariant)

	if s.traffic, err = newTraffic(ctx, s.ports.grpc); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// Ready is done with the first snapshot; the endpoints were seen above.
	if err := s.traffic.service.Ready(ready); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if s.metrics, err = serveMetrics(func(variant string) (time.Duration, int) { return s.traffic.quantile(variant, 0.95) }); err != nil {
		return err
	}
	sending, stopTraffic := context.WithCancel(context.WithoutCancel(ctx))
	s.stopTraffic = stopTraffic
	s.background.Go(func() { s.traffic.run(sending) })
	s.story.tell("a client sends about %d requests a second; the SDK in it decides each one", int(workers*time.Second/every))
	return nil
}

// start asks for a rollout and returns its id.
func (s *stage) start(ctx context.Context, canary, stable string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	request := &donav1.StartRolloutRequest{
		Service: service, CanaryVariant: canary, StableVariant: stable,
		Steps: steps, StepSeconds: uint32(stepTime / time.Second), MaxErrorPercent: 5, MinRequests: 20,
		Analysis: []*donav1.AnalysisQuery{{
			Name: "p95", PrometheusUrl: s.metrics.url, Query: query(canary), MaxValue: maxP95, TimeoutMs: 1000,
		}},
	}
	if _, err := s.control.StartRollout(ctx, request); err != nil {
		return "", fmt.Errorf("rollout of %s: %w", canary, err)
	}
	reply, err := s.control.GetStatus(ctx, &donav1.GetStatusRequest{Service: service})
	if err != nil {
		return "", fmt.Errorf("rollout of %s: %w", canary, err)
	}
	return reply.GetRollout().GetId(), nil
}

// follow shows a rollout until is holds.
func (s *stage) follow(ctx context.Context, limit time.Duration, id, what string, is func(*donav1.RolloutStatus) bool) error {
	_, err := s.seen.until(ctx, limit, what, func(r *donav1.StatusReply) bool {
		st := r.GetRollout()
		if st.GetId() != id {
			return false
		}
		view := render.RolloutOf(r)
		view.StepDwell = stepTime
		s.story.picture(view)
		return is(st)
	}, s.hostDied)
	return err
}

// goodCanary promotes v2, and kills the analysis plugin on the way.
func (s *stage) goodCanary(ctx context.Context) error {
	s.story.chapter("2. A good canary, and its analysis plugin is killed half-way")
	id, err := s.start(ctx, "v2", "v1")
	if err != nil {
		return err
	}
	s.facts.good = id
	s.story.tell("rollout of v2 through %s, %s each, at most 5 %% errors, p95 at most %d ms; v2 does not run yet", percents(), render.Seconds(stepTime), maxP95)
	if err := s.startVariant("v2", 0); err != nil {
		return err
	}
	err = s.follow(ctx, 40*time.Second, id, "the second step", func(st *donav1.RolloutStatus) bool {
		return st.GetState() == donav1.RolloutStatus_STATE_PROGRESSING && st.GetStepIndex() == 1 || render.Ended(st.GetState())
	})
	if err != nil {
		return err
	}
	if err := s.killPlugin(ctx); err != nil {
		return err
	}
	err = s.follow(ctx, 25*time.Second, id, "HOLDING without the plugin", func(st *donav1.RolloutStatus) bool {
		return st.GetState() == donav1.RolloutStatus_STATE_HOLDING || render.Ended(st.GetState())
	})
	if err != nil {
		return err
	}
	if st, _ := s.seen.newest(); st.GetRollout().GetState() == donav1.RolloutStatus_STATE_HOLDING {
		s.story.tell("HOLDING: a step's time is over and nothing measured it, so nothing moves")
	}
	err = s.follow(ctx, 40*time.Second, id, "v2 to be PROMOTED", func(st *donav1.RolloutStatus) bool { return render.Ended(st.GetState()) })
	if err != nil {
		return err
	}
	p, err := s.plugin(ctx, "analysis", analysisPlugin)
	if err != nil {
		return err
	}
	s.facts.reborn = int(p.GetPid())
	s.story.settle()
	reply, _ := s.seen.newest()
	s.story.tell("v2 is %s; the plugin had come back by itself (pid %d)", render.State(reply.GetRollout().GetState()), p.GetPid())
	return nil
}

// percents is the steps for people.
func percents() string {
	texts := make([]string, len(steps))
	for i, p := range steps {
		texts[i] = fmt.Sprintf("%d %%", p)
	}
	return strings.Join(texts, ", ")
}

// killPlugin kills the analysis plugin's process, after a look at whose it is.
func (s *stage) killPlugin(ctx context.Context) error {
	p, err := s.plugin(ctx, "analysis", analysisPlugin)
	if err != nil {
		return err
	}
	pid := int(p.GetPid())
	if pid <= 0 {
		return fmt.Errorf("the analysis plugin has no process: it is %s %s", p.GetState(), p.GetReason())
	}
	if runtime.GOOS == "linux" && !descends(pid, s.host.PID()) {
		return fmt.Errorf("pid %d, said to be the analysis plugin, is no process of this host: it is left alone", pid)
	}
	if err := spawn.Kill(pid); err != nil {
		return fmt.Errorf("kill -9 of the analysis plugin: %w", err)
	}
	s.facts.killed, s.facts.killedAt = pid, time.Now()
	s.story.tell("%s", s.story.style.Warn(fmt.Sprintf("kill -9 %d: the analysis plugin is gone", pid)))
	return nil
}

// descends reports whether a process is a child of another, or a child's child.
func descends(pid, of int) bool {
	for range 4 {
		if pid = spawn.ParentOf(pid); pid == of {
			return true
		}
		if pid <= 1 {
			return false
		}
	}
	return false
}

// hostRestart kills the host and starts it again while requests go on.
func (s *stage) hostRestart(ctx context.Context) error {
	s.story.chapter("4. The host is killed; requests go on")
	before, _ := s.seen.newest()
	s.facts.before = before
	pid := s.host.PID()
	s.host.Kill()
	died := time.Now()
	start := s.traffic.totals()
	s.story.tell("%s", s.story.style.Warn(fmt.Sprintf("kill -9 %d: the host is gone", pid)))
	if err := sleep(ctx, hostAway); err != nil {
		return err
	}
	now := s.traffic.totals()
	s.facts.alone, s.facts.aloneFor = now.requests-start.requests-(now.failed-start.failed), time.Since(died)
	s.story.tell("%d requests decided and answered meanwhile, %d failed", s.facts.alone, now.failed-start.failed)
	if err := s.startHost(ctx); err != nil {
		return err
	}
	s.facts.backAfter = time.Since(died)
	s.story.tell("the host is back on its data (pid %d)", s.host.PID())
	// Both have to be back: the endpoints' leases, and the client's watch.
	want := len(before.GetConfig().GetEndpoints())
	reply, err := s.seen.until(ctx, 25*time.Second, "the endpoints and the client to come back", func(r *donav1.StatusReply) bool {
		status := s.traffic.service.Status()
		return r != before && len(r.GetConfig().GetEndpoints()) == want && r.GetWatchers().GetConnected() > 0 && !status.Stale
	}, s.hostDied)
	if err != nil {
		return err
	}
	s.facts.after = reply
	s.story.tell("%d endpoints and the client are connected again", want)
	return nil
}

// badCanary rolls v3 back.
func (s *stage) badCanary(ctx context.Context) error {
	s.story.chapter("3. A bad canary")
	if err := s.startVariant("v3", badPercent); err != nil {
		return err
	}
	if err := s.endpoints(ctx, "v3", perVariant); err != nil {
		return err
	}
	s.story.tell("v3 registered %d endpoints; it fails about %d %% of its requests", perVariant, badPercent)
	id, err := s.start(ctx, "v3", "v2")
	if err != nil {
		return err
	}
	s.facts.bad = id
	err = s.follow(ctx, 30*time.Second, id, "v3 to be ROLLED_BACK", func(st *donav1.RolloutStatus) bool { return render.Ended(st.GetState()) })
	if err != nil {
		return err
	}
	s.story.settle()
	reply, _ := s.seen.newest()
	// The client may be one push behind; from then on no request may go to v3.
	version := reply.GetConfig().GetVersion()
	if _, err := s.seen.until(ctx, 10*time.Second, "the client to apply the rollback", func(*donav1.StatusReply) bool {
		return s.traffic.service.Status().Version >= version
	}, s.hostDied); err != nil {
		return err
	}
	s.facts.rolledBack = time.Now()
	s.facts.sinceRollback = s.traffic.totals().requests
	s.story.tell("v3 is %s; quarantined: %s", render.State(reply.GetRollout().GetState()), strings.Join(reply.GetConfig().GetQuarantinedVariants(), ", "))
	return sleep(ctx, time.Second)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
