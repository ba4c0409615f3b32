package plugins

import (
	"context"
	"fmt"
	"time"
)

// Reloads as the supervisor's loop makes them: of a plugin that is away, and
// beside a generation that takes calls.

// takeReload makes a reload of a plugin that is away its next start, as if it
// had been reset, and reports false when the plugin is not used at all.
func (s *supervisor) takeReload(answer chan error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == StateStopped {
		return false
	}
	s.wanted, s.ends, s.asked = true, nil, answer
	return true
}

// answer tells the one who asked for a reload what became of it.
func (s *supervisor) answer(err error) {
	if s.asked != nil {
		if err != nil {
			err = fmt.Errorf("reload plugin %s: %w", s.id, err)
		}
		s.asked <- err
		s.asked = nil
	}
}

// proven is what came of a start beside a running generation.
type proven struct {
	generation *generation // nil with an error
	err        error
}

func (p proven) discard() {
	if p.generation != nil {
		p.generation.discard()
	}
}

// prove starts a new generation beside the old one, which is watched meanwhile.
func (s *supervisor) prove(ctx context.Context, old *generation) <-chan proven {
	s.mu.Lock()
	s.carry = old.instances.all()
	s.mu.Unlock()
	done := make(chan proven, 1)
	s.host.background.Go(func() {
		g, err := s.launch(ctx)
		done <- proven{g, err}
	})
	return done
}

// reload makes a proven generation the one that takes calls, or says why there is
// none.
func (s *supervisor) reload(old *generation, p proven) error {
	if p.err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.current != old {
			return fmt.Errorf("reload plugin %s: generation %d ended meanwhile, and the next one failed: %w", s.id, old.number, p.err)
		}
		err := fmt.Errorf("reload plugin %s: generation %d stays: %w", s.id, old.number, p.err)
		reason := clip(err.Error(), 512)
		s.setLocked(old.health.Load().state(), reason)
		s.logger.Error("reload failed", "reason", reason)
		return err
	}
	s.publish(p.generation)
	s.host.events.emit(s.event(EventReload, p.generation, fmt.Sprintf("generation %d replaced %d", p.generation.number, old.number)))
	return nil
}

// retire lets a replaced generation finish its calls, and ends it.
func (s *supervisor) retire(old *generation) {
	s.host.background.Go(func() {
		drain, cancel := context.WithTimeout(context.Background(), old.limits.DrainReload)
		defer cancel()
		cut := context.AfterFunc(s.host.ctx, func() { time.AfterFunc(old.limits.DrainStop, cancel) })
		defer cut()
		old.stop(drain)
	})
}
