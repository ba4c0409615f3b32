package plan

import "math/rand/v2"

// aliasEntry is one column of an alias table: a draw that lands in the column is
// the column's own slot below the threshold, else the other one.
type aliasEntry struct {
	threshold uint32
	other     int32
}

// newAlias builds the table with which one random number draws a slot in
// proportion to its weight, in constant time. It is nil when all weights are equal:
// then a column is its own slot, and a draw reads no table.
func newAlias(slots []slot) []aliasEntry {
	if equal(slots) {
		return nil
	}
	n := len(slots)
	table := make([]aliasEntry, n)
	var total float64
	for _, s := range slots {
		total += float64(s.weight)
	}
	fill := make([]float64, n) // in columns; 1 is full
	var under, over []int32
	for i, s := range slots {
		fill[i] = float64(s.weight) * float64(n) / total
		table[i] = aliasEntry{threshold: 1<<32 - 1, other: int32(i)}
		if fill[i] < 1 {
			under = append(under, int32(i))
		} else {
			over = append(over, int32(i))
		}
	}
	for len(under) > 0 && len(over) > 0 {
		small, big := under[len(under)-1], over[len(over)-1]
		under = under[:len(under)-1]
		table[small] = aliasEntry{threshold: uint32(fill[small] * (1 << 32)), other: big}
		if fill[big] -= 1 - fill[small]; fill[big] < 1 {
			over = over[:len(over)-1]
			under = append(under, big)
		}
	}
	return table
}

func equal(slots []slot) bool {
	for i := range slots {
		if slots[i].weight != slots[0].weight {
			return false
		}
	}
	return true
}

// draw returns a slot in proportion to weight from 32 random bits: their upper
// part chooses the column, what is left the side.
func (k *Picker) draw(random uint32) int {
	wide := uint64(random) * uint64(len(k.slots))
	column := int(wide >> 32)
	if k.alias == nil {
		return column
	}
	if e := k.alias[column]; uint32(wide) >= e.threshold {
		return int(e.other)
	}
	return column
}

// drawUntried is draw among what was not tried, by going through all of it; -1
// when there is nothing.
func (k *Picker) drawUntried(tried []string) int {
	var total uint64
	for i := range k.slots {
		if !contains(tried, k.ids[i]) {
			total += k.slots[i].weight
		}
	}
	if total == 0 {
		return -1
	}
	place := rand.Uint64N(total)
	for i := range k.slots {
		switch s := &k.slots[i]; {
		case contains(tried, k.ids[i]):
		case place < s.weight:
			return i
		default:
			place -= s.weight
		}
	}
	return -1 // unreachable: the last end is the total
}
