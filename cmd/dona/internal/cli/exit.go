package cli

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes, the same for all programs of the project.
const (
	ExitOK          = 0
	ExitFailed      = 1   // the host said no, was away, or the output could not be written
	ExitUsage       = 2   // the command line, or what it asks for, is wrong in itself
	ExitConfig      = 3   // an environment variable or a file is wrong
	ExitRefused     = 4   // refused for safety: a data directory must not be used as it is
	ExitUnverified  = 5   // what was to be verified does not hold
	ExitInterrupted = 130 // by a signal
)

const (
	kindPipe = "PIPE"
	kindTold = "TOLD" // stdout holds all there is to say, as JSON
)

// failure is an error that knows its exit code. msg is one line for people and
// says what to do.
type failure struct {
	code int
	kind string // for scripts: a gRPC code's name, USAGE, CONFIG, AWAY, ENDED, OUTPUT, INTERRUPTED
	msg  string

	seq   uint64 // of what was not verified: the first bad entry; 0 = none
	cause string // and what is wrong
}

func (f *failure) Error() string { return f.msg }

func usage(format string, args ...any) error {
	return &failure{code: ExitUsage, kind: "USAGE", msg: fmt.Sprintf(format, args...)}
}

func configuration(format string, args ...any) error {
	return &failure{code: ExitConfig, kind: "CONFIG", msg: fmt.Sprintf(format, args...)}
}

func failed(kind, format string, args ...any) error {
	return &failure{code: ExitFailed, kind: kind, msg: fmt.Sprintf(format, args...)}
}

// refused turns the host's answer into a failure. What is wrong in the request
// itself is the command line's fault, the rest a failed operation.
func (c *connection) refused(operation string, err error) error {
	if c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	st := status.Convert(err)
	msg := operation + ": " + st.Message()
	switch st.Code() {
	case codes.InvalidArgument:
		return &failure{code: ExitUsage, kind: "INVALID_ARGUMENT", msg: msg}
	case codes.DeadlineExceeded:
		return failed("DEADLINE_EXCEEDED", "%s: no answer from %s in time; look at the host, or wait longer with --timeout", operation, c.target)
	case codes.Unavailable:
		if why := c.away(); why != "" {
			return failed("AWAY", "%s: %s", operation, why)
		}
		return failed("UNAVAILABLE", "%s; try again when the host is ready", msg)
	case codes.Unimplemented:
		return failed("UNIMPLEMENTED", "%s: the host at %s does not offer this; is it older than this program?", operation, c.target)
	}
	return failed(codeName(st.Code()), "%s", msg)
}

// codeName writes FailedPrecondition as FAILED_PRECONDITION.
func codeName(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// writing turns the error of a write to stdout into a failure.
func writing(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE):
		return failed(kindPipe, "nobody reads the output")
	}
	return failed("OUTPUT", "the output cannot be written: %v", err)
}
