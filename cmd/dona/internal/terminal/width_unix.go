//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// width asks the terminal; false = f is none.
func width(f *os.File) (int, bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
