package store

// Waiting is how many calls are in the queue.
func (e *Engine) Waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}
