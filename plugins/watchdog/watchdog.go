// Package watchdog makes sure that nothing of a host outlives it, even when the
// host is killed with SIGKILL: one small process in a session of its own learns
// over a pipe which process groups and directories there are. At end of file it
// kills the groups and removes the directories.
//
// Package plugins starts it with [Start] and tells it of every plugin; the
// program's main runs [Main] when it was started as one (see plugins.Dispatch).
package watchdog

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/runner"
)

// Arg is the hidden first argument with which a program becomes a watchdog.
const Arg = "__dona-watchdog"

// Main is the watchdog process: it watches what its stdin says.
func Main() {
	// Whoever ends the host by a signal to all its processes ends the host
	// first; this one goes last, by itself.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	Watch(os.Stdin)
}

// Watch reads what to watch from in until its end and then ends what is left.
//
// Lines are "+<pgid> <dir>" and "-<pgid>"; a dir may be empty. Group 0 is no
// group, only a directory. Other lines are ignored.
func Watch(in io.Reader) {
	watched := make(map[int]string)
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<10), 64<<10)
	for lines.Scan() {
		apply(watched, lines.Text())
	}
	end(watched)
}

func apply(watched map[int]string, line string) {
	if len(line) < 2 {
		return
	}
	number, dir, _ := strings.Cut(line[1:], " ")
	pgid, err := strconv.Atoi(number)
	if err != nil || pgid < 0 || pgid == 1 || (dir != "" && !filepath.IsAbs(dir)) {
		return
	}
	switch line[0] {
	case '+':
		watched[pgid] = dir
	case '-':
		delete(watched, pgid)
	}
}

// end kills all groups first, so that nobody makes new files in a directory
// that is being removed, then removes; what a dying process still wrote is
// caught by trying again.
func end(watched map[int]string) {
	for pgid := range watched {
		if pgid > 1 {
			_ = syscall.Kill(-pgid, syscall.SIGKILL)
		}
	}
	for _, dir := range watched {
		runner.KillStraysBelow(dir)
	}
	for try := 0; try < 5; try++ {
		left := false
		for _, dir := range watched {
			if dir != "" && image.Remove(dir) != nil {
				left = true
			}
		}
		if !left {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func line(pgid int, dir string) string { return fmt.Sprintf("+%d %s\n", pgid, dir) }
