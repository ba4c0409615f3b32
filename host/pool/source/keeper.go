package source

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/proxylist"
)

// Status is how the reads of an upstream's source go.
type Status struct {
	Upstream string
	Entries  int       // of the last good list
	Rejected int       // lines of it
	Read     time.Time // of the last good read; zero: there was none
	Problem  string    // of the last read; empty: it was good
	Since    time.Time // that reads have failed without a break
}

// Keeper reads the sources of a configuration. Its methods are safe for
// concurrent use.
type Keeper struct {
	o Options

	mu      sync.Mutex
	ctx     context.Context // of the loops; nil before Run, and after its end
	loops   map[string]*loop
	waiting sync.WaitGroup
}

// loop reads one upstream's source. What it shares is under the keeper's lock.
type loop struct {
	upstream poolconfig.Upstream
	reader   reader // of its goroutine alone
	stop     context.CancelFunc
	again    chan struct{} // of one place: read now

	list   *List
	status Status
}

// NewKeeper returns a keeper of nothing. It reads once Run runs.
func NewKeeper(o Options) *Keeper {
	if o.Client == nil {
		o.Client = NewClient()
	}
	if o.Timeout == 0 {
		o.Timeout = timeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Keeper{o: o, loops: map[string]*loop{}}
}

// Run reads until the context ends, and returns when every read has ended. It is
// called once.
func (k *Keeper) Run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	for _, l := range k.loops {
		k.start(l)
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.ctx = nil
	k.mu.Unlock()
	k.waiting.Wait()
	k.o.Client.CloseIdleConnections()
}

// Keep takes the upstreams of a configuration. A source that is as it was goes
// on; one that is gone, or whose upstream is disabled, ends with its list; a new
// one is read at once, and an upstream whose source is another one keeps its list
// until then.
func (k *Keeper) Keep(c *poolconfig.Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	want, lists := map[string]poolconfig.Upstream{}, map[string]*List{}
	for _, u := range c.Upstreams {
		if u.Enabled {
			want[u.Name] = u
		}
	}
	for name, l := range k.loops {
		u, stays := want[name]
		if stays && l.same(u) {
			delete(want, name)
			continue
		}
		l.stop()
		delete(k.loops, name)
		if stays {
			lists[name] = l.list
		}
	}
	for name, u := range want {
		l := &loop{
			upstream: u, again: make(chan struct{}, 1), stop: func() {}, status: Status{Upstream: name}, list: lists[name],
			reader: reader{source: u.Source, dir: k.o.Dir, client: k.o.Client, list: proxylist.Options{
				Protocol: u.Protocol, Inline: u.Source.Type != poolconfig.Static, Allow: u.AllowAddresses,
			}},
		}
		k.loops[name] = l
		if k.ctx != nil {
			k.start(l)
		}
	}
}

// same reports whether an upstream's list would be read in the same way.
func (l *loop) same(u poolconfig.Upstream) bool {
	return reflect.DeepEqual(l.upstream.Source, u.Source) && l.upstream.Protocol == u.Protocol && slices.Equal(l.upstream.AllowAddresses, u.AllowAddresses)
}

// Refresh reads an upstream's source now rather than at its next time. It does not
// wait for it.
func (k *Keeper) Refresh(upstream string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.loops[upstream]; l != nil {
		select {
		case l.again <- struct{}{}:
		default: // it is about to
		}
	}
}

// List returns an upstream's last good list, nil when there is none.
func (k *Keeper) List(upstream string) *List {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.loops[upstream]; l != nil {
		return l.list
	}
	return nil
}

// Statuses returns how it goes with every source, by name.
func (k *Keeper) Statuses() []Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Status, 0, len(k.loops))
	for _, l := range k.loops {
		all = append(all, l.status)
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Upstream, b.Upstream) })
	return all
}

// start begins a loop. The lock is held.
func (k *Keeper) start(l *loop) {
	ctx, cancel := context.WithCancel(k.ctx)
	l.stop = cancel
	k.waiting.Go(func() {
		defer cancel()
		k.run(ctx, l)
	})
}

func (k *Keeper) run(ctx context.Context, l *loop) {
	for {
		k.read(ctx, l)
		var timer <-chan time.Time
		if every := l.upstream.Source.Interval; every > 0 {
			// A tenth of jitter: hosts and upstreams that were started together drift apart.
			timer = time.After(every - every/20 + rand.N(every/10+1))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer:
		case <-l.again:
		}
	}
}

func (k *Keeper) read(ctx context.Context, l *loop) {
	within, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	now := k.o.Now()
	list, err := l.reader.read(within, now)
	if ctx.Err() != nil {
		return // stopped: what it read belongs to nobody
	}
	if err == nil {
		l.reader.last = list
	}
	k.mu.Lock()
	failing := l.status.Problem != ""
	if err != nil {
		l.status.Problem = err.Error()
		if !failing {
			l.status.Since = now
		}
	} else {
		l.list = list
		l.status = Status{Upstream: l.upstream.Name, Entries: len(list.Entries), Rejected: len(list.Rejected) + list.Dropped, Read: list.Read}
	}
	status, current := l.status, k.loops[l.upstream.Name] == l
	k.mu.Unlock()
	if !current {
		return
	}
	if k.o.Report != nil && (err != nil || failing) {
		k.o.Report(status)
	}
	if err == nil && k.o.Changed != nil {
		k.o.Changed(l.upstream.Name, list)
	}
}
