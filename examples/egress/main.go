// Command egress shows the egress plane with real processes on one machine: a host, a
// checker, two gateways and ten upstream proxies of three protocols, with curl, git,
// Node.js and Go's client sending requests all the time. A proxy, a gateway and the host
// are killed, and a proxy is extracted from under load.
//
// Every sentence of the summary is checked against what was observed: it ends with 0
// when all of it happened, 1 and the reasons when something did not, 2 for a usage error
// and 130 when it was interrupted. It leaves no process and no file behind. Clients that
// are not installed are left out, and the summary says so.
//
// The program starts itself as the upstream proxies (proxy.go); what they lead to is in
// this process (targets.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/dodona-project/dodona/host/spawn"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	// longest is when it gives up, whatever it waits for.
	longest = 85 * time.Second
	// stopIn is how long a process may take to end when it is asked to.
	stopIn = 6 * time.Second
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == proxyMode {
		if err := serveProxy(args[1], os.Stdin); err != nil {
			fmt.Fprintln(stderr, "egress: proxy:", err)
			return exitFailed
		}
		return exitOK
	}
	flags := flag.NewFlagSet("egress", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "egress shows the egress plane with real processes on this machine, in under a minute.\n\n")
		flags.PrintDefaults()
	}
	bin := flags.String("bin", "bin", "directory of dona-host, proxy-gateway and proxy-checker")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "egress: unexpected argument %q; see -help\n", flags.Arg(0))
		return exitUsage
	}
	programs, err := findPrograms(*bin)
	if err != nil {
		fmt.Fprintln(stderr, "egress:", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = show(ctx, programs, stdout)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "egress: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "egress:", err)
		return exitFailed
	}
	return exitOK
}

// programs are the files that are started.
type programs struct{ self, host, gateway, checker string }

func findPrograms(dir string) (p programs, err error) {
	if p.self, err = os.Executable(); err != nil {
		return p, fmt.Errorf("this program's own file is unknown: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return p, err
	}
	for name, to := range map[string]*string{"dona-host": &p.host, "proxy-gateway": &p.gateway, "proxy-checker": &p.checker} {
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		*to = filepath.Join(dir, name)
		if info, err := os.Stat(*to); err != nil || info.IsDir() {
			return p, fmt.Errorf("there is no program %s: \"make build\" makes it, and -bin says where it is", *to)
		}
	}
	return p, nil
}

// show plays it to its end and judges what was seen.
func show(ctx context.Context, p programs, out io.Writer) error {
	dir, err := os.MkdirTemp("", "egress-")
	if err != nil {
		return fmt.Errorf("no temporary directory: %w", err)
	}
	whole, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("it was not over after %s", longest))
	defer cancel()
	s := &stage{programs: p, dir: dir, story: newStory(out), spawn: spawn.New(spawn.Environ(os.Environ(), dir))}
	playErr := s.play(whole)
	if playErr != nil && ctx.Err() == nil && whole.Err() != nil {
		playErr = fmt.Errorf("%w: %w", context.Cause(whole), playErr)
	}
	left := s.end(ctx.Err() == nil && playErr == nil)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), os.RemoveAll(dir))
	}
	return s.judge(playErr, left)
}

// judge writes the summary and says whether all of it is true.
func (s *stage) judge(playErr error, left []string) error {
	claims := s.claims()
	if playErr != nil {
		claims = append(claims, claim{ok: false, text: playErr.Error()})
	}
	for _, l := range left {
		claims = append(claims, claim{ok: false, text: l})
	}
	if playErr == nil && len(left) == 0 {
		claims = append(claims, claim{ok: true, text: "every process has ended"})
	}
	var failed []string
	for _, c := range claims {
		if !c.ok {
			failed = append(failed, c.text)
		}
	}
	if len(failed) == 0 {
		if err := os.RemoveAll(s.dir); err != nil {
			failed = append(failed, "the temporary directory stays: "+err.Error())
			claims = append(claims, claim{ok: false, text: failed[0]})
		}
	}
	s.story.chapter("What was seen")
	for _, c := range claims {
		mark := "  ok     "
		if !c.ok {
			mark = "  FAILED "
		}
		s.story.paragraph(mark, c.text)
		for _, m := range c.more {
			s.story.paragraph("           ", m)
		}
	}
	if len(failed) > 0 {
		s.story.line("\nThe logs are in " + s.dir)
		return fmt.Errorf("it did not show what it promises: %s", strings.Join(failed, "; "))
	}
	s.story.line(fmt.Sprintf("\nIt took %.1f s. Next: docs/egress.md and docs/gateway.md.", s.story.elapsed().Seconds()))
	return nil
}
