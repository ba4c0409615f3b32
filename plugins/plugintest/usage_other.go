//go:build !linux

package plugintest

// usageOf cannot look at another process here.
func usageOf(int) (usage, error) {
	return usage{}, skip("files and memory of another process cannot be read on this system")
}
