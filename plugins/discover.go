package plugins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/runner"
)

const (
	// lookEvery is how often the catalog is asked at most.
	lookEvery = time.Second
	// lookWait is how long those wait for its answer who brought no context.
	lookWait = 3 * time.Second
)

// look is the last time that the catalog was asked what there is, or the one
// under way.
type look struct {
	at   time.Time
	done chan struct{}
}

// look asks the catalog again what there is, in the background, unless it was
// asked just now. The channel is closed when the answer has been taken in.
func (h *Host) look() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looked.done != nil && (!closed(h.looked.done) || time.Since(h.looked.at) < lookEvery) {
		return h.looked.done
	}
	done := make(chan struct{})
	if !h.started.Load() || h.stopping() {
		close(done)
		return done
	}
	h.looked = look{at: time.Now(), done: done}
	h.background.Go(func() {
		defer close(done)
		h.adopt(h.options.Catalog.List(h.ctx, h.runOnce))
		h.mu.Lock()
		defer h.mu.Unlock()
		h.looked.at = time.Now()
	})
	return done
}

// runOnce is the Run that the catalog is given.
func (h *Host) runOnce(ctx context.Context, file File, most int) (runner.Outcome, error) {
	dir := h.nextDir()
	return runOnce(ctx, file, most, dir, func(pgid int) { h.watch(pgid, dir) }, h.unwatch)
}

// RunAlone is the Run of programs without a Host: nobody ends what it runs when they
// are killed.
func RunAlone(ctx context.Context, file File, most int) (runner.Outcome, error) {
	dir, err := os.MkdirTemp("", "dona-run-*")
	if err != nil {
		return runner.Outcome{}, fmt.Errorf("make directory: %w", err)
	}
	return runOnce(ctx, file, most, dir, nil, nil)
}

// runOnce runs a file in a directory, which is removed afterwards.
func runOnce(ctx context.Context, file File, most int, dir string, started, ended func(pgid int)) (runner.Outcome, error) {
	defer func() { _ = image.Remove(dir) }()
	private := filepath.Join(dir, "tmp")
	if err := os.MkdirAll(private, 0o700); err != nil {
		return runner.Outcome{}, fmt.Errorf("make directory: %w", err)
	}
	program, err := file.place(filepath.Join(dir, "program"))
	if err != nil {
		return runner.Outcome{}, err
	}
	return runner.Output(ctx, runner.Config{
		Name: filepath.Base(file.Path), Path: file.Path, Program: program, Args: file.Args,
		Env: runner.Environment(private, hclog.Info.String(), nil), Dir: private, SocketDir: private,
		Started: started, Ended: ended,
	}, most)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// adopt takes in what the catalog has: it makes supervisors for what is new,
// notes what the names of built-ins stand in the way of, and drops what is gone
// and was never in use.
func (h *Host) adopt(listed []ID) {
	changed := false
	for _, id := range listed {
		s, known := h.known(id)
		switch {
		case !known:
			changed = true
			h.add(h.fromCatalog(id))
		case s.origin == SourceFile:
			s.inspect()
		}
	}
	for _, s := range h.all() {
		if s.origin == SourceFile && !slices.Contains(listed, s.id) {
			changed = h.forget(s) || changed
		}
		if s.origin == SourceBuiltin {
			s.shadow(slices.Contains(listed, s.id))
		}
	}
	if changed {
		h.notices.notify()
	}
}

// fromCatalog makes the supervisor of a plugin that is a file.
func (h *Host) fromCatalog(id ID) *supervisor {
	s := newSupervisor(h, id, File{Source: SourceFile}, func() (File, error) { return h.options.Catalog.Find(id) }, h.options.Plugins[id])
	s.inspect()
	return s
}

// add makes a supervisor known, and begins its loop when the host runs.
func (h *Host) add(s *supervisor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping() {
		return
	}
	h.plugins[s.id] = s
	if h.started.Load() {
		h.begin(s)
	}
}

// forget drops a plugin whose file is gone, or says by now which kind it is,
// unless somebody uses it or the settings want it, and reports whether it did.
func (h *Host) forget(s *supervisor) bool {
	_, configured := h.options.Plugins[s.id]
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if configured || s.wanted && s.id.Kind != KindUnknown {
		return false
	}
	delete(h.plugins, s.id)
	if s.drop != nil {
		s.drop()
	}
	s.gone = true
	h.metrics.forget(s.id)
	return true
}

func (h *Host) known(id ID) (*supervisor, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	s, ok := h.plugins[id]
	return s, ok
}

// all returns the supervisors, sorted by kind and name.
func (h *Host) all() []*supervisor {
	h.mu.RLock()
	defer h.mu.RUnlock()
	list := make([]*supervisor, 0, len(h.plugins))
	for _, id := range sortedIDs(h.plugins) {
		list = append(list, h.plugins[id])
	}
	return list
}

// find returns a plugin that is known, or ErrUnknown.
func (h *Host) find(id ID) (*supervisor, error) {
	if s, ok := h.known(id); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%s plugin %s: %w", id.Kind, quote(id.Name), ErrUnknown)
}

// seek is find that has the catalog asked for what is not known, or not what it
// is, and waits for the answer for a while or until ctx ends.
func (h *Host) seek(ctx context.Context, id ID) (*supervisor, error) {
	if s, ok := h.known(id); ok && id.Kind != KindUnknown {
		return s, nil
	}
	select {
	case <-h.look():
	case <-ctx.Done():
	case <-time.After(lookWait):
	}
	return h.find(id)
}

// inspect says of a plugin that nobody has used yet whether its file could be
// run.
func (s *supervisor) inspect() {
	s.mu.Lock()
	used := s.wanted
	s.mu.Unlock()
	if used {
		return // the loop looks itself
	}
	file, err := s.host.options.Catalog.Look(s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.wanted || s.gone:
	case err != nil:
		if reason := clip(err.Error(), 512); s.state != StateRejected || s.reason != reason {
			s.setLocked(StateRejected, reason)
			s.logger.Error("plugin is rejected", "reason", reason)
		}
	default:
		s.file = file
		s.setLocked(StateStopped, notUsed)
	}
}

// shadow notes that there is a file with the name of a built-in, which is not
// run, or that there is none any more.
func (s *supervisor) shadow(there bool) {
	note := ""
	if there {
		note = "a file has the name of this built-in and is left alone"
		if file, err := s.host.options.Catalog.Look(s.id); err == nil {
			note = "the file " + file.Path + " has the name of this built-in and is left alone"
		}
		note += fmt.Sprintf("; set plugins.%s.%s.override_builtin: true to run it instead", s.id.Kind, s.id.Name)
	}
	s.remark(note)
}
