package plugins

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// keepInherited keeps descriptors that this process was started with, such as
// those of a shell or a service manager, from its plugins: Go closes what it
// opened itself, and nothing else.
func keepInherited() {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // then there is no way to know them
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
