package upstream

// The handshakes, for tests that make up what a proxy sends.
var (
	ConnectOver = connect
	Socks5Over  = socks5
)
