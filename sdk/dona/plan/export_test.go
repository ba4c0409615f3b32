package plan

// SharePlaces reports whether two pickers use the same table.
func SharePlaces(a, b *Picker) bool { return a.ring.places == b.ring.places }

// KnownPlaces is how many tables are in use.
func KnownPlaces() int {
	known.Lock()
	defer known.Unlock()
	return len(known.places)
}
