// Package startup is how the programs of the egress plane, proxy-gateway and
// proxy-checker, start and end: flags that have a variable each, a file, an identity in
// files, signals, exit codes, and what an admin listener serves.
package startup

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// Exit codes, the same for all programs.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitConfig      = 3
	ExitInterrupted = 130
)

// Usage is an error of the command line.
type Usage struct{ Err error }

func (u *Usage) Error() string { return u.Err.Error() }

// Unwrap returns the reason.
func (u *Usage) Unwrap() error { return u.Err }

// Usagef makes a *Usage.
func Usagef(format string, args ...any) error { return &Usage{fmt.Errorf(format, args...)} }

// ErrVersion is what Parse returns when the version is asked for.
var ErrVersion = errors.New("the version is asked for")

// An Option is a flag with its variable, which may be none.
type Option struct {
	Flag, Variable, Help string
	Value                *string
}

// Given refuses the option when it has no value.
func (o Option) Given() error {
	if *o.Value == "" {
		return Usagef("-%s is missing: give it, or %s in the environment", o.Flag, o.Variable)
	}
	return nil
}

// A Command is a program's command line.
type Command struct {
	Name     string
	About    string // a line
	Identity string // what -auto-identity takes from the certificate
	Options  []Option
}

const identityVariable = "PROXY_POOL_AUTO_IDENTITY"

// Parse fills the options in; a flag wins over its variable. It returns whether the
// identity is to be taken from the certificate. The error is a *Usage, ErrVersion, or
// flag.ErrHelp after help was printed.
func (c Command) Parse(args, environ []string, stdout io.Writer) (autoIdentity bool, err error) {
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "")
	for _, o := range c.Options {
		flags.StringVar(o.Value, o.Flag, lookup(environ, o.Variable), "")
	}
	var wrong error
	switch v := lookup(environ, identityVariable); v {
	case "true":
		autoIdentity = true
	case "", "false":
	default:
		wrong = Usagef("%s is %.40q: allowed are true and false", identityVariable, v)
	}
	flags.BoolVar(&autoIdentity, "auto-identity", autoIdentity, "")
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help(stdout)
		return false, err
	case err != nil:
		return false, Usagef("%w; %s -help lists the flags", err, c.Name)
	case flags.NArg() > 0:
		return false, Usagef("unexpected argument %.80q; %s -help lists the flags", flags.Arg(0), c.Name)
	case *version:
		return false, ErrVersion
	}
	return autoIdentity, wrong
}

func lookup(environ []string, name string) string {
	if name == "" {
		return ""
	}
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

func (c Command) help(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%s %s\n\n", c.Name, c.About)
	line := func(name, help, variable string) {
		if variable != "" {
			help += " [" + variable + "]"
		}
		_, _ = fmt.Fprintf(w, "  -%-15s %s\n", name, help)
	}
	for _, o := range c.Options {
		line(o.Flag, o.Help, o.Variable)
	}
	line("auto-identity", "take "+c.Identity+" from the certificate; with mtls only", identityVariable)
	line("version", "print the version", "")
}

// Loopback reports whether a host is this machine under a name that needs no lookup.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// Listen refuses an address of a flag that nothing can listen on.
func Listen(flag, address string) error {
	if address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("-%s is %.80q: allowed is host:port", flag, address)
	}
	return nil
}

// LogLevel fills in the default of -log-level and refuses what is none.
func LogLevel(level *string) error {
	switch *level {
	case "":
		*level = "info"
	case "debug", "info", "warn", "error":
	default:
		return fmt.Errorf("-log-level is %.40q: allowed are debug, info, warn and error", *level)
	}
	return nil
}

// Logger logs to w from a level that LogLevel took.
func Logger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // it was checked
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}

// Refuse says why a program does not start, or prints its version, and returns the exit
// code.
func (c Command) Refuse(err error, stdout, stderr io.Writer) int {
	var usage *Usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ExitOK
	case errors.Is(err, ErrVersion):
		_, _ = fmt.Fprintln(stdout, c.Name, Version())
		return ExitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", c.Name, err)
		return ExitUsage
	}
	_, _ = fmt.Fprintf(stderr, "%s: the configuration does not hold, nothing was started:\n%s\n", c.Name, err)
	return ExitConfig
}

// Signals returns a context that SIGINT or SIGTERM ends, for a program to drain. A second
// one ends the process. stop ends the context and the watching.
func Signals() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case first := <-signals:
			cancel(interrupt{first})
		case <-ctx.Done():
			return
		}
		<-signals // a second one means it: do not drain
		os.Exit(ExitInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

type interrupt struct{ signal os.Signal }

func (i interrupt) Error() string { return i.signal.String() }

// Ended is the exit code of a program that has run under a context of Signals and ended
// with err.
func Ended(ctx context.Context, log *slog.Logger, err error) int {
	if err != nil {
		log.Error("failed", "error", err)
		return ExitFailed
	}
	var by interrupt
	if errors.As(context.Cause(ctx), &by) && by.signal == syscall.SIGINT {
		return ExitInterrupted
	}
	return ExitOK
}

// Version is the version of this program's module, as the build knows it.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "unknown")
	}
	return "unknown"
}
