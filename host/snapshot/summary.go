package snapshot

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	maxApplied  = 10_000    // clients remembered for one name
	maxRejected = 20        // rejections shown for one name
	appliedKept = time.Hour // a report without a subscription of the same client is forgotten after
	prunePause  = time.Minute
)

// A Summary says how the watchers of one name are.
type Summary struct {
	Connected        int
	OnCurrentVersion int        // of them, those that reported the newest version as applied
	Rejected         []Rejected // newest versions first, equal ones once, at most 20
}

// Rejected is a version that clients could not use.
type Rejected struct {
	Version uint64
	Reason  string // as the client put it
	Clients int
}

// applied is what the clients of one feed reported last.
type applied struct {
	mu      sync.Mutex
	clients map[string]report
	pruned  time.Time // when old reports were last looked for, at the cap
}

type report struct {
	version uint64
	reason  string // empty = applied
	at      time.Time
}

// Applied notes what client reported about a version of name: that it was
// applied, or, with a reason, rejected. Reports about names that nobody watches
// here are ignored.
func (f *Feeds) Applied(name, client string, version uint64, rejectedReason string) {
	fd, _ := f.lookup(name)
	if fd == nil {
		return
	}
	a := &fd.applied
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients == nil {
		a.clients = make(map[string]report)
	}
	if _, known := a.clients[client]; !known && !a.room(now) {
		return
	}
	a.clients[client] = report{version: version, reason: rejectedReason, at: now}
}

// room reports whether one more client can be remembered. At the cap it looks for
// old reports, but not so often that a flood of names would cost a look each.
func (a *applied) room(now time.Time) bool {
	if len(a.clients) >= maxApplied && now.Sub(a.pruned) >= prunePause {
		a.pruned = now
		for other, r := range a.clients {
			if now.Sub(r.at) > appliedKept {
				delete(a.clients, other)
			}
		}
	}
	return len(a.clients) < maxApplied
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
	now := time.Now()
	fd.applied.mu.Lock()
	for client, r := range fd.applied.clients {
		switch {
		case now.Sub(r.at) > appliedKept && r.version != cur.built.Version:
			delete(fd.applied.clients, client)
		case r.reason != "":
			rejected[rejection{r.version, r.reason}]++
		case r.version == cur.built.Version:
			s.OnCurrentVersion++
		}
	}
	fd.applied.mu.Unlock()
	s.OnCurrentVersion = min(s.OnCurrentVersion, s.Connected)
	for r, n := range rejected {
		s.Rejected = append(s.Rejected, Rejected{Version: r.version, Reason: r.reason, Clients: n})
	}
	slices.SortFunc(s.Rejected, func(a, b Rejected) int {
		return cmp.Or(cmp.Compare(b.Version, a.Version), cmp.Compare(a.Reason, b.Reason))
	})
	s.Rejected = s.Rejected[:min(len(s.Rejected), maxRejected)]
	return s
}

// left forgets a client whose subscription closed.
func (a *applied) left(client string) {
	if client == "" {
		return
	}
	a.mu.Lock()
	delete(a.clients, client)
	a.mu.Unlock()
}
