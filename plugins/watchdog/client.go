package watchdog

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

const (
	// restartDelay keeps a watchdog that cannot live from being started in a
	// tight loop.
	restartDelay = 100 * time.Millisecond
	// writeTimeout is how long a watchdog may not read its pipe before it
	// counts as dead: a stopped one must not stop the host.
	writeTimeout = time.Second
	// endTimeout is how long it may take to end at Close.
	endTimeout = time.Second
)

// A Client keeps one watchdog process alive and tells it what to watch. All
// methods may be called concurrently.
type Client struct {
	exe    string
	logger hclog.Logger

	mu      sync.Mutex
	watched map[int]string
	pipe    *os.File // nil while there is no process
	cmd     *exec.Cmd
	starts  int
	closed  bool

	stop chan struct{}
	gone chan struct{} // closed when the keeper has ended
}

// Start starts exe as a watchdog and again whenever it ends, until Close.
func Start(exe string, logger hclog.Logger) (*Client, error) {
	c := &Client{
		exe: exe, logger: logger, watched: make(map[int]string),
		stop: make(chan struct{}), gone: make(chan struct{}),
	}
	if err := c.spawn(); err != nil {
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	go c.keep()
	return c, nil
}

// spawn starts a process and tells it all that is watched.
func (c *Client) spawn() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	cmd := &exec.Cmd{
		Path:        c.exe,
		Args:        []string{"dona-watchdog", Arg},
		Env:         []string{wire.CookieKey + "=" + wire.CookieValue, "GOMAXPROCS=1"},
		Dir:         "/",
		Stdin:       r,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = w.Close()
		return os.ErrClosed
	}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return err
	}
	c.cmd, c.pipe = cmd, w
	c.starts++
	var all strings.Builder
	for pgid, dir := range c.watched {
		all.WriteString(line(pgid, dir))
	}
	c.tell(all.String())
	return nil
}

// tell writes to the process; one that does not read is killed, and the keeper
// starts another. The caller holds mu.
func (c *Client) tell(text string) {
	if c.pipe == nil || text == "" {
		return
	}
	_ = c.pipe.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := c.pipe.WriteString(text); err != nil {
		_ = c.cmd.Process.Kill()
	}
}

// keep waits for the process and starts the next.
func (c *Client) keep() {
	defer close(c.gone)
	for {
		c.mu.Lock()
		cmd := c.cmd
		c.mu.Unlock()
		err := cmd.Wait()
		c.mu.Lock()
		_ = c.pipe.Close()
		c.pipe = nil
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		c.logger.Warn("watchdog ended, starting another", "error", err)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(restartDelay):
			}
			if err := c.spawn(); err == nil {
				break
			} else {
				c.logger.Error("start watchdog", "error", err)
			}
		}
	}
}

// Add has a process group killed and a directory removed when the host goes.
// Group 0 is only a directory.
func (c *Client) Add(pgid int, dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched[pgid] = dir
	c.tell(line(pgid, dir))
}

// Remove forgets a process group.
func (c *Client) Remove(pgid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watched, pgid)
	c.tell(fmt.Sprintf("-%d\n", pgid))
}

// PID returns the process id, 0 while there is none, and how often a watchdog
// was started.
func (c *Client) PID() (pid, starts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pipe == nil {
		return 0, c.starts
	}
	return c.cmd.Process.Pid, c.starts
}

// Close ends the watchdog, which then ends what is still watched. It takes at
// most about a second.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.gone
		return
	}
	c.closed = true
	close(c.stop)
	cmd := c.cmd
	if c.pipe != nil {
		_ = c.pipe.Close()
	}
	c.mu.Unlock()
	select {
	case <-c.gone:
	case <-time.After(endTimeout):
		_ = cmd.Process.Kill()
		<-c.gone
	}
}
