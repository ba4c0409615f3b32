package runner

import (
	"bytes"
	"io"
	"strconv"
	"strings"
)

const (
	// MaxLineLen is how much of one line is kept, in bytes; the rest of it is
	// read and dropped.
	MaxLineLen = 8 << 10
	// maxHandshakeLen bounds the handshake line; it carries a certificate.
	maxHandshakeLen = 16 << 10
)

// A Handshake is the line with which a plugin says where it listens.
type Handshake struct {
	Core    int    // version of go-plugin's own protocol
	Version int    // version of ours
	Network string // unix
	Address string
}

// ParseHandshake reads core|version|network|address|protocol|certificate, and
// reports whether line is one.
func ParseHandshake(line string) (*Handshake, bool) {
	parts := strings.Split(strings.TrimSpace(line), "|")
	if len(parts) < 5 || len(parts) > 8 {
		return nil, false
	}
	core, err1 := strconv.Atoi(parts[0])
	version, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil || core < 0 || version < 0 || parts[2] == "" || parts[3] == "" {
		return nil, false
	}
	return &Handshake{Core: core, Version: version, Network: parts[2], Address: parts[3]}, true
}

// readStdout passes the first handshake line on and treats all else that is
// printed, before and after, as lines of the log.
func (p *Process) readStdout() {
	if p.capture != nil {
		p.capture.read(p.stdoutR)
		return
	}
	lines(p.stdoutR, maxHandshakeLen, func(line []byte) {
		if p.Handshake() == nil {
			if shake, ok := ParseHandshake(string(line)); ok {
				p.mu.Lock()
				p.shake = shake
				p.mu.Unlock()
				// Fails when go-plugin has stopped reading, after its own timeout.
				_, _ = p.handshakeW.Write(append(line, '\n'))
				return
			}
		}
		if len(line) > MaxLineLen {
			line = line[:MaxLineLen]
		}
		p.config.Stdout(line)
	})
}

func readLines(r io.Reader, each func([]byte)) { lines(r, MaxLineLen, each) }

// lines calls each with every line of r, without its end and cut to most bytes,
// until r ends. It holds at most one line and one buffer, and never stops
// reading. line is valid during the call only.
func lines(r io.Reader, most int, each func(line []byte)) {
	buf := make([]byte, 4<<10)
	line := make([]byte, 0, 256)
	add := func(b []byte) {
		if room := most - len(line); len(b) > room {
			b = b[:room]
		}
		line = append(line, b...)
	}
	for {
		n, err := r.Read(buf)
		b := buf[:n]
		for {
			i := bytes.IndexByte(b, '\n')
			if i < 0 {
				break
			}
			add(b[:i])
			if len(line) > 0 {
				each(line)
			}
			line, b = line[:0], b[i+1:]
		}
		add(b)
		if err != nil {
			if len(line) > 0 {
				each(line)
			}
			return
		}
	}
}
