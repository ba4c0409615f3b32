// Package spawn starts the processes that a demonstration consists of, kills them as
// kill -9 does, and brings home what is left. They do not outlive who started them, as
// far as the platform allows: on Linux the kernel sees to it, elsewhere a child has to
// mind the end of its stdin. dona demo and examples/egress use it; the host has its
// plugins started by other rules.
package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// maxRunDir is how long a host lets the directory of its sockets be, on the
// platform that has the least room for their paths.
const maxRunDir = 49

// Environ is an environment for children: without the settings that this machine has for
// programs of this module, which are not the demonstration's, and with a temporary
// directory inside dir, so that it goes with it.
func Environ(environ []string, dir string) []string {
	var out []string
	for _, e := range environ {
		if !strings.HasPrefix(e, "DONA_") && !strings.HasPrefix(e, "PROXY_POOL_") && !strings.HasPrefix(e, "OTEL_") {
			out = append(out, e)
		}
	}
	temp := filepath.Join(dir, "t")
	runDir := fmt.Sprintf("%s/dona-%d", temp, os.Getuid())
	if len(runDir) <= maxRunDir && os.Mkdir(temp, 0o700) == nil {
		out = append(out, "TMPDIR="+temp)
	}
	return out
}

// Spawner starts children, and is safe for concurrent use. On Linux a child is told to
// die with the thread that started it, so one locked goroutine starts all of them and
// lives as long as they do.
type Spawner struct {
	environ []string
	jobs    chan func()

	mu   sync.Mutex
	live []*Child
}

// New makes a spawner whose children have this environment. Close ends it.
func New(environ []string) *Spawner {
	s := &Spawner{environ: environ, jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// Close ends the goroutine. No child may be alive.
func (s *Spawner) Close() { close(s.jobs) }

// Child is a process that was started. Its stdin is a pipe: a child that reads
// it sees the end of who started it, however that came.
type Child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   io.Closer
	gone  chan struct{} // closed when the process has ended
	err   error         // of its end; read after gone
}

// Start runs a program, with some more variables. What it writes goes to log, which the
// child owns then.
func (s *Spawner) Start(name, path string, args, environ []string, log io.WriteCloser) (*Child, error) {
	c := &Child{name: name, log: log, gone: make(chan struct{})}
	c.cmd = exec.Command(path, args...)
	c.cmd.Env = append(append([]string{}, s.environ...), environ...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	detach(c.cmd)
	stdin, err := c.cmd.StdinPipe()
	if err == nil {
		c.stdin = stdin
		done := make(chan error)
		s.jobs <- func() { done <- c.cmd.Start() }
		err = <-done
	}
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		log.Close()
		close(c.gone)
	}()
	s.mu.Lock()
	s.live = append(s.live, c)
	s.mu.Unlock()
	return c, nil
}

// Name is what it was started as.
func (c *Child) Name() string { return c.name }

// PID is the process's id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ended reports whether the process has ended, and how.
func (c *Child) Ended() (bool, string) {
	select {
	case <-c.gone:
		if c.err == nil {
			return true, "exit status 0"
		}
		return true, c.err.Error()
	default:
		return false, ""
	}
}

// Kill is kill -9, of the child and what it started in its group.
func (c *Child) Kill() {
	if dead, _ := c.Ended(); !dead {
		killGroup(c.cmd)
	}
	<-c.gone
}

// Stop asks the child to end and kills it when it does not within d.
func (c *Child) Stop(d time.Duration) (killed bool) {
	if dead, _ := c.Ended(); dead {
		return false
	}
	_ = c.stdin.Close()
	interrupt(c.cmd)
	select {
	case <-c.gone:
		return false
	case <-time.After(d):
		c.Kill()
		return true
	}
}

// StopAll ends the children in the order newest first, as Stop does, and returns the
// names of those that had to be killed. Who depends on whom was started later: it still
// finds the other when it takes its leave.
func (s *Spawner) StopAll(d time.Duration) (killed []string) {
	s.mu.Lock()
	live := s.live
	s.live = nil
	s.mu.Unlock()
	for i := len(live) - 1; i >= 0; i-- {
		if live[i].Stop(d) {
			killed = append(killed, live[i].name)
		}
	}
	return killed
}

// KillAll is for an interrupt: nobody is asked.
func (s *Spawner) KillAll() {
	s.mu.Lock()
	live := s.live
	s.live = nil
	s.mu.Unlock()
	for _, c := range live {
		if dead, _ := c.Ended(); !dead {
			killGroup(c.cmd)
		}
	}
	for _, c := range live {
		<-c.gone
	}
}

// Tail is the end of a log, for an error message.
func Tail(path string) string {
	const most = 400
	raw, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "it wrote nothing"
		}
		return err.Error()
	}
	if len(raw) > most {
		raw = raw[len(raw)-most:]
	}
	if len(raw) == 0 {
		return "it wrote nothing"
	}
	return "the end of its log: " + string(raw)
}
