//go:build !linux

package forward

import "golang.org/x/sys/unix"

// nothingToRead reports whether a socket has neither bytes nor an end to read.
func nothingToRead(fd int) bool {
	var one [1]byte
	_, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == unix.EAGAIN
}

// hungUp reports whether the other side has closed. What it sent before hides it here.
func hungUp(fd int) bool {
	var one [1]byte
	n, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n == 0 || err != nil && err != unix.EAGAIN
}

// broken reports whether a connection is no more in either direction.
func broken(fd int) bool {
	var one [1]byte
	_, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err != nil && err != unix.EAGAIN
}

// unread is how many bytes have come that nobody has read; none where hungUp sees an end.
func unread(int) int64 { return 0 }
