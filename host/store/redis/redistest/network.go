package redistest

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Network is a group whose links can be cut. Its members, and the hosts that have
// joined, reach one another only through relays, which know both ends of each
// connection: a member by the address that it connects from, a host by the relay,
// for each host has relays of its own. What a test does itself, with Do and Client,
// goes past them.
//
// A cut holds back what is on its way and lets connections be made that stay silent;
// when it is healed all that arrives, as on a real network that sends again.
type Network struct {
	*Group

	t     testing.TB
	froms map[string]string // member by the address that it connects from

	mu      sync.Mutex
	cut     func(from, to string) bool
	changed chan struct{} // closed and made anew when cut changes
	ended   bool
	conns   map[*relayed]struct{}
	wg      sync.WaitGroup
}

// relayed is one connection through a relay.
type relayed struct {
	from, to       string
	client, server net.Conn // server is nil until it was dialled
}

// StartNetwork starts a group as StartGroup does, in a network.
func StartNetwork(t testing.TB, replicas int, downAfter time.Duration, settings ...string) *Network {
	t.Helper()
	n := &Network{t: t, froms: make(map[string]string), cut: func(string, string) bool { return false },
		changed: make(chan struct{}), conns: make(map[*relayed]struct{})}
	t.Cleanup(n.end) // after the members, which are ended before it
	n.Group = startGroup(t, replicas, downAfter, n, settings)
	return n
}

// Partitions runs a test in networks of a master and two replicas, side by side: once
// for a cut that leaves the master alone with what clients join it, once for one that
// leaves a replica with it.
func Partitions(t *testing.T, test func(t *testing.T, n *Network, replicas int)) {
	for replicas, name := range []string{"master alone", "master and replica"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, StartNetwork(t, 2, time.Second, Safe...), replicas)
		})
	}
}

// Name of a member in a cut.
func (s *Server) Name() string { return s.Addr }

// Join returns the URL of the group for a host that is called name in cuts: with
// addresses of Sentinels that only it uses, and that name it a master at an address
// that only it uses.
func (n *Network) Join(name string) string {
	n.t.Helper()
	doors := make(map[string]string) // own port by the one that members use
	for _, s := range n.Servers {
		_, doors[s.door], _ = net.SplitHostPort(n.relay(name, s.Addr, nil))
	}
	var addrs []string
	for _, s := range n.Sentinels {
		addrs = append(addrs, n.relay(name, s.Addr, doors))
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/" + n.Group.Name + "/0"
}

// Split cuts the network in two: these members and hosts, and all others.
func (n *Network) Split(names ...string) {
	n.Cut(func(from, to string) bool { return slices.Contains(names, from) != slices.Contains(names, to) })
}

// Heal ends the cut.
func (n *Network) Heal() { n.Cut(func(string, string) bool { return false }) }

// Cut says between whom nothing passes, by direction.
func (n *Network) Cut(cut func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	close(n.changed)
	n.changed = make(chan struct{})
}

// Reset resets the connections between these two, and what is on its way is lost.
func (n *Network) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.from == a && c.to == b || c.from == b && c.to == a {
			c.reset()
		}
	}
}

func (c *relayed) reset() {
	reset(c.client)
	if c.server != nil {
		reset(c.server)
	}
}

// member gives a process an address to connect from and a relay, at which the others
// find it, and returns what it has to be told of both.
func (n *Network) member(s *Server) (settings []string) {
	n.mu.Lock()
	source := fmt.Sprintf("127.1.0.%d", len(n.froms)+1)
	n.froms[source] = s.Addr
	n.mu.Unlock()
	_, s.door, _ = net.SplitHostPort(n.relay("", s.Addr, nil))
	settings = []string{"bind-source-addr", source}
	if s.program == "redis-sentinel" {
		return append(settings, "sentinel", "announce-ip 127.0.0.1", "sentinel", "announce-port "+s.door)
	}
	return append(settings, "replica-announce-ip", "127.0.0.1", "replica-announce-port", s.door)
}

// relay listens for connections to a member and returns the address. from is who
// makes them; empty: a member, known by its address. Where there are doors, ports in
// the member's answers are put in their stead.
func (n *Network) relay(from, to string, doors map[string]string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = l.Close() })
	n.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			c := &relayed{from: from, to: to, client: client}
			n.wg.Go(func() { n.serve(c, doors) })
		}
	})
	return l.Addr().String()
}

func (n *Network) serve(c *relayed, doors map[string]string) {
	if c.from == "" {
		host, _, _ := net.SplitHostPort(c.client.RemoteAddr().String())
		n.mu.Lock()
		c.from = n.froms[host]
		n.mu.Unlock()
	}
	if !n.add(c, nil) {
		return
	}
	defer n.remove(c)
	if !n.passes(c.from, c.to) {
		return
	}
	server, err := net.DialTimeout("tcp", c.to, 10*time.Second)
	if err != nil || !n.add(c, server) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.pump(server, c.client, c.to, c.from, doors) })
	n.pump(c.client, server, c.from, c.to, nil)
	wg.Wait()
}

// pump hands on what comes, and at last the end of it. The ends wait for the cut too.
func (n *Network) pump(src, dst net.Conn, from, to string, doors map[string]string) {
	in := bufio.NewReaderSize(src, 64<<10)
	buf := make([]byte, 64<<10)
	for {
		var chunk []byte
		var err error
		if doors == nil {
			var k int
			k, err = in.Read(buf)
			chunk = buf[:k]
		} else { // a Sentinel's answers are lines
			chunk, err = in.ReadBytes('\n')
			if door := doors[strings.TrimSuffix(string(chunk), "\r\n")]; door != "" {
				chunk = []byte(door + "\r\n")
			}
		}
		if !n.passes(from, to) {
			err = net.ErrClosed
		} else if _, werr := dst.Write(chunk); werr != nil {
			err = werr
		}
		if err != nil {
			_ = src.Close()
			_ = dst.Close()
			return
		}
	}
}

// passes waits until there is no cut on the way, and reports false when the test ends.
func (n *Network) passes(from, to string) bool {
	for {
		n.mu.Lock()
		cut, changed, ended := n.cut(from, to), n.changed, n.ended
		n.mu.Unlock()
		switch {
		case ended:
			return false
		case !cut:
			return true
		}
		<-changed
	}
}

// add notes a connection, or its server's side, so that it is closed at the end.
func (n *Network) add(c *relayed, server net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.server = server
	if n.ended {
		c.reset()
		return false
	}
	n.conns[c] = struct{}{}
	return true
}

func (n *Network) remove(c *relayed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.reset()
	delete(n.conns, c)
}

func (n *Network) end() {
	n.mu.Lock()
	n.ended = true
	close(n.changed)
	n.changed = make(chan struct{})
	for c := range n.conns {
		c.reset()
	}
	n.mu.Unlock()
	n.wg.Wait()
}
