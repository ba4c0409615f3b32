//go:build faults

package crash

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Enabled tells whether this program was built with the tag faults.
const Enabled = true

var armed = sync.OnceValue(func() *fuse {
	name, count, found := strings.Cut(os.Getenv("DONA_CRASH_POINT"), ":")
	count, stops := strings.CutSuffix(count, ":stop")
	n := 1
	if found {
		var err error
		if n, err = strconv.Atoi(count); err != nil || n < 1 {
			panic("crash: DONA_CRASH_POINT=" + os.Getenv("DONA_CRASH_POINT") + ": the number of the hit is 1 or more")
		}
	}
	return &fuse{name: name, left: n, stops: stops}
})

type fuse struct {
	name  string
	stops bool // instead of dying
	mu    sync.Mutex
	left  int
}

// Point kills the process when it is the armed point and this is the hit that
// was asked for. It does not return then; from a stop it does, once the process is
// continued.
func Point(name string) {
	f := armed()
	if f.name != name {
		return
	}
	f.mu.Lock()
	f.left--
	blow := f.left == 0
	f.mu.Unlock()
	if blow && f.stops {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	}
	if blow {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
