//go:build race

package plugintest

import "time"

// slack is what a busy machine may add to a time that a plugin is held to, and the race
// detector, which also has a process end a second late.
const slack = 15 * time.Second
