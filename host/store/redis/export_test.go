package redis

// Busy is how many calls to the server the connections of the store are taken by, as
// the pool of the client library counts them.
func (s *Store) Busy() int {
	l, _, _ := s.backend.current()
	if l == nil {
		return 0
	}
	stats := l.client.PoolStats()
	return int(stats.TotalConns) - int(stats.IdleConns)
}
