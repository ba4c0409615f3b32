// Package bucket decides who is in a cohort, by the contract dona-bucket-v1: a
// unit (a user, a session, a tenant) and a flag key give a bucket from 0 to
// 9,999, and the unit is in the cohort of p percent iff its bucket is below
// p*100. So cohorts nest: who is in at 10 % is in at 20 %, and going back to 10 %
// brings the same people back. The SDK calls it for flags and variant weights,
// the command line to show a bucket; other languages implement the same numbers.
//
//	h = FNV-1a-64(unit || 0x00 || flag)
//	h ^= h>>33; h *= 0xff51afd7ed558ccd; h ^= h>>33; h *= 0xc4ceb9fe1a85ec53; h ^= h>>33
//	bucket = h mod 10000
//
// The finaliser is there because FNV-1a alone gives similarly named flags the
// same cohort or a disjoint one instead of independent ones. Bytes are hashed as
// they are: nothing is trimmed, folded or normalised.
//
// The package is pure and allocates nothing; all of it is safe for concurrent use.
package bucket

import (
	"errors"
	"strings"

	"github.com/dodona-project/dodona/sdk/dona/internal/hash"
)

// Buckets is the number of buckets.
const Buckets = 10_000

// PerPercent is the number of buckets in one percent.
const PerPercent = Buckets / 100

// MaxUnit is the longest unit in bytes.
const MaxUnit = 1 << 10

// ErrUnit is the answer to a unit that has no bucket: it contains a zero byte,
// which separates unit and flag, or is longer than MaxUnit.
var ErrUnit = errors.New("unit is refused: it must have no zero byte and at most 1024 bytes")

// Bucket returns the bucket of unit for flag, 0 to 9,999. The empty unit has a
// bucket too, but belongs to no cohort below 100 %; see In.
func Bucket(unit, flag string) uint32 { return Prepare(unit).Bucket(flag) }

// In reports whether unit is in the cohort of percent. An empty unit is in at
// 100 % only: anonymous traffic is not one person.
func In(unit, flag string, percent uint32) bool {
	if percent >= 100 {
		return true
	}
	return unit != "" && Bucket(unit, flag) < percent*PerPercent
}

// CheckUnit returns ErrUnit for a unit that may not be bucketed.
func CheckUnit(unit string) error {
	if len(unit) > MaxUnit || strings.IndexByte(unit, 0) >= 0 {
		return ErrUnit
	}
	return nil
}

// Unit is a unit that was hashed already. The unit comes first in the hash, so
// its share of the work is done once for all flags of a request.
type Unit struct{ state uint64 }

// Prepare hashes a unit and the separator. A following zero byte is just one more
// multiplication, as h^0 is h.
func Prepare(unit string) Unit { return Unit{hash.Sum(hash.Offset, unit) * hash.Prime} }

// Parse is CheckUnit and Prepare in one pass.
func Parse(unit string) (Unit, error) {
	if len(unit) > MaxUnit {
		return Unit{}, ErrUnit
	}
	state := uint64(hash.Offset)
	for i := range len(unit) {
		if unit[i] == 0 {
			return Unit{}, ErrUnit
		}
		state = (state ^ uint64(unit[i])) * hash.Prime
	}
	return Unit{state * hash.Prime}, nil
}

// Bucket returns the bucket of the prepared unit for flag.
func (u Unit) Bucket(flag string) uint32 { return uint32(hash.Mix(hash.Sum(u.state, flag)) % Buckets) }
