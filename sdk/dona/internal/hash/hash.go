// Package hash is FNV-1a with the finaliser of MurmurHash3: what buckets and the
// keys of a consistent hash are made of. Other languages compute the same numbers,
// so it never changes. It is pure and allocates nothing.
package hash

const (
	Offset = 14695981039346656037 // the state to begin with
	Prime  = 1099511628211
)

// Sum is 64-bit FNV-1a over text, going on from a state.
func Sum[T string | []byte](state uint64, text T) uint64 {
	for i := range len(text) {
		state = (state ^ uint64(text[i])) * Prime
	}
	return state
}

// Mix is the finaliser: each bit of x moves half the bits. FNV-1a alone tells
// similar texts badly apart.
func Mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
