package plugins

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins/restrict"
	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

// State is where a plugin is.
type State string

// The states. Only ready ones take calls.
const (
	StateReady       State = "ready"
	StateStarting    State = "starting"
	StateBackoff     State = "backoff"     // comes back by itself
	StateQuarantined State = "quarantined" // ended too often: comes back after a reset or reload
	StateRejected    State = "rejected"    // cannot be started: comes back after a reset or reload
	StateDraining    State = "draining"
	StateStopped     State = "stopped" // not used yet, or the host stops
)

var states = []State{StateReady, StateStarting, StateBackoff, StateQuarantined, StateRejected, StateDraining, StateStopped}

const (
	notUsed      = "not used yet"
	processEnded = "the process ended"
	// deathGrace is how long a process whose connection broke may take to turn
	// out to be dead, before it is killed for it.
	deathGrace = 200 * time.Millisecond
)

// A supervisor keeps one plugin running. Its loop is the only one that changes
// the process; everybody else reads under mu.
type supervisor struct {
	host   *Host
	id     ID
	find   func() (File, error) // what to run now
	config PluginConfig
	logger hclog.Logger
	origin Source
	drop   context.CancelFunc // ends the loop; nil before it began; the host's mu
	ended  chan struct{}      // closed at the end of the loop

	journal *journal // what logger logs

	wake    chan struct{} // somebody wants it, or reset it
	reloads chan chan error
	asked   chan error // the reload that the next start answers; the loop's own

	mu        sync.Mutex
	wanted    bool
	reset     bool
	state     State
	reason    string
	note      string      // what an operator should know besides
	gone      bool        // the host has forgotten it
	current   *generation // nil unless it takes calls
	version   string
	file      File           // what was last started, or was to be
	unfound   bool           // there was nothing to start the last time
	seen      sight          // of the file, the last time that somebody looked whether it changed
	following bool           // a reload for a change is under way
	schema    *schema.Schema // this and abilities: of the last generation that started
	abilities []string
	carry     []Instance
	number    uint64
	starts    uint64
	exits     uint64
	ends      []time.Time // exits within the window
}

func newSupervisor(h *Host, id ID, file File, find func() (File, error), config PluginConfig) *supervisor {
	kept := new(journal)
	s := &supervisor{
		host: h, id: id, file: file, find: find, config: config, origin: file.Source, journal: kept,
		logger: journaled{Logger: h.options.Logger.Named("plugin").With("kind", string(id.Kind), "plugin", id.Name), journal: kept},
		wake:   make(chan struct{}, 1), reloads: make(chan chan error), ended: make(chan struct{}),
		state: StateStopped, reason: notUsed,
	}
	h.metrics.setState(id, s.state)
	return s
}

// want starts the plugin if it never was; it does not wait.
func (s *supervisor) want() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wantLocked()
}

func (s *supervisor) wantLocked() {
	if s.wanted {
		return
	}
	s.wanted = true
	if (s.state == StateStopped || s.state == StateRejected) && !s.gone && !s.host.stopping() {
		s.setLocked(StateStarting, "")
	}
	s.poke()
}

func (s *supervisor) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *supervisor) deadline() time.Duration {
	d := kindDeadline(s.id.Kind)
	if c := s.config.Deadline; c > 0 {
		d = min(d, c)
	}
	return d
}

// acquire returns the generation for one call; the caller leaves it.
func (s *supervisor) acquire() (*generation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wantLocked()
	if s.current != nil && s.state == StateReady && s.current.enter() {
		return s.current, nil
	}
	return nil, s.awayLocked()
}

func (s *supervisor) awayLocked() error {
	if s.reason != "" {
		return fmt.Errorf("plugin %s is %s (%s): %w", s.id, s.state, s.reason, ErrAway)
	}
	return fmt.Errorf("plugin %s is %s: %w", s.id, s.state, ErrAway)
}

func (s *supervisor) set(state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(state, reason)
}

func (s *supervisor) setLocked(state State, reason string) {
	if s.state == state && s.reason == reason {
		return
	}
	s.state, s.reason = state, reason
	if s.gone {
		return
	}
	s.host.metrics.setState(s.id, state)
	s.host.notices.notify()
}

