// Package redis is the store that several hosts share: one Redis server, a
// master found through Sentinels, or the master of one slot of a Cluster.
//
// A union is committed by one Lua script, which checks what was read and writes
// everything or nothing. Records are cached in the process, so an Update whose
// records are cached costs one round trip. A hard one then waits, in a group with
// all others, until the configured number of replicas has it (WAIT); a View waits
// for the same, so nobody acts on what a fail-over can take back.
//
// A server is used only after its data was recognised. Each host remembers, in its
// data directory, the newest generation and revision that it has seen; a server
// that is empty or behind that is foreign: reads and writes are refused with
// [store.ErrForeign] until [Store.Adopt] says to go on from there. Identity, role
// and revision are looked at when a connection is made and every half second, and
// the generation by every script.
//
// [Open] does not need the server to be up: the store says in [store.Info] what it
// waits for, and works when it is there.
package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// Limits of one union; a larger transaction goes alone. A union of 512 records of
// 256 bytes keeps the server busy for about a millisecond.
const (
	maxUnionWrites = 512
	maxUnionBytes  = 256 << 10
)

// maxCalls is how many calls to the server one host has under way.
const maxCalls = 64

// MaxReplicas bounds Options.Replicas.
const MaxReplicas = 16

// Options of Open. What is left zero takes the default that is named.
type Options struct {
	// Target says where the server is and who we are there; see ParseURL.
	Target Target

	// Replicas is how many replicas must have a hard write before it is
	// acknowledged. It has to be the number of all there are, and the same on all
	// hosts. 0: hard writes do not wait.
	Replicas int

	// Dir is where this host remembers what it has seen of the server: its data
	// directory, for its owner only. It is made if it is not there.
	Dir string

	// Logger gets what happens to the server. nil: nothing is logged.
	Logger hclog.Logger

	// CallTimeout bounds one call to the server: 500 ms. A commit that was cut
	// off is settled within four times as long.
	CallTimeout time.Duration

	// Probe is how often the server is looked at: 500 ms. What was lost or went
	// back there is found within twice that.
	Probe time.Duration

	// Relist is how often each Watch fires without a notice: 30 s.
	Relist time.Duration
}

func (o Options) withDefaults() (Options, error) {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = 500 * time.Millisecond
	}
	if o.Probe <= 0 {
		o.Probe = 500 * time.Millisecond
	}
	if o.Replicas < 0 || o.Replicas > MaxReplicas {
		return o, fmt.Errorf("%w: store.redis.replicas is %d: allowed are 0 to %d", store.ErrRefused, o.Replicas, MaxReplicas)
	}
	if o.Dir == "" {
		return o, fmt.Errorf("%w: data_dir is empty: a host has to remember what it has seen of the server", store.ErrRefused)
	}
	return o, nil
}

// Store is an open store on a Redis server.
type Store struct {
	*store.Engine
	backend *backend
}

var _ store.Store = (*Store)(nil)

// Open opens the store. A server that is reached and must not be used as it is,
// such as one that may evict keys, is refused with [store.ErrRefused]; one that is
// away, or whose data is foreign, is waited for by the store that is returned.
func Open(ctx context.Context, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.Target.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrRefused, err)
	}
	quiet()
	file, seen, err := openMemory(o.Dir, o.Target.Cluster)
	if err != nil {
		return nil, err
	}
	b := &backend{
		o: o, log: o.Logger, keys: keysOf(o.Target.Cluster), process: newToken(), memory: file, seen: seen,
		clock: newClock(), calls: make(chan struct{}, maxCalls),
		why:     &away{err: fmt.Errorf("%w: not looked at yet", store.ErrUnavailable), since: time.Now()},
		changed: make(chan struct{}), poked: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	b.field = "c:" + b.process
	b.first = []any{nil, b.field, nil, b.keys.notice} // what is nil depends on the link and the try
	b.finder = newFinder(&b.o)
	engine := store.New(b, store.Options{MaxBatchWrites: maxUnionWrites, MaxBatchBytes: maxUnionBytes, Relist: o.Relist})
	b.engine = engine
	if err := b.look(ctx); err != nil && errors.Is(err, store.ErrRefused) {
		b.finder.close()
		file.close()
		return nil, err
	}
	b.loops.Go(b.supervise)
	return &Store{Engine: engine, backend: b}, nil
}

// Adopt says to go on from what the server holds, although it is not what this
// host knows: what the server lacks is given up. It begins a new generation, which
// the other hosts take over, and a revision above all that was seen. Who said so and
// why is kept beside it and shown in [store.Info]. Data that is not foreign is refused
// with [ErrKnown], a server that cannot be looked at with its error.
func (s *Store) Adopt(ctx context.Context, actor, reason string) error {
	return s.backend.adopt(ctx, actor, reason)
}

// ErrKnown means that the server holds what this host knows.
var ErrKnown = errors.New("store: adopt: the server holds what this host knows; there is nothing to adopt")

// quiet keeps the client library from writing to stderr: what it has to say comes
// with errors, too. The library has one log for the process.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// newToken names a process, or a generation, in 16 hex digits.
func newToken() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, and ends the program where it would
	return hex.EncodeToString(b[:])
}
