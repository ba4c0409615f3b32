//go:build !race

package plugintest

import "time"

// slack is what a busy machine may add to a time that a plugin is held to.
const slack = 4 * time.Second
