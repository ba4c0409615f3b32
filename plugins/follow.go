package plugins

import (
	"time"
)

// Following files: a plugin in use is reloaded when what would run at its next
// start is not what runs.

// followEvery is how often files are looked at. A change counts when two looks in a
// row see the same, so that a file is not run that is still being written.
const followEvery = time.Second

// A sight is what somebody saw who looked at a plugin's file.
type sight struct {
	path, version, digest string
	refusal               string // why it would not run; empty = it would
}

func sightOf(f File) sight { return sight{path: f.Path, version: f.Version, digest: f.Digest} }

func (s *supervisor) look() sight {
	file, err := s.host.options.Catalog.Look(s.id)
	if err != nil {
		return sight{refusal: clip(err.Error(), 512)}
	}
	return sightOf(file)
}

// follow looks at the files of plugins in use until the host stops.
func (h *Host) follow() {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			return
		}
		for _, s := range h.all() {
			if s.fromFile() {
				s.follow()
			}
		}
	}
}

func (s *supervisor) fromFile() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin == SourceFile && s.wanted && !s.gone
}

// follow looks at the plugin's file, and begins a reload when it has changed since
// the last start, or can be started by now. One that would be refused changes
// nothing but what operators are told.
func (s *supervisor) follow() {
	now := s.look()
	s.mu.Lock()
	steady := s.seen == now
	s.seen = now
	serving := s.current != nil
	changed := s.unfound || now != sightOf(s.file)
	if serving && now == sightOf(s.current.file) {
		changed = false // what failed in between is not there any more
	}
	busy := s.following || s.state == StateStarting || s.state == StateDraining
	s.mu.Unlock()
	switch {
	case !steady || busy:
	case now.refusal == "":
		s.remark("")
		if changed {
			s.reloadFor(now)
		}
	case serving:
		s.remark("at its next start it would be refused: " + now.refusal)
	default:
		s.refused(now.refusal)
	}
}

// remark notes what an operator should know besides the state.
func (s *supervisor) remark(note string) {
	s.mu.Lock()
	changed := s.note != note
	s.note = note
	s.mu.Unlock()
	if changed {
		s.host.notices.notify()
		if note != "" {
			s.logger.Error(note)
		}
	}
}

// refused keeps the reason of a plugin that has nothing to start true.
func (s *supervisor) refused(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == StateRejected && s.unfound {
		s.setLocked(StateRejected, why)
	}
}

// reloadFor has the plugin reloaded, and does not wait for it.
func (s *supervisor) reloadFor(now sight) {
	s.mu.Lock()
	s.following = true
	s.mu.Unlock()
	s.logger.Info("what is to run has changed, reloading", "file", now.path, "digest", now.digest)
	s.host.background.Go(func() {
		_ = s.host.Reload(s.host.ctx, s.id.Kind, s.id.Name) // the loop has logged why it failed
		s.mu.Lock()
		s.following = false
		s.mu.Unlock()
	})
}
