package store

import "context"

// settlement is the hard calls of one committed batch, which is not durable yet.
// One of them waits for that, or brings it about, in the name of all; the others
// sleep until they are answered, so that each is woken once.
type settlement struct {
	durable func(context.Context) error
	calls   []*call // under Engine.mu until one of them settles
}

// call wakes the first call that has not left to settle s. The caller holds mu.
func (e *Engine) call(s *settlement) {
	for len(s.calls) > 0 && s.calls[0].left {
		s.calls = s.calls[1:]
	}
	if len(s.calls) > 0 {
		c := s.calls[0]
		c.settles = s
		c.wake <- struct{}{}
	}
}

// leave notes that c's owner has left, and passes on what c was called to. The
// caller holds mu.
func (e *Engine) leave(c *call) {
	c.left = true
	if s := c.settles; s != nil {
		c.settles = nil
		e.call(s)
	}
}

// settle answers all calls of s, c among them, when their fate is known. An
// error means that c's context has ended before; another call takes over then.
func (e *Engine) settle(c *call, s *settlement) error {
	err := s.durable(c.ctx)
	if err != nil && err == c.ctx.Err() { //nolint:errorlint // a backend returns it as it is
		e.mu.Lock()
		c.left = true
		e.call(s)
		e.mu.Unlock()
		return err
	}
	for _, c := range s.calls {
		if err != nil {
			c.err = err
		}
		c.finish()
	}
	return nil
}
