package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// A Source is a plane's side of its feeds. Its methods are called concurrently
// for different names, and for one name by one goroutine at a time (Peek: by
// several).
type Source interface {
	// Prefix is the store prefix below which a change may move the head of name.
	Prefix(name string) string
	// Peek reads only the head of name.
	Peek(tx store.ReadTx, name string) (Head, error)
	// Build makes the snapshot of name as of tx. previous is what the last Build
	// of this name returned, or nil. A name that does not exist has an empty
	// snapshot at version 0.
	Build(tx store.ReadTx, name string, previous *Built) (*Built, error)
	// Delta makes the frame that turns base into next for a client that holds
	// base. Both are of one name, and base is older. It is called by watchers,
	// several at a time, and must not change either; nil means that there is no
	// such frame.
	Delta(base, next *Built) (proto.Message, error)
}

// A Head says how far a name is, in versions. All are 0 when there is no such name.
type Head struct {
	Version uint64 // of its snapshot
	Urgent  uint64 // of the newest change that must not wait
	Removed uint64 // of the newest removal, which does not wait while there are few
}

// A Rewind is a sign that the store lost or rewound data: somebody has seen a
// version that the store cannot have forgotten by itself.
type Rewind struct {
	Name   string
	Client string // who presented the version; empty when this host itself published it
	Seen   uint64 // the version that was seen
	Ours   uint64 // the version that the store has now
	// Certain is true when the store's own revision is below Seen.
	Certain bool
}

// A Gap is the versions above After and below Before.
type Gap struct{ After, Before uint64 }

func (g Gap) holds(version uint64) bool { return version > g.After && version < g.Before }

// Options of Feeds. What is left zero takes the default that is named.
type Options struct {
	Store       store.Store
	Source      Source
	Coalesce    Coalesce
	SendTimeout time.Duration // a send blocked for longer ends the stream: 10 s
	Idle        time.Duration // a feed without watchers is dropped after: 1 min
	Retry       time.Duration // pause after a failed look or build, doubling to 16 times: 250 ms
	MaxFeeds    int           // names kept ready at once: 10,000
	FirstSyncs  int           // first frames on their way at once: 64

	// For each name so many older versions are kept to make deltas from, and so
	// many bytes of them: 32 and 2 MiB. They go when nothing changes for Idle.
	History, HistoryBytes int

	// Lost says which versions were given out and taken back by the newest fault
	// of the store, such as those of the last second before a crash; nil: none. It
	// is asked often. Who has seen such a version keeps what it has for Grace after
	// the fault came to light, while the clients that made up that version come
	// back: a watcher that presents one gets nothing until then, and a feed that
	// had published one publishes nothing. OnLost is called after it, once for a
	// name: it has to make a new version, or they would wait for the next change.
	Lost   func() Gap
	Grace  time.Duration
	OnLost func(name string) error

	// OnRewind is called for each sign of a rewound store, at most once a second
	// for a name, on a goroutine of a feed or a watcher; it must be quick.
	OnRewind func(Rewind)

	Logger     hclog.Logger          // none
	Registerer prometheus.Registerer // none
}

// Feeds holds the feeds of one plane. Its methods may be called concurrently.
type Feeds struct {
	o       Options
	log     hclog.Logger
	metrics *metrics
	first   chan struct{} // slots for first frames

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	gapMu sync.Mutex
	gap   Gap
	over  time.Time           // when the grace of gap ends
	lost  map[string]struct{} // names that OnLost was called for in gap

	mu    sync.Mutex // guards feeds and the watcher counts; held for map work only
	feeds map[string]*feed
}

// New returns feeds that start with the first subscription of a name.
func New(o Options) (*Feeds, error) {
	if o.Store == nil || o.Source == nil {
		return nil, errors.New("snapshot: options: Store and Source are needed")
	}
	o.Coalesce = o.Coalesce.withDefaults()
	setDefault(&o.SendTimeout, 10*time.Second)
	setDefault(&o.Idle, time.Minute)
	setDefault(&o.Retry, 250*time.Millisecond)
	setDefault(&o.MaxFeeds, 10_000)
	setDefault(&o.FirstSyncs, 64)
	setDefault(&o.History, 32)
	setDefault(&o.HistoryBytes, 2<<20)
	f := &Feeds{o: o, log: o.Logger, feeds: make(map[string]*feed), first: make(chan struct{}, o.FirstSyncs)}
	if f.log == nil {
		f.log = hclog.NewNullLogger()
	}
	var err error
	if f.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("snapshot: metrics: %w", err)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f, nil
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Close ends all feeds and subscriptions and returns when their goroutines are
// gone. Subscriptions answer Unavailable from then on.
func (f *Feeds) Close() {
	f.mu.Lock() // no subscription may start a feed behind the wait
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}

// A Watcher is who subscribes, and what it holds already.
type Watcher struct {
	Client       string // names it in the summary; may be empty
	LastVersion  uint64 // 0 = holds none
	LastChecksum []byte
	AcceptDelta  bool // after its first frame it takes deltas against what it got last
}

// Subscribe opens a subscription to name, which need not exist yet. It must be
// closed. Refusals: Unavailable when the feeds are closed, Exhausted when too
// many names are watched.
func (f *Feeds) Subscribe(name string, w Watcher) (*Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return nil, closed()
	}
	fd := f.feeds[name]
	if fd == nil {
		if len(f.feeds) >= f.o.MaxFeeds {
			return nil, refusal.New(refusal.Exhausted, "%d names are watched here already: that is the most; try another host", f.o.MaxFeeds)
		}
		fd = newFeed(f, name)
		f.feeds[name] = fd
		f.metrics.feeds.Set(float64(len(f.feeds)))
		f.wg.Go(func() { fd.run(f.ctx) })
	}
	fd.watchers++
	f.metrics.watchers.Inc()
	fd.applied.joined(w.Client)
	return &Subscription{feed: fd, client: w.Client, last: w.LastVersion, lastChecksum: w.LastChecksum, delta: w.AcceptDelta}, nil
}

// drop removes a feed that nobody watches; false when somebody does.
func (f *Feeds) drop(fd *feed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fd.watchers > 0 {
		return false
	}
	delete(f.feeds, fd.name)
	f.metrics.feeds.Set(float64(len(f.feeds)))
	return true
}

// Alarms says which of the names watched here have a snapshot that is not all that it
// should be, and why, sorted.
func (f *Feeds) Alarms() (lines []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fd := range f.feeds {
		if text := fd.trouble.Load(); text != nil {
			lines = append(lines, *text)
		}
	}
	slices.Sort(lines)
	return lines
}

func (f *Feeds) lookup(name string) (fd *feed, watchers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fd = f.feeds[name]; fd != nil {
		watchers = fd.watchers
	}
	return fd, watchers
}

func closed() error {
	return &refusal.Error{Kind: refusal.Unavailable, Reason: "draining", Text: "this host is stopping: watch at another one, or again"}
}
