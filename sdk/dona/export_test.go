package dona

// WithRandom replaces the random numbers of waits, so that tests need not wait.
func WithRandom(f func() float64) Option { return func(o *options) { o.random = f } }

// SameConnection reports whether two clients share the connection to their first
// host.
func SameConnection(a, b *Client) bool { return a.hosts[0].conn == b.hosts[0].conn }
