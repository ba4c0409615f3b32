package cli

// ignoreBrokenPipe has nothing to do: Windows has no such signal.
func ignoreBrokenPipe() {}
