//go:build unix

package plugin

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// stdoutToStderr makes descriptor 1 a second name of stderr: what C code or a
// child prints must not end up in the handshake, nor block on a pipe that the
// host reads only once. The handshake keeps the real one through os.Stdout.
func stdoutToStderr() error {
	real, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("duplicate stdout: %w", err)
	}
	if err := dupOver(2, 1); err != nil {
		_ = unix.Close(real)
		return fmt.Errorf("point stdout at stderr: %w", err)
	}
	os.Stdout = os.NewFile(uintptr(real), "handshake")
	return nil
}

// openLifeline opens the pipe that the host holds the other end of; nil when
// the host gave none.
func openLifeline() (*os.File, error) {
	text := os.Getenv(wire.LifelineEnv)
	if text == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q: allowed is a descriptor from 3 up", wire.LifelineEnv, text)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, fmt.Errorf("%s: descriptor %d is not a pipe", wire.LifelineEnv, fd)
	}
	unix.CloseOnExec(fd)
	_ = os.Unsetenv(wire.LifelineEnv)
	return os.NewFile(uintptr(fd), "lifeline"), nil
}
