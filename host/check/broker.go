package check

import (
	"crypto/sha256"
	"math/rand/v2"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
)

// A Plane has targets, in scopes that are judged by themselves: the service plane's
// are the endpoints of a service. Its functions act inside the caller's
// transaction.
type Plane interface {
	// Scopes lists the scopes whose targets are to be checked.
	Scopes(tx store.ReadTx) ([]string, error)
	// Scope says how.
	Scope(tx store.ReadTx, scope string) (Scope, error)
	// Targets lists them.
	Targets(tx store.ReadTx, scope string) ([]Target, error)
	// SetOut takes a target out of what clients see, or brings it back. A target
	// that is gone, or registered at another time, stays as it is.
	SetOut(tx store.Tx, scope, id string, registeredMs int64, out bool) error
}

// Scope says how the targets of a scope are checked.
type Scope struct {
	Version uint64 // moves whenever the probe or the targets may have changed
	Probe   string // plugin; empty = they are not checked
	Config  *structpb.Struct
}

// digest names a probe with its configuration.
func (s Scope) digest() []byte {
	config, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s.Config)
	sum := sha256.Sum256(append([]byte(s.Probe+"\x00"), config...))
	return sum[:]
}

// Target is what is checked.
type Target struct {
	ID, Address     string
	RegisteredMs    int64 // with the address, which registration of the id it is
	Out             bool
	Variant, Region string // for people
}

// Options wires a Broker.
type Options struct {
	Store      store.Store
	Planes     map[string]Plane // by name, without a slash
	Rules      Rules
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
}

// New returns a broker. Tasks appear, and verdicts are carried out, while Run runs.
func New(o Options) *Broker {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return &Broker{o: o, log: o.Logger, metrics: newMetrics(o.Registerer), synced: map[group]uint64{}, alarms: map[group]string{}}
}

// Rules are what the broker checks and judges by.
func (b *Broker) Rules() Rules { return b.o.Rules }
