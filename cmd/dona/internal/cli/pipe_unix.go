//go:build unix

package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// ignoreBrokenPipe makes a write that nobody reads an error instead of the end
// of the process, so that the exit code stays ours.
func ignoreBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// readerGone waits until nobody reads stdout any more, and reports that, or until
// ctx ends. What writes rarely would learn of it late by writing.
func readerGone(ctx context.Context) bool {
	const look = 200 // milliseconds between two looks at ctx
	for ctx.Err() == nil {
		stdout := []unix.PollFd{{Fd: int32(syscall.Stdout)}} // errors are always polled for
		if _, err := unix.Poll(stdout, look); err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if stdout[0].Revents != 0 {
			return stdout[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
	}
	return false
}
