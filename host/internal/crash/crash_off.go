//go:build !faults

package crash

// Enabled tells whether this program was built with the tag faults.
const Enabled = false

// Point does nothing in this build.
func Point(string) {}
