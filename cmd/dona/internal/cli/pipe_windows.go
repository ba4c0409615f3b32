package cli

import "context"

// ignoreBrokenPipe has nothing to do: Windows has no such signal.
func ignoreBrokenPipe() {}

// readerGone finds out by writing only.
func readerGone(context.Context) bool { return false }
