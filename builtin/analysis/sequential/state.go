package sequential

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// counts is how many requests there were and how many of them failed.
type counts struct {
	Requests uint64 `json:"requests"`
	Errors   uint64 `json:"errors"`
}

// rate is the share of errors, 0 to 1; 0 without requests.
func (c counts) rate() float64 {
	if c.Requests == 0 {
		return 0
	}
	return float64(c.Errors) / float64(c.Requests)
}

func (c counts) plus(d counts) counts { return counts{c.Requests + d.Requests, c.Errors + d.Errors} }

// sane reports whether counts may be what a host counted.
func (c counts) sane() bool { return c.Errors <= c.Requests && c.Requests <= maxRequests }

// state is what is kept from one look to the next: the host counts a step, the
// test goes over the whole rollout.
type state struct {
	rollout [8]byte // of the SHA-256 of its id
	step    uint32
	began   int64    // unix ms of the step
	last    counts   // of this step, at the newest look
	earlier []counts // of the steps before, each at its last look
}

// since is the counts from each known step on: the first is all of them, the
// last is this step's own.
func (s state) since() []counts {
	all := make([]counts, len(s.earlier)+1)
	all[len(s.earlier)] = s.last
	for i := len(s.earlier) - 1; i >= 0; i-- {
		all[i] = all[i+1].plus(s.earlier[i])
	}
	return all
}

// stateVersion is the first byte of a state. Another one is not read: a host and
// its built-ins are of one version, and a state lives no longer than the host.
const stateVersion = 1

const (
	// maxEarlier is how many steps of a rollout can have gone before another.
	maxEarlier = 49
	// maxRequests of a step is beyond what anybody counts; sums of it fit.
	maxRequests = 1 << 53
	// A state is version 1, rollout 8, step 4, began 8, last 16, each earlier step
	// 16, and the CRC-32C of all that, 4. Numbers are big-endian.
	leastState = 1 + 8 + 4 + 8 + 16 + 4
	countsLen  = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s state) encode() []byte {
	b := make([]byte, 0, leastState+countsLen*len(s.earlier))
	b = append(b, stateVersion)
	b = append(b, s.rollout[:]...)
	b = binary.BigEndian.AppendUint32(b, s.step)
	b = binary.BigEndian.AppendUint64(b, uint64(s.began))
	for _, c := range append([]counts{s.last}, s.earlier...) {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, c.Requests), c.Errors)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeState reads a state, and refuses all but what encode writes.
func decodeState(b []byte) (s state, err error) {
	steps := (len(b) - leastState) / countsLen
	end := len(b) - 4
	switch {
	case len(b) != leastState+countsLen*steps || steps < 0 || steps > maxEarlier:
		return s, fmt.Errorf("it has %d bytes", len(b))
	case b[0] != stateVersion:
		return s, fmt.Errorf("it is of version %d instead of %d", b[0], stateVersion)
	case binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli):
		return s, errors.New("its checksum is wrong")
	}
	copy(s.rollout[:], b[1:])
	s.step = binary.BigEndian.Uint32(b[9:])
	s.began = int64(binary.BigEndian.Uint64(b[13:]))
	for rest := b[21:end]; len(rest) > 0; rest = rest[countsLen:] {
		c := counts{binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])}
		if !c.sane() {
			return state{}, fmt.Errorf("it has %d errors in %d requests", c.Errors, c.Requests)
		}
		s.earlier = append(s.earlier, c)
	}
	s.last, s.earlier = s.earlier[0], s.earlier[1:]
	return s, nil
}

// advance takes the step's newest counts in. What was handed over must fit what
// is asked; if it does not, the error says why, and the state returned begins
// anew with this step.
func advance(req *pluginv1.EvaluateRequest, now counts) (state, error) {
	id := sha256.Sum256([]byte(req.GetRolloutId()))
	anew := state{rollout: [8]byte(id[:8]), step: req.GetStepIndex(), last: now}
	if at := req.GetStepStartedAt(); at != nil {
		anew.began = at.AsTime().UnixMilli()
	}
	if len(req.GetState()) == 0 {
		return anew, nil
	}
	s, err := decodeState(req.GetState())
	switch {
	case err != nil:
		return anew, err
	case s.rollout != anew.rollout:
		return anew, errors.New("it is of another rollout")
	case s.step > anew.step, s.step == anew.step && s.began != anew.began:
		return anew, errors.New("it is of another step than the rollout ever was in")
	}
	next := anew
	next.earlier = s.earlier
	if s.step < anew.step {
		next.earlier = append(next.earlier, s.last)
	}
	if len(next.earlier) > maxEarlier {
		return anew, errors.New("it knows more steps than a rollout has")
	}
	return next, nil
}
