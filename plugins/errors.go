package plugins

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

var (
	// ErrUnknown means that there is no such plugin.
	ErrUnknown = errors.New("no such plugin")
	// ErrAway means that the plugin takes no calls just now: it is starting,
	// waits for its next start, is quarantined, or the host is stopping.
	ErrAway = errors.New("plugin is away")
	// ErrExhausted means that the plugin has as many calls in flight and waiting
	// as it may have.
	ErrExhausted = errors.New("plugin is busy")
	// ErrDeadline means that the plugin did not answer in time.
	ErrDeadline = errors.New("plugin did not answer in time")
)

// A Violation is one thing wrong with a configuration; Path is a JSON Pointer.
type Violation = schema.Violation

// A ConfigError refuses a configuration.
type ConfigError struct {
	Plugin     ID
	Violations []Violation // at least one
}

func (e *ConfigError) Error() string {
	words := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		words[i] = v.String()
	}
	return fmt.Sprintf("config of plugin %s: %s", e.Plugin, strings.Join(words, "; "))
}

// An AnswerError refuses what a plugin answered. Reason is one word of a fixed
// set per kind, and the label under which it is counted; Detail says more.
type AnswerError struct {
	Plugin ID
	Reason string
	Detail string
}

func (e *AnswerError) Error() string {
	s := fmt.Sprintf("answer of plugin %s refused: %s", e.Plugin, e.Reason)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// A CallError is a failure of the plugin or of the way to it: its own error, a
// panic, its death during the call.
type CallError struct {
	Plugin ID
	Method string
	Text   string // what the plugin said, or what happened to it
	Cause  error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s of plugin %s: %s", e.Method, e.Plugin, e.Text)
}

func (e *CallError) Unwrap() error { return e.Cause }

// A permanentError is a failed start that a retry cannot cure.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func permanent(format string, args ...any) error {
	return &permanentError{err: fmt.Errorf(format, args...)}
}