// run is the loop: from wanted to stopped.
func (s *supervisor) run(ctx context.Context) {
	defer func() {
		s.set(StateStopped, "the host stops")
		s.answer(s.away())
		close(s.ended)
	}()
	for s.awaitWanted(ctx) {
		s.mu.Lock()
		s.reset = false // the start that comes is what it asked for
		s.setLocked(StateStarting, "")
		s.mu.Unlock()
		g, err := s.launch(ctx)
		if ctx.Err() != nil {
			if g != nil {
				g.discard()
			}
			return
		}
		if err == nil {
			s.publish(g)
			if s.asked != nil {
				s.host.events.emit(s.event(EventReload, g, fmt.Sprintf("generation %d started", g.number)))
				s.answer(nil)
			}
			err = s.serve(ctx, g)
		}
		var forever *permanentError
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &forever):
			s.reject(ctx, err)
		default:
			s.pause(ctx, err)
		}
	}
}

func (s *supervisor) awaitWanted(ctx context.Context) bool {
	for {
		s.mu.Lock()
		wanted := s.wanted
		s.mu.Unlock()
		if ctx.Err() != nil {
			return false
		}
		if wanted {
			return true
		}
		select {
		case <-s.wake:
		case answer := <-s.reloads:
			if s.takeReload(answer) {
				return true
			}
			answer <- nil // nobody uses it: the first start is of what is there then
		case <-ctx.Done():
			return false
		}
	}
}

// launch starts the next generation; it is not published yet.
func (s *supervisor) launch(ctx context.Context) (*generation, error) {
	file, err := s.find()
	s.mu.Lock()
	s.unfound = err != nil
	s.mu.Unlock()
	if err != nil {
		return nil, permanent("%w", err)
	}
	s.mu.Lock()
	s.file = file
	s.number++
	s.starts++
	l := launch{
		id: s.id, number: s.number, file: file, config: s.config,
		limits: s.host.options.Limits, version: s.host.options.HostVersion,
		dir: s.host.nextDir(), exe: s.host.options.Exe, protocols: s.host.protocols, carry: s.carry, logger: s.logger,
		meter:   s.host.metrics.callMeter(s.id),
		started: s.host.watch, ended: s.host.unwatch,
		dropped: func(n int) {
			s.host.metrics.lines.WithLabelValues(string(s.id.Kind), s.id.Name).Add(float64(n))
		},
	}
	s.mu.Unlock()
	s.host.metrics.starts.WithLabelValues(string(s.id.Kind), s.id.Name).Inc()
	if s.config.Restricted && restrict.LandlockVersion() == 0 {
		s.logger.Warn("restricted without Landlock, which this system does not have: it can read and write what the host's user can")
	}
	return start(ctx, l)
}

// publish makes a proven generation the one that takes calls.
func (s *supervisor) publish(g *generation) {
	s.mu.Lock()
	s.current, s.reset = g, false
	s.version = g.description.version
	s.schema = g.schema()
	s.abilities = g.description.abilities
	h := g.health.Load()
	s.setLocked(h.state(), h.reason)
	s.mu.Unlock()
	s.host.notices.notify()
	s.logger.Info("plugin is ready", "version", g.description.version, "generation", g.number, "pid", g.pid(), "took", time.Since(g.born))
	why := ""
	if s.config.OverrideBuiltin {
		why = g.file.Path + " runs in place of the built-in: override_builtin is true"
	}
	s.host.events.emit(s.event(EventStart, g, why))
}

// withdraw takes a generation out of use and keeps what the next one needs.
func (s *supervisor) withdraw(g *generation, state State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
	s.carry = g.instances.all()
	s.setLocked(state, reason)
}

// serve watches the generation that takes calls until it has ended, and
// replaces it on reload. The error says why it ended.
func (s *supervisor) serve(ctx context.Context, g *generation) error {
	reloads := s.reloads    // nil while one is under way: the next one waits
	var next <-chan proven  // of the reload under way
	var answer chan<- error // to who asked for it
	for {
		var why string
		select {
		case <-ctx.Done():
			s.withdraw(g, StateDraining, "the host stops")
			if next != nil {
				answer <- s.away()
				s.host.background.Go(func() { (<-next).discard() })
			}
			drain, cancel := context.WithTimeout(context.Background(), g.limits.DrainStop)
			defer cancel()
			g.stop(drain)
			return ctx.Err()
		case <-g.healthy:
			h := g.health.Load()
			s.set(h.state(), h.reason)
			continue
		case answer = <-reloads:
			reloads, next = nil, s.prove(ctx, g)
			continue
		case p := <-next:
			err := s.reload(g, p)
			if err == nil {
				s.retire(g)
				g = p.generation
			}
			answer <- err
			reloads, next = s.reloads, nil
			continue
		case <-g.gone():
			why = processEnded
		case why = <-g.recycle:
		}
		ended := s.crashed(g, why)
		if next == nil {
			return ended
		}
		// The next process is on its way: it takes over, or this end is one more.
		s.set(StateStarting, ended.Error())
		p := <-next
		err := s.reload(g, p)
		answer <- err
		if err != nil {
			return ended
		}
		s.count(time.Now())
		g, reloads, next = p.generation, s.reloads, nil
	}
}

