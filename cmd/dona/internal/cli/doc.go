// Package cli is the operator's command line: it reads arguments, calls one host
// over gRPC and writes what came back, for people or, with --json, as protojson
// with the names of the .proto files. Main is called by the program's main
// function and by nothing else; tests run the whole program through it.
//
// What it promises to scripts: results go to stdout and everything else to
// stderr; an error is one line that says what to do; with --json stdout holds
// valid JSON also then, an object with the key "error"; and the exit code says
// how it ended (see Exit…).
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
)

// app is one run of the program.
type app struct {
	stdin  io.Reader
	out    io.Writer
	errOut io.Writer
	getenv func(string) string
	now    func() time.Time
	screen *terminal.Screen

	target   string
	identity string // directory of it
	timeout  time.Duration
	json     bool
	wrote    bool // something went to stdout

	completing bool // a shell asks what may come next: cobra reads its line more than once

	// Found while help was shown, which cannot fail by itself.
	wrong     error // the command line is
	unwritten error // stdout takes nothing
}

// Main runs one command line to its end and returns the exit code. An interrupt,
// SIGTERM or the end of the terminal ends it with ExitInterrupted; a second one
// ends the process at once.
func Main(ctx context.Context, args []string) int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	defer stop()
	context.AfterFunc(ctx, stop)
	ignoreBrokenPipe()
	a := &app{stdin: os.Stdin, out: os.Stdout, errOut: os.Stderr, getenv: os.Getenv, now: time.Now}
	a.screen = terminal.New(os.Stdout, a.getenv)
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	a.completing = len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(counted{a})
	root.SetErr(a.errOut)
	a.refuseHelp(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = cmp.Or(a.wrong, writing(a.unwritten))
	}
	if ctx.Err() != nil && err != nil {
		err = &failure{code: ExitInterrupted, kind: "INTERRUPTED", msg: "interrupted"}
	}
	return a.report(err, args)
}

func (a *app) style() render.Style { return render.Style{Color: a.screen.Color()} }

func (a *app) root() *cobra.Command {
	root := group("dona", "Operate a Dodona host: deliveries, canary rollouts, flags, policy, status",
		a.statusCommand(), a.servicesCommand(), a.rolloutCommand(), a.flagCommand(), a.policyCommand(),
		a.artifactCommand(), a.releaseCommand(), a.deployCommand(), a.ingressCommand(), a.shareCommand(), a.poolCommand(),
		a.pluginCommand(), a.storeCommand(), a.attestCommand(), a.svidCommand(), a.bucketCommand(), a.explainCommand(), a.demoCommand(), a.demoServiceCommand(), a.completionCommand(), a.versionCommand())
	root.Long = `Operate a Dodona host: deliveries, canary rollouts, flags, policy, status.

Exit codes: 0 ok, 1 the operation failed, 2 the command line is wrong,
3 the configuration is wrong, 4 refused for safety, 5 not verified,
130 interrupted.`
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&a.target, "host", "", "address of the host, host:port; of several, separated by commas, the first that can be reached (default $DONA_HOST, else "+defaultHost+")")
	f.StringVar(&a.identity, "identity", "", "directory with cert.pem, key.pem and bundle.pem, to talk to a secured host (default $DONA_IDENTITY, else plaintext)")
	f.BoolVar(&a.json, "json", false, "write JSON, one object; with --watch one a line")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%s; see %s --help", flagError(err), cmd.CommandPath())
	})
	root.SetHelpCommand(helpCommand())
	a.completeEach(root)
	if !a.completing {
		onceEach(root)
	}
	return root
}

// report says how it ended and turns that into the exit code.
func (a *app) report(err error, args []string) int {
	if err == nil {
		return ExitOK
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{code: ExitUsage, kind: "USAGE", msg: err.Error()}
	}
	if f.code == ExitFailed && f.kind == kindPipe {
		return f.code // nobody reads any more: nothing to say and nobody to say it to
	}
	if a.json || wantsJSON(args) {
		if !(f.code == ExitInterrupted && a.wrote) && f.kind != kindTold {
			a.writeError(f)
		}
	}
	fmt.Fprintf(a.errOut, "dona: %s\n", render.Clean(f.msg))
	return f.code
}

// wantsJSON looks for --json in a command line that could not be read to its end.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// counted notes that something was written to stdout, or could not be.
type counted struct{ a *app }

func (c counted) Write(p []byte) (int, error) {
	c.a.wrote = true
	n, err := c.a.out.Write(p)
	c.a.unwritten = cmp.Or(c.a.unwritten, err)
	return n, err
}
