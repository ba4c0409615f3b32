//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreBrokenPipe makes a write that nobody reads an error instead of the end
// of the process, so that the exit code stays ours.
func ignoreBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
