package redis

import (
	"fmt"

	"github.com/dodona-project/dodona/host/store"
)

// Format is the number of the layout that this program writes, see
// docs/formats.md.
const Format = 1

// jump is what a new master or generation adds to the revision: more than any
// revisions that were given out and lost.
const jump = 1 << 32

// seen is the newest that a host has seen of a server. Zero: nothing yet.
type seen struct {
	Generation uint64 `json:"generation"`
	ID         string `json:"id"` // of the generation
	Revision   uint64 `json:"revision"`
	Hard       uint64 `json:"hard"`    // newest hard revision that was confirmed
	Durable    bool   `json:"durable"` // the server lost nothing at a crash, soft writes neither
}

// found is what a server holds.
type found struct {
	Exists     bool // the generation record is there
	Remains    bool // something of ours is there without it
	Format     uint64
	Generation uint64
	ID         string
	Master     string // run id of the server that the generation was last taken over on
	Revision   uint64
	Hard       uint64 // newest hard revision
	Confirmed  uint64 // newest hard revision that is known to be confirmed
	Clock      uint64 // the store's clock, µs
	Kept       uint64 // see store.Info
	First      uint64
	Adoption   *store.Adoption // that began the generation; nil = the first one

	// Missed is what a host that found the server foreign had seen of it: hosts that
	// have seen nothing judge by it. Zero: none has.
	Missed seen

	Damaged   string // what is wrong with the generation record
	raw       string // its state as it is there
	rawMissed string // and Missed
}

// verdict is what to do with a server.
type verdict int

const (
	join     verdict = iota // go on
	create                  // make the first generation
	takeOver                // the data is known, the server is new: jump, then go on
	foreign                 // refuse until somebody adopts it
)

// judge compares what a server with this run id holds with what this host has
// seen. The text says why it is foreign; an error, why it cannot be read at all.
//
// On the server that it was seen on, nothing may be missing. A new master may lack
// soft writes, which a fail-over loses, but no hard write that was confirmed.
//
// A host that has seen nothing judges by what another one has missed here.
func judge(s seen, f found, runID string) (verdict, string, error) {
	who := "this host"
	if s == (seen{}) && f.Missed != s {
		s, who = f.Missed, "another host"
	}
	none := s == seen{}
	known := fmt.Sprintf("%s has seen generation %d up to revision %d", who, s.Generation, s.Revision)
	switch {
	case f.Damaged != "":
		return foreign, f.Damaged, nil
	case !f.Exists && f.Remains:
		return foreign, "its generation record is missing, but not all of its data", nil
	case !f.Exists && none:
		return create, "", nil
	case !f.Exists:
		return foreign, "it is empty: " + known, nil
	case f.Format > Format:
		return foreign, "", fmt.Errorf("%w: the server's data has format %d, this program knows up to %d: use a newer program", store.ErrRefused, f.Format, Format)
	case f.Format == 0 || f.Generation == 0 || f.ID == "":
		return foreign, "its generation record is damaged", nil
	case none:
		// Nothing to compare with.
	case f.Generation < s.Generation:
		return foreign, fmt.Sprintf("it is of generation %d at revision %d: %s", f.Generation, f.Revision, known), nil
	case f.Generation == s.Generation && f.ID != s.ID:
		return foreign, fmt.Sprintf("its generation %d has id %s, %s knows %s", f.Generation, f.ID, who, s.ID), nil
	case f.Generation > s.Generation && f.Revision <= s.Revision:
		return foreign, fmt.Sprintf("it is of generation %d, but at revision %d only: %s", f.Generation, f.Revision, known), nil
	case f.Generation > s.Generation:
		// Somebody adopted it.
	case f.Hard < s.Hard:
		return foreign, fmt.Sprintf("its newest hard revision is %d, %s has seen %d confirmed: it was rewound", f.Hard, who, s.Hard), nil
	case f.Revision < s.Revision && (f.Master == runID || s.Durable):
		return foreign, fmt.Sprintf("it is at revision %d: %s; it was rewound", f.Revision, known), nil
	}
	if f.Master != runID {
		return takeOver, "", nil
	}
	return join, "", nil
}

// misses reports whether a host that has seen s knows for certain that what f lacks
// was there: the server is empty, or goes on from an older state of the same
// generation. Of another history it knows nothing: it may itself be at the wrong
// server.
func (s seen) misses(f found) bool {
	if s == (seen{}) || f.Exists && f.ID != s.ID {
		return false
	}
	m := f.Missed
	return f.Damaged == "" && (m.Generation < s.Generation || m.ID == s.ID && (m.Revision < s.Revision || m.Hard < s.Hard))
}

// newest is s, or what another host has missed where s is nothing.
func (s seen) newest(f found) seen {
	if s == (seen{}) {
		return f.Missed
	}
	return s
}

// observe is what a host has seen after f.
func (s seen) observe(f found, durable bool) seen {
	if s.Generation != f.Generation || s.ID != f.ID {
		s = seen{Generation: f.Generation, ID: f.ID}
	}
	s.Revision = max(s.Revision, f.Revision)
	s.Hard = max(s.Hard, f.Confirmed)
	s.Durable = durable
	return s
}
