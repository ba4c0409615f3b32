package snapshot

import (
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
)

// MaxFrame is the most bytes a frame may have; clients are told to accept as
// much. Planes keep their snapshots well below it when they are written.
const MaxFrame = 8 << 20

// Built is one version of a snapshot as the plane built it. It is immutable.
type Built struct {
	Version   uint64
	Checksum  []byte
	Full      proto.Message // the frame that carries the whole snapshot
	Unchanged proto.Message // the frame that says: you hold this version already
	Carry     any           // whatever helps the plane's next Build or Delta, such as what it decoded
	// Weight is about how many bytes it takes to keep this version beside the one
	// that follows. It bounds how many are kept to make deltas from.
	Weight int
	// Damage says of each part of it that could not be read: it is as it was last, or
	// left out. Alarms names them.
	Damage []string
}

// A Frame is one message to a watcher: shared by all of them and immutable.
type Frame struct {
	Version   uint64
	Unchanged bool   // the watcher holds this version: the frame carries no content
	Base      uint64 // not 0: a delta, for a watcher that holds this version
	data      []byte
}

// EncodedMessage returns the frame's bytes on the wire. They must not be changed.
func (f *Frame) EncodedMessage() []byte { return f.data }

// published is what a feed offers: a version, and a channel that is closed when a
// newer one takes its place. There is one for all watchers of a name, and nothing
// for each of them.
type published struct {
	built      *Built
	full       *Frame
	superseded chan struct{}
	gap        uint64                 // the newest gap that was known when it was built
	bases      atomic.Pointer[[]base] // what deltas to this version may start from

	once         sync.Once
	unchanged    *Frame
	unchangedErr error
}

func publish(b *Built, bases []base, m *metrics) (*published, error) {
	data, err := encode(b.Full, m.fullEncodings)
	if err != nil {
		return nil, fmt.Errorf("version %d: %w", b.Version, err)
	}
	p := &published{
		built: b, full: &Frame{Version: b.Version, data: data}, superseded: make(chan struct{}),
	}
	p.bases.Store(&bases)
	return p, nil
}

// same returns the frame for a watcher that holds this version.
func (p *published) same(m *metrics) (*Frame, error) {
	p.once.Do(func() {
		data, err := encode(p.built.Unchanged, m.unchangedEncodings)
		p.unchanged, p.unchangedErr = &Frame{Version: p.built.Version, Unchanged: true, data: data}, err
	})
	return p.unchanged, p.unchangedErr
}

func encode(msg proto.Message, count interface{ Inc() }) ([]byte, error) {
	if msg == nil {
		return nil, fmt.Errorf("the plane built no frame")
	}
	count.Inc()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(data) > MaxFrame {
		return nil, fmt.Errorf("the frame has %d bytes: allowed are at most %d", len(data), MaxFrame)
	}
	return data, nil
}
