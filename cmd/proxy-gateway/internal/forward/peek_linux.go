package forward

import (
	"math"

	"golang.org/x/sys/unix"
)

// nothingToRead reports whether a socket has neither bytes nor an end to read.
func nothingToRead(fd int) bool {
	var one [1]byte
	_, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == unix.EAGAIN
}

// hungUp reports whether the other side has closed, whatever it sent before.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// broken reports whether a connection is no more in either direction.
func broken(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 // errors and the end of both directions come without being asked for
}

// unread is how many bytes have come that nobody has read.
func unread(fd int) int64 {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return math.MaxInt64 // nobody knows
	}
	return int64(n)
}
