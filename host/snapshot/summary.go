package snapshot

import (
	"cmp"
	"slices"
	"sync"
)

// maxRejected is how many rejections are shown for one name.
const maxRejected = 20

// A Summary says how the watchers of one name are, on this host.
type Summary struct {
	Connected        int
	OnCurrentVersion int        // of them, those known to have applied the newest version
	RejectedClients  int        // of them, those whose last word was a rejection
	Rejected         []Rejected // newest versions first, equal ones once, at most 20
}

// Rejected is a version that clients could not use.
type Rejected struct {
	Version uint64
	Reason  string // as the client put it
	Clients int
}

// applied is what the clients of one feed said last. It knows those that watch and
// no others, so it is as large as their number.
type applied struct {
	mu      sync.Mutex
	clients map[string]*report
}

type report struct {
	watches int // subscriptions of the client: it is forgotten with the last
	version uint64
	reason  string // empty = applied
}

func (a *applied) joined(client string) {
	if client == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.clients[client]
	if r == nil {
		if a.clients == nil {
			a.clients = make(map[string]*report)
		}
		r = &report{}
		a.clients[client] = r
	}
	r.watches++
}

func (a *applied) left(client string) {
	if client == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.clients[client]; r.watches > 1 {
		r.watches--
	} else {
		delete(a.clients, client)
	}
}

// holds notes that a client came back with a version that it applied before.
func (a *applied) holds(client string, version uint64) { a.note(client, version, "") }

func (a *applied) note(client string, version uint64, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.clients[client]; r != nil {
		r.version, r.reason = version, reason
	}
}

// Applied notes what client reported about a version of name: that it was
// applied, or, with a reason, rejected. What a client says that does not watch the
// name here is ignored.
func (f *Feeds) Applied(name, client string, version uint64, rejectedReason string) {
	if fd, _ := f.lookup(name); fd != nil {
		fd.applied.note(client, version, rejectedReason)
	}
}

// Summary says how the watchers of name are here, on this host.
func (f *Feeds) Summary(name string) Summary {
	fd, watchers := f.lookup(name)
	if fd == nil {
		return Summary{}
	}
	s := Summary{Connected: watchers}
	cur := fd.current.Load()
	if cur == nil {
		return s
	}
	type rejection struct {
		version uint64
		reason  string
	}
	rejected := make(map[rejection]int)
	fd.applied.mu.Lock()
	for _, r := range fd.applied.clients {
		switch {
		case r.reason != "":
			rejected[rejection{r.version, r.reason}] += r.watches
			s.RejectedClients += r.watches
		case r.version == cur.built.Version && r.version != 0:
			s.OnCurrentVersion += r.watches
		}
	}
	fd.applied.mu.Unlock()
	// Who came or went while this counted is in one number and not in the other.
	s.OnCurrentVersion = min(s.OnCurrentVersion, s.Connected)
	s.RejectedClients = min(s.RejectedClients, s.Connected)
	for r, n := range rejected {
		s.Rejected = append(s.Rejected, Rejected{Version: r.version, Reason: r.reason, Clients: n})
	}
	slices.SortFunc(s.Rejected, func(a, b Rejected) int {
		return cmp.Or(cmp.Compare(b.Version, a.Version), cmp.Compare(a.Reason, b.Reason))
	})
	s.Rejected = s.Rejected[:min(len(s.Rejected), maxRejected)]
	return s
}
