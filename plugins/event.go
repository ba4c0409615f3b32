package plugins

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// EventKind is what happened to a plugin.
type EventKind string

// The events, named as the audit log names them.
const (
	EventStart      EventKind = "plugin.start"
	EventCrash      EventKind = "plugin.crash"
	EventQuarantine EventKind = "plugin.quarantine"
	EventReload     EventKind = "plugin.reload"
	EventReject     EventKind = "plugin.reject"
)

// An Event is a fact about a plugin that belongs into the audit log. It has a
// digest of the plugin's last words, never the words: those are in the log.
type Event struct {
	Kind         EventKind
	Time         time.Time
	Plugin       ID
	Version      string
	Digest       string // sha256:<hex> of the file that ran
	Generation   uint64
	Reason       string
	Exit         string // such as "signal: killed"; empty for a start
	Uptime       time.Duration
	StderrSHA256 string // hex, of the last lines of stderr
}

// maxEvents is how many events wait for a slow OnEvent. Restarts are budgeted,
// so that more means that it has been stuck for minutes.
const maxEvents = 1024

// events hands events to OnEvent, in order, without anybody waiting for it.
type events struct {
	logger hclog.Logger
	on     func(Event)

	mu      sync.Mutex
	waiting []Event
	closed  bool
	more    chan struct{}
	done    chan struct{}
}

func newEvents(logger hclog.Logger, on func(Event)) *events {
	e := &events{logger: logger, on: on, more: make(chan struct{}, 1), done: make(chan struct{})}
	go e.run()
	return e
}

func (e *events) emit(ev Event) {
	ev.Time = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if len(e.waiting) >= maxEvents {
		e.logger.Error("plugin event dropped: its consumer does not keep up", "event", string(ev.Kind), "plugin", ev.Plugin.String())
		return
	}
	e.waiting = append(e.waiting, ev)
	e.wake()
}

func (e *events) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *events) run() {
	defer close(e.done)
	for {
		e.mu.Lock()
		batch := e.waiting
		e.waiting = nil
		closed := e.closed
		e.mu.Unlock()
		for _, ev := range batch {
			e.on(ev)
		}
		if len(batch) > 0 {
			continue
		}
		if closed {
			return
		}
		<-e.more
	}
}

// close delivers what waits, for at most d.
func (e *events) close(d time.Duration) {
	e.mu.Lock()
	e.closed = true
	e.wake()
	e.mu.Unlock()
	select {
	case <-e.done:
	case <-time.After(d):
	}
}
