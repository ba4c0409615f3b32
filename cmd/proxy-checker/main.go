// Command proxy-checker checks upstream proxies, and endpoints of services, for a control
// plane, from where it stands. See docs/checker.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/cmd/proxy-checker/internal/settings"
)

// Exit codes, the same for all programs.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitConfig      = 3
	exitInterrupted = 130
)

func main() {
	builtin.Dispatch() // a probe's process never gets past this line
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

func run(args, environ []string, stdout, stderr io.Writer) int {
	s, err := settings.Read(args, environ, stdout)
	var usage *settings.Usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "proxy-checker: %s\n", err)
		return exitUsage
	case err != nil:
		return badConfig(stderr, err)
	case s.Version:
		_, _ = fmt.Fprintln(stdout, "proxy-checker", version())
		return exitOK
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // it was checked
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case first := <-signals:
			cancel(interrupt{first})
		case <-ctx.Done():
			return
		}
		<-signals // a second one means it: do not drain
		os.Exit(exitInterrupted)
	}()

	c, err := newChecker(s, log, stderr)
	if err != nil {
		return badConfig(stderr, err)
	}
	if err := c.run(ctx); err != nil {
		log.Error("failed", "error", err)
		return exitFailed
	}
	var by interrupt
	if errors.As(context.Cause(ctx), &by) && by.signal == syscall.SIGINT {
		return exitInterrupted
	}
	return exitOK
}

func badConfig(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "proxy-checker: the configuration does not hold, nothing was started:\n%s\n", err)
	return exitConfig
}

type interrupt struct{ signal os.Signal }

func (i interrupt) Error() string { return i.signal.String() }

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "unknown")
	}
	return "unknown"
}
