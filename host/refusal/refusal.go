// Package refusal is the one error type with which the host's packages say no
// to a request: what kind of no, which field, what is allowed and what to do.
// host/api turns it into a transport status; no other package knows transport
// codes. An error that is not a refusal is a fault of the host.
package refusal

import (
	"errors"
	"fmt"
)

// Kind is the kind of no. Where several hold, the earlier one is answered.
type Kind int

const (
	Invalid       Kind = iota + 1 // the request alone is wrong
	Denied                        // the caller may not; does not say whether the object exists
	NotFound                      // what it names does not exist
	Precondition                  // the state does not allow it now
	AlreadyExists                 // the same name with other content
	Aborted                       // overtaken: an older sequence, a replaced stream
	Exhausted                     // a limit is reached
	Unavailable                   // not now; Reason says why, a retry may help
)

// Error is a refusal. Its text is shown to the caller: it names the field and
// never echoes more than 64 bytes of input (see limits.Quote).
type Error struct {
	Kind   Kind
	Field  string // path in the request, such as "analysis[0].max_value"; may be empty
	Reason string // a word for programs, such as "audit"; may be empty
	Text   string
	Cause  error // for the log, not for the caller; may be nil
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return e.Field + " " + e.Text
}

func (e *Error) Unwrap() error { return e.Cause }

// Field refuses a request for what one of its fields holds: text continues the
// field's name, as in "is empty: allowed are …".
func Field(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Text: fmt.Sprintf(format, args...)}
}

// New refuses with kind.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// Check turns the answer of a limits check into a refusal of field; nil stays
// nil.
func Check(field string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: Invalid, Field: field, Text: err.Error()}
}

// Is reports whether err is, or wraps, a refusal of kind.
func Is(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}
