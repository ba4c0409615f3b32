package check

import (
	"crypto/sha256"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

// A Plane has targets, in scopes: the service plane's are the endpoints of a
// service. It is a [Judged] or a [Reducer] too. Its functions act inside the caller's
// transaction.
type Plane interface {
	// Scopes lists the scopes whose targets are to be checked.
	Scopes(tx store.ReadTx) ([]string, error)
	// Scope says how.
	Scope(tx store.ReadTx, scope string) (Scope, error)
	// Targets lists them.
	Targets(tx store.ReadTx, scope string) ([]Target, error)
}

// A Judged plane has its targets judged by [Judge], a scope at a time.
type Judged interface {
	Plane
	// SetOut takes a target out of what clients see, or brings it back. A target
	// that is gone, or registered at another time, stays as it is.
	SetOut(tx store.Tx, scope, id string, registeredMs int64, out bool) error
}

// A Reducer decides by itself, at each observation, what becomes of its targets. The
// broker keeps the tasks and counts each one's run.
type Reducer interface {
	Plane
	// Prepare adds to a task that is about to be leased what its checker has to know;
	// of the proxy it has the id only.
	Prepare(tx store.ReadTx, t *Task) (Ready, error)
	// Observe takes an observation over, in the transaction that confirms its task.
	Observe(tx store.Tx, s Sighting) (Effect, error)
}

// Ready says what becomes of a task that was prepared.
type Ready int

// A task is leased, stays due because somebody else may know more, or is dropped because
// its target is gone.
const (
	Prepared Ready = iota
	Later
	Gone
)

// Sighting is an observation of a Reducer's target, as its plane gets it.
type Sighting struct {
	Task   *statev1.Check       // with the run as it was before
	Run    *statev1.CheckHealth // as it is now
	Word   Word                 // what failures count for
	Rules  Rules                // with the task's own interval
	Counts bool                 // it changes the run: it is conclusive, and nothing newer is known
	Good   bool
	AtMs   int64
	Reason string // for people

	EgressIP string
}

// Effect is what follows from an observation for the tasks.
type Effect struct {
	Wait   time.Duration // to the next check, before jitter
	Sooner []string      // tasks of the target, <scope>/<id>, that are due within Rules.Suspect
	Bad    bool          // the target is not what it was again, whatever this check says
	Well   []string      // tasks of it that are bad no longer, in lanes without a name
	Gone   bool          // the target is
}

// Scope says how the targets of a scope are checked.
type Scope struct {
	Version uint64 // moves whenever the probe or the targets may have changed
	Probe   string // plugin; empty = they are not checked
	Config  *structpb.Struct

	// Of a Reducer.
	Level controlplanev1.CheckLevel // 0 = BASIC
	Cap   string                    // scopes of this name share Most; empty = there is no bound
	Most  int                       // tasks leased at once
}

// level is the one at which the targets of the scope are checked.
func (s Scope) level() controlplanev1.CheckLevel {
	if s.Level == controlplanev1.CheckLevel_CHECK_LEVEL_UNSPECIFIED {
		return basic
	}
	return s.Level
}

// digest names a probe with its configuration, and what it asks of the target.
func (s Scope) digest(t Target) []byte {
	config, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s.Config)
	asked := append([]byte(s.Probe+"\x00"), config...)
	if t.URL != "" {
		asked = append(asked, "\x00"+t.Routing+"\x00"+t.URL...)
	}
	sum := sha256.Sum256(asked)
	return sum[:]
}

// Target is what is checked.
type Target struct {
	ID, Address     string
	RegisteredMs    int64 // with the address, which registration of the id it is
	Out             bool
	Variant, Region string // for people

	// Of a Reducer.
	Proxy        string
	Routing, URL string
	Every        time.Duration // between two checks while it is well; 0 = Rules.Interval
	Lane         string        // those of the scope with the same one are braked together
}

// Options wires a Broker.
type Options struct {
	Store      store.Store
	Planes     map[string]Plane // by name, without a slash
	Rules      Rules
	Window     int                   // tasks that a checker outside holds at most; 0 = limits.CheckWindow
	Logger     hclog.Logger          // nil = no log
	Registerer prometheus.Registerer // nil = no metrics
	Random     func() float64        // in [0, 1), for jitter; nil = drawn
}

// Broker keeps the tasks and what is known of the targets. Its methods may be called
// concurrently; several brokers may run over one store.
type Broker struct {
	o       Options
	log     hclog.Logger
	metrics *metrics

	mu     sync.Mutex
	synced map[group]uint64 // version of the scope that the tasks were made by
	alarms map[group]string // as of the last look

	tallies map[group]tallied // of Reducers' scopes
}

// New returns a broker. Tasks appear, and verdicts are carried out, while Run runs.
func New(o Options) *Broker {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Window == 0 {
		o.Window = limits.CheckWindow
	}
	return &Broker{o: o, log: o.Logger, metrics: newMetrics(o.Registerer), synced: map[group]uint64{}, alarms: map[group]string{}, tallies: map[group]tallied{}}
}

// Rules are what the broker checks and judges by.
func (b *Broker) Rules() Rules { return b.o.Rules }
