package report

import (
	"crypto/sha256"
	"sync/atomic"
	"unsafe"

	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// event is one thing to report, as it comes from a request: fixed in size, so that
// noting it allocates nothing. It is two cache lines long, and an outcome needs
// only the first: lines that go from writer to reader are what noting costs.
type event struct {
	turn atomic.Uint64 // whose turn the slot is; see ring

	program  *decide.Program
	view     *decide.View // of a decision; nil for an outcome
	missed   uint64       // of a decision
	text     string       // code of an outcome, id of a decision
	endpoint int32
	flag     int32  // of a decision
	latency  uint32 // of an outcome, microseconds
	reason   uint8
	denied   bool
	success  bool
	unitLen  int8 // bytes in unit; -1 = unit holds a digest

	unit [maxInlineUnit]byte
}

const maxInlineUnit = 64

// setUnit keeps a unit without keeping the caller's memory: a short one as it is,
// to be hashed later, a long one hashed at once.
func (e *event) setUnit(text string) {
	if len(text) <= maxInlineUnit {
		e.unitLen = int8(copy(e.unit[:], text))
		return
	}
	var long [1024]byte // the longest unit
	sum := sha256.Sum256(long[:copy(long[:], text)])
	e.unitLen = -1
	copy(e.unit[:], sum[:])
}

// unit is a unit as an event has it, in a form that can be compared.
type unit struct {
	text [maxInlineUnit]byte // zeros after it
	len  int8
}

func (e *event) who() (u unit) {
	u.len = e.unitLen
	n := int(e.unitLen)
	if n < 0 {
		n = sha256.Size
	}
	copy(u.text[:n], e.unit[:])
	return u
}

// digest returns the SHA-256 of the unit.
func (u *unit) digest() [sha256.Size]byte {
	if u.len < 0 {
		return [sha256.Size]byte(u.text[:sha256.Size])
	}
	return sha256.Sum256(u.text[:u.len])
}

// ring is a bounded queue for many writers and one reader, without locks. The slot
// of position n has turn n when a writer may fill it, n+1 when the reader may
// empty it. A writer that finds the ring full goes on without.
type ring struct {
	_     [64]byte
	write atomic.Uint64
	_     [56]byte
	read  uint64 // the reader's alone
	_     [56]byte
	lost  atomic.Uint64 // events that found no room
	_     [56]byte
	slots []event
}

func newRing(size int) *ring {
	r := &ring{slots: make([]event, size)} // size is a power of two
	for i := range r.slots {
		r.slots[i].turn.Store(uint64(i))
	}
	return r
}

// claim returns a slot to fill and its position, or nil when the ring is full.
func (r *ring) claim() (*event, uint64) {
	for {
		at := r.write.Load()
		e := &r.slots[at&uint64(len(r.slots)-1)]
		switch turn := e.turn.Load(); {
		case turn == at:
			if r.write.CompareAndSwap(at, at+1) {
				return e, at
			}
		case turn < at:
			return nil, 0
		}
	}
}

// next returns the oldest filled slot, or nil. The reader calls release after it.
func (r *ring) next() *event {
	e := &r.slots[r.read&uint64(len(r.slots)-1)]
	if e.turn.Load() != r.read+1 {
		return nil
	}
	return e
}

func (r *ring) release(e *event) {
	e.program, e.view, e.text = nil, nil, ""
	e.turn.Store(r.read + uint64(len(r.slots)))
	r.read++
}

// Writers spread over several rings, so that two rarely meet.
const (
	ringBits = 2
	rings    = 1 << ringBits
	ringSize = 2048
)

// claim returns a slot to fill and its position, or nil when there is no room. A
// goroutine keeps to one ring, which its stack's address chooses: lines that were last
// written by another core are what noting costs. When that ring is full it tries
// another one, so that a single goroutine has more than one ring.
func (r *Reporter) claim() (*event, uint64) {
	var here byte
	i := uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e3779b97f4a7c15 >> (64 - ringBits)
	if e, at := r.rings[i].claim(); e != nil {
		return e, at
	}
	q := r.rings[i^1]
	e, at := q.claim()
	if e == nil {
		q.lost.Add(1)
	}
	return e, at
}
