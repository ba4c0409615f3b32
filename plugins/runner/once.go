package runner

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// An Outcome is what a program did that ran to its end.
type Outcome struct {
	Stdout   []byte // at most what was allowed, and a byte more when it was over
	LastLine string // of stderr, cut to 256 bytes; not made printable
	Exit     Exit
}

// Output runs a program until it ends or ctx does, and returns what it wrote to
// stdout. What is over most bytes ends the program. Its process group is killed
// in any case, and descendants that left it as far as Process finds them.
// config.Stdout and config.Stderr are not used.
//
// The error is a *StartError, that of ctx, or that of too long an output, and
// comes with what was read until then.
func Output(ctx context.Context, config Config, most int) (Outcome, error) {
	var last lastLine
	config.Stderr = last.set
	var extra []string
	if config.SocketDir != "" {
		extra = []string{socketDirEnv + "=" + config.SocketDir} // marks what it starts
	}
	p := New(config, extra)
	out := &capture{most: most, full: make(chan struct{})}
	p.capture = out
	if err := p.Start(ctx); err != nil {
		return Outcome{}, err
	}
	var err error
	select {
	case <-p.Done():
	case <-ctx.Done():
		err = ctx.Err()
	case <-out.full:
	}
	kill, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = p.Kill(kill)
	text := out.bytes()
	if len(text) > most {
		err = fmt.Errorf("it writes more than %d bytes to stdout", most)
	}
	return Outcome{Stdout: text, LastLine: last.get(), Exit: p.Exit()}, err
}

// capture keeps the first bytes of a stream, one more than allowed so that too
// much is seen.
type capture struct {
	most int
	full chan struct{} // closed when there is too much

	mu   sync.Mutex
	text []byte
}

// read takes all of r, to its end, so that the writer never blocks.
func (c *capture) read(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		c.mu.Lock()
		had := len(c.text)
		c.text = append(c.text, buf[:min(n, c.most+1-had)]...)
		if had <= c.most && len(c.text) > c.most {
			close(c.full)
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *capture) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text
}

// lastLine remembers the last line that says something.
type lastLine struct {
	mu   sync.Mutex
	text string
}

func (l *lastLine) set(line []byte) {
	if text := strings.TrimSpace(string(line[:min(len(line), 256)])); text != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = text
	}
}

func (l *lastLine) get() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}
