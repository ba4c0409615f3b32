package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins/watchdog"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

// MaxConfigLen bounds a configuration, in bytes of JSON.
const MaxConfigLen = 64 << 10

// stopWait bounds Stop together with the watchdog's own second and eventsWait.
const (
	stopWait   = 3500 * time.Millisecond
	eventsWait = 400 * time.Millisecond
)

// A Host runs plugins. Make it with New, then Start it once and Stop it once;
// all other methods may be called concurrently, at any time.
type Host struct {
	options Options
	digest  string
	metrics *metrics
	// protocols are the wire majors that it understands, newest first.
	protocols []int
	events    *events
	notices   notices

	mu      sync.RWMutex // of plugins and looked; and no loop is begun after cancel
	plugins map[ID]*supervisor
	looked  look

	ctx    context.Context // ends when the host stops
	cancel context.CancelFunc

	run        *runDir
	dirs       atomic.Uint64
	dog        *watchdog.Client
	loops      sync.WaitGroup
	background sync.WaitGroup // old generations that drain
	stopOnce   sync.Once
	started    atomic.Bool

	budgetMu sync.Mutex
	budget   budget
}

// New checks the options and starts nothing.
func New(o Options) (*Host, error) {
	o.fill()
	listed := o.Catalog.List(context.Background(), nil)
	if err := o.check(listed); err != nil {
		return nil, err
	}
	if o.Exe == "" {
		exe, err := ownExe()
		if err != nil {
			return nil, fmt.Errorf("find the program for built-in plugins: %w", err)
		}
		o.Exe = exe
	}
	digest, err := fileDigest(o.Exe)
	if err != nil {
		return nil, fmt.Errorf("read the program for built-in plugins: %w", err)
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register plugin metrics: %w", err)
	}
	h := &Host{
		options: o, digest: digest, metrics: m, protocols: spoken(), plugins: make(map[ID]*supervisor),
		budget: budget{most: o.Limits.RestartBudget, window: o.Limits.BudgetWindow},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	for id, socket := range o.Attached {
		file := File{Path: socket, Source: SourceAttached}
		h.plugins[id] = newSupervisor(h, id, file, func() (File, error) { return file, nil }, o.Plugins[id])
	}
	for _, p := range o.Builtins {
		id := ID{kindOf(p.Kind()), p.Name()}
		if _, attached := o.Attached[id]; attached {
			continue
		}
		if o.Plugins[id].OverrideBuiltin {
			h.plugins[id] = h.fromCatalog(id)
			continue
		}
		file := File{Path: o.Exe, Args: []string{builtinArg, id.String()}, Digest: digest, Source: SourceBuiltin}
		h.plugins[id] = newSupervisor(h, id, file, func() (File, error) { return file, nil }, o.Plugins[id])
	}
	h.adopt(listed)
	return h, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// Start makes the run directory, sweeps what dead hosts left in it, starts the
// watchdog and the plugins that are required or were asked for by Ensure, and
// asks the catalog what else there is. It does not wait until they are ready, nor
// for that answer. ctx is not kept: Stop ends the host.
func (h *Host) Start(context.Context) error {
	run, err := openRunDir(h.options.RunDir)
	if err != nil {
		return err
	}
	dog, err := watchdog.Start(h.options.Exe, h.options.Logger.Named("watchdog"))
	if err != nil {
		run.close()
		return err
	}
	dog.Add(0, run.path)
	h.run, h.dog = run, dog
	h.events = newEvents(h.options.Logger, h.options.OnEvent)
	h.mu.Lock()
	h.started.Store(true)
	for _, s := range h.plugins {
		h.begin(s)
	}
	h.mu.Unlock()
	h.look()
	h.background.Go(h.follow)
	return nil
}

// begin starts the loop of a plugin; the caller holds mu.
func (h *Host) begin(s *supervisor) {
	ctx, cancel := context.WithCancel(h.ctx)
	s.drop = cancel
	h.loops.Go(func() { s.run(ctx) })
	if s.config.Required {
		s.want()
	}
}

// Stop ends all plugins: calls in flight have a second to finish. It takes at
// most five seconds, whatever plugins do, and leaves no process, socket or
// directory.
func (h *Host) Stop(ctx context.Context) {
	h.stopOnce.Do(func() {
		h.mu.Lock()
		h.cancel()
		h.mu.Unlock()
		if !h.started.Load() {
			return
		}
		done := make(chan struct{})
		go func() {
			h.loops.Wait()
			h.background.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(stopWait):
		}
		h.dog.Close() // ends what is left
		h.run.close()
		if c, ok := h.options.Catalog.(io.Closer); ok {
			_ = c.Close()
		}
		h.events.close(eventsWait)
	})
}

func (h *Host) stopping() bool { return h.ctx.Err() != nil }

// nextDir names the directory of the next process.
func (h *Host) nextDir() string {
	return filepath.Join(h.run.path, "g"+strconv.FormatUint(h.dirs.Add(1), 36))
}

func (h *Host) watch(pgid int, dir string) { h.dog.Add(pgid, dir) }
func (h *Host) unwatch(pgid int)           { h.dog.Remove(pgid) }

func (h *Host) takeRestart() time.Duration {
	h.budgetMu.Lock()
	defer h.budgetMu.Unlock()
	return h.budget.take(time.Now())
}

// Ensure has a plugin started if it was not yet; it does not wait. The error is
// ErrUnknown or nil. A plugin that is not known is looked for, so that it may be
// the next time; Watch says when.
func (h *Host) Ensure(kind Kind, name string) error {
	s, err := h.find(ID{kind, name})
	if err != nil {
		h.look()
		return err
	}
	s.want()
	return nil
}

// Ready reports whether a plugin takes calls now.
func (h *Host) Ready(kind Kind, name string) bool {
	s, err := h.find(ID{kind, name})
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateReady
}

// Await ensures a plugin and waits while it is starting. The error is
// ErrUnknown, ErrAway, or that of ctx.
func (h *Host) Await(ctx context.Context, kind Kind, name string) error {
	s, err := h.seek(ctx, ID{kind, name})
	if err != nil {
		return err
	}
	changed, cancel := h.Watch()
	defer cancel()
	s.want()
	for {
		s.mu.Lock()
		state, away := s.state, s.awayLocked()
		s.mu.Unlock()
		switch state {
		case StateReady:
			return nil
		case StateStarting:
		default:
			return away
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("plugin %s/%s is starting: %w", kind, name, ctx.Err())
		}
	}
}

// Missing returns the required plugins that are not ready, by name: the host is
// not ready without them.
func (h *Host) Missing() []ID {
	var missing []ID
	for _, s := range h.all() {
		if s.config.Required && !h.Ready(s.id.Kind, s.id.Name) {
			missing = append(missing, s.id)
		}
	}
	return missing
}

// List returns the state of every plugin, sorted by kind and name, those
// included that were added since the last time. For these it waits a moment.
func (h *Host) List() []*donav1.PluginStatus {
	select {
	case <-h.look():
	case <-time.After(lookWait):
	}
	all := h.all()
	list := make([]*donav1.PluginStatus, len(all))
	for i, s := range all {
		list[i] = s.status()
	}
	return list
}

// Status returns the state of one plugin, or ErrUnknown.
func (h *Host) Status(kind Kind, name string) (*donav1.PluginStatus, error) {
	s, err := h.seek(h.ctx, ID{kind, name})
	if err != nil {
		return nil, err
	}
	return s.status(), nil
}

// Capable reports whether a plugin said, when it last started, that it has a
// capability. One that was never seen has none.
func (h *Host) Capable(id ID, capability string) bool {
	s, err := h.find(id)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.abilities, capability)
}

// Reset brings a quarantined, rejected or waiting plugin back now and forgets
// its exits.
func (h *Host) Reset(kind Kind, name string) error {
	s, err := h.seek(h.ctx, ID{kind, name})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.reset = s.current == nil
	s.ends = nil
	if s.reset && !h.stopping() {
		s.setLocked(StateStarting, "") // seen at once by who looks or awaits
	}
	s.mu.Unlock()
	s.want()
	s.poke()
	return nil
}

// Reload starts a new process beside the running one and swaps when it is
// proven; when it is not, the old one stays and the error says why. A plugin
// that is away is started as after Reset. The error is nil once the new process
// takes calls. When ctx ends earlier Reload returns, and the start goes on.
func (h *Host) Reload(ctx context.Context, kind Kind, name string) error {
	s, err := h.seek(ctx, ID{kind, name})
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	select {
	case s.reloads <- answer:
	case <-ctx.Done():
		return ctx.Err()
	case <-h.ctx.Done():
		return fmt.Errorf("reload plugin %s: the host stops: %w", s.id, ErrAway)
	case <-s.ended:
		if h.stopping() {
			return fmt.Errorf("reload plugin %s: the host stops: %w", s.id, ErrAway)
		}
		return fmt.Errorf("reload plugin %s: its file is gone: %w", s.id, ErrUnknown)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Validate checks a configuration: against the schema of the plugin, or the
// last known one while the plugin is away, and with the plugin itself when it
// is there. Errors: ErrUnknown, *ConfigError, and ErrAway when the plugin was
// never seen.
func (h *Host) Validate(ctx context.Context, id ID, config *structpb.Struct) error {
	s, err := h.seek(ctx, id)
	if err != nil {
		return err
	}
	if text, err := schema.JSON(config); err != nil {
		return &ConfigError{Plugin: id, Violations: []Violation{{Message: err.Error()}}}
	} else if len(text) > MaxConfigLen {
		return &ConfigError{Plugin: id, Violations: []Violation{{Message: fmt.Sprintf("has %d bytes as JSON: allowed are at most %d", len(text), MaxConfigLen)}}}
	}
	s.mu.Lock()
	last := s.schema
	s.mu.Unlock()
	if last == nil {
		if err := h.Await(ctx, id.Kind, id.Name); err != nil {
			return err
		}
	}
	g, err := s.acquire()
	if err != nil {
		s.mu.Lock()
		last = s.schema
		s.mu.Unlock()
		if last == nil {
			return err
		}
		return refusal(id, last.Check(config))
	}
	defer g.leave()
	ctx, cancel := context.WithTimeout(ctx, g.limits.Configure)
	defer cancel()
	bad, err := g.configure(ctx, Instance{ID: "validate", Config: config}, true)
	switch status.Code(err) {
	case codes.OK:
	case codes.Internal, codes.Unknown:
		bad = []Violation{{Message: "the plugin failed on it: " + g.said(err)}}
	default:
		// It went away in between: what its schema says holds.
		return refusal(id, g.schema().Check(config))
	}
	return refusal(id, bad)
}

func refusal(id ID, bad []Violation) error {
	if len(bad) == 0 {
		return nil
	}
	return &ConfigError{Plugin: id, Violations: bad}
}

// WatchdogPID returns the process id of the watchdog, 0 while there is none, and
// how many were started.
func (h *Host) WatchdogPID() (pid, starts int) {
	if !h.started.Load() {
		return 0, 0
	}
	return h.dog.PID()
}

// Watch returns a channel that receives after the state of any plugin has
// changed, coalesced: look at what is. cancel ends it.
func (h *Host) Watch() (changed <-chan struct{}, cancel func()) {
	changed, cancel, _ = h.notices.subscribe(math.MaxInt)
	return changed, cancel
}

// notices tells subscribers that something changed.
type notices struct {
	mu   sync.Mutex
	subs map[chan struct{}]struct{}
}

// subscribe reports false when as many as most are subscribed.
func (n *notices) subscribe(most int) (changed <-chan struct{}, cancel func(), ok bool) {
	ch := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.subs) >= most {
		return nil, nil, false
	}
	if n.subs == nil {
		n.subs = make(map[chan struct{}]struct{})
	}
	n.subs[ch] = struct{}{}
	return ch, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subs, ch)
	}, true
}

func (n *notices) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ch := range n.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