// crashed cleans up after a generation that ended, or has to end, by itself.
func (s *supervisor) crashed(g *generation, why string) error {
	s.withdraw(g, StateBackoff, why)
	if why == connectionLost {
		select {
		case <-g.gone():
			why = processEnded
		case <-time.After(deathGrace):
		}
	}
	g.discard()
	exit := g.exit()
	if why == connectionLost && !exit.ByHost {
		why = processEnded // which was only seen late
	}
	reason := why
	if !exit.ByHost {
		reason = fmt.Sprintf("%s (%s)", why, exit)
	}
	if words := g.output.cause(); words != "" {
		reason += "; it said: " + words
	}
	ev := s.event(EventCrash, g, reason)
	how := exit.String()
	if g.attached() {
		how = "not known: its process is not the host's"
	}
	ev.Exit, ev.Uptime, ev.StderrSHA256 = how, time.Since(g.born), g.output.digest()
	s.host.events.emit(ev)
	s.logger.Error("plugin ended", "generation", g.number, "exit", how, "reason", why, "uptime", ev.Uptime, "last_words", g.output.words())
	return errors.New(reason)
}

// pause counts an exit and waits for the next start, or for a reset or reload
// when there were too many.
func (s *supervisor) pause(ctx context.Context, cause error) {
	now := time.Now()
	limits := s.host.options.Limits
	s.count(now)
	s.mu.Lock()
	n, away := len(s.ends), quarantined(s.ends, now, limits)
	s.mu.Unlock()
	reason := clip(cause.Error(), 512)
	if away {
		s.set(StateQuarantined, fmt.Sprintf("ended %d times within %v; last: %s", n, limits.QuarantineIn, reason))
		s.logger.Error("plugin is quarantined until it is reset", "exits", n, "reason", reason)
		s.host.events.emit(s.event(EventQuarantine, nil, reason))
		s.answer(cause)
		s.awaitReset(ctx)
		return
	}
	wait := restartDelay(n, s.host.options.Backoff, random)
	s.logger.Warn("plugin is away", "reason", reason, "next_start_in", wait)
	s.set(StateBackoff, reason)
	s.answer(cause)
	if !s.sleep(ctx, wait) {
		return
	}
	for {
		wait := s.host.takeRestart()
		if wait == 0 || !s.sleep(ctx, wait) {
			return
		}
	}
}

// count notes an end that nobody asked for.
func (s *supervisor) count(now time.Time) {
	s.mu.Lock()
	s.exits++
	s.ends = append(recent(s.ends, now, s.host.options.Limits.QuarantineIn), now)
	s.mu.Unlock()
	s.host.metrics.exits.WithLabelValues(string(s.id.Kind), s.id.Name).Inc()
}

// reject waits for a reset or a reload: starting again would fail the same way.
func (s *supervisor) reject(ctx context.Context, cause error) {
	s.mu.Lock()
	s.exits++
	s.mu.Unlock()
	s.host.metrics.exits.WithLabelValues(string(s.id.Kind), s.id.Name).Inc()
	reason := clip(cause.Error(), 512)
	s.set(StateRejected, reason)
	s.logger.Error("plugin is rejected", "reason", reason)
	s.host.events.emit(s.event(EventReject, nil, reason))
	s.answer(cause)
	s.awaitReset(ctx)
}

// sleep waits and reports false when it was cut short.
func (s *supervisor) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		case answer := <-s.reloads:
			s.takeReload(answer)
			return false
		case <-s.wake:
			if s.takeReset() {
				return false
			}
		}
	}
}

func (s *supervisor) awaitReset(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case answer := <-s.reloads:
			s.takeReload(answer)
			return
		case <-s.wake:
			if s.takeReset() {
				return
			}
		}
	}
}

// takeReset reports whether an operator reset the plugin, and forgets its past
// exits.
func (s *supervisor) takeReset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.reset {
		return false
	}
	s.reset, s.ends = false, nil
	return true
}

func (s *supervisor) away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awayLocked()
}
