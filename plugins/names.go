package plugins

import "slices"

// Names are the plugins of a kind that are known now, sorted, whatever their state. Unlike
// List it never waits.
func (h *Host) Names(kind Kind) (names []string) {
	for _, s := range h.all() {
		if s.id.Kind == kind {
			names = append(names, s.id.Name)
		}
	}
	slices.Sort(names)
	return names
}
