package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// spawner starts children. On Linux a child is told to die with the thread that
// started it, so one locked goroutine starts all of them and lives as long as
// they do.
type spawner struct {
	environ []string
	jobs    chan func()

	mu   sync.Mutex
	live []*child
}

func newSpawner(environ []string) *spawner {
	s := &spawner{environ: environ, jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// close ends the goroutine. No child may be alive.
func (s *spawner) close() { close(s.jobs) }

// child is a process that was started. Its stdin is a pipe: a child that reads
// it sees the end of the demo, however that came.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   io.Closer
	gone  chan struct{} // closed when the process has ended
	err   error         // of its end; read after gone
}

// start runs a program. What it writes goes to log, which the child owns then.
func (s *spawner) start(name, path string, args, environ []string, log io.WriteCloser) (*child, error) {
	c := &child{name: name, log: log, gone: make(chan struct{})}
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

// pid is the process's id.
func (c *child) pid() int { return c.cmd.Process.Pid }

// ended reports whether the process has ended, and how.
func (c *child) ended() (bool, string) {
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

// kill is kill -9, of the child and what it started in its group.
func (c *child) kill() {
	if dead, _ := c.ended(); !dead {
		killGroup(c.cmd)
	}
	<-c.gone
}

// stop asks the child to end and kills it when it does not within d.
func (c *child) stop(d time.Duration) (killed bool) {
	if dead, _ := c.ended(); dead {
		return false
	}
	_ = c.stdin.Close()
	interrupt(c.cmd)
	select {
	case <-c.gone:
		return false
	case <-time.After(d):
		c.kill()
		return true
	}
}

// stopAll ends the children in the order newest first. The host is the oldest:
// the variants still find it when they deregister.
func (s *spawner) stopAll(d time.Duration) (killed []string) {
	s.mu.Lock()
	live := s.live
	s.live = nil
	s.mu.Unlock()
	for i := len(live) - 1; i >= 0; i-- {
		if live[i].stop(d) {
			killed = append(killed, live[i].name)
		}
	}
	return killed
}

// killAll is for an interrupt: nobody is asked.
func (s *spawner) killAll() {
	s.mu.Lock()
	live := s.live
	s.live = nil
	s.mu.Unlock()
	for _, c := range live {
		if dead, _ := c.ended(); !dead {
			killGroup(c.cmd)
		}
	}
	for _, c := range live {
		<-c.gone
	}
}

// tail is the end of a log, for an error message.
func tail(path string) string {
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
