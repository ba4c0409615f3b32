package bucket

import "github.com/dodona-project/dodona/sdk/dona/internal/hash"

// Table holds keys whose share of the hash was done in advance, so that each
// bucket of a request costs the same few steps however long its key is.
//
// One step of FNV-1a is h' = (h ^ b) * p. A byte changes only the low byte l of h,
// so h ^ b is h plus a number that depends on l and b alone, and the low byte of h'
// depends on nothing but l and b either. Over a whole key of n bytes that makes
//
//	h' = h * p^n + rest(l, key)
//
// with 256 possible rests, found by hashing the key from each low byte.
type Table struct {
	powers []uint64 // p^len by key
	rests  []uint64 // by low byte, then by key: one request reads one row
}

// NewTable prepares keys; it takes 2 KiB and 256 hashes for each of them.
func NewTable(keys []string) *Table {
	t := &Table{powers: make([]uint64, len(keys)), rests: make([]uint64, 256*len(keys))}
	for i, key := range keys {
		power := uint64(1)
		for range len(key) {
			power *= hash.Prime
		}
		t.powers[i] = power
		for low := range uint64(256) {
			t.rests[int(low)*len(keys)+i] = hash.Sum(low, key) - low*power
		}
	}
	return t
}

// Row is what a Table has for one unit.
type Row struct {
	state         uint64
	powers, rests []uint64
}

// Row returns the row of a unit.
func (t *Table) Row(u Unit) Row {
	n := len(t.powers)
	at := int(u.state&0xff) * n
	return Row{u.state, t.powers, t.rests[at : at+n]}
}

// Bucket returns the bucket of the unit for the i-th key of the table: the same
// number as Unit.Bucket of that key.
func (r *Row) Bucket(i int) uint32 {
	return uint32(hash.Mix(r.state*r.powers[i]+r.rests[i]) % Buckets)
}

// First returns the first key from the one of number from on whose bucket is below its
// limit, or the number after the last that has a limit. limits[0] is that of key from.
func (r *Row) First(from int, limits []uint32) int {
	powers, rests := r.powers[from:][:len(limits)], r.rests[from:][:len(limits)]
	for i, limit := range limits {
		if hash.Mix(r.state*powers[i]+rests[i])%Buckets < uint64(limit) {
			return from + i
		}
	}
	return from + len(limits)
}

// Unit returns the unit of the row, for keys that are not in the table.
func (r *Row) Unit() Unit { return Unit{r.state} }
