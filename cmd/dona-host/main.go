// Command dona-host is the control plane. See docs/configuration.md for its
// settings.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/store"
)

// Exit codes, the same for all programs.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitConfig      = 3
	exitRefused     = 4
	exitInterrupted = 130
)

func main() {
	builtin.Dispatch() // a plugin's process never gets past this line
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

func run(args, environ []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && (args[0] == "init" || args[0] == "operator") {
		return prepare(args[0], args[1:], stdout, stderr)
	}
	file, given, done, code := parse(args, environ, stdout, stderr)
	if done {
		return code
	}
	cfg, err := config.Load(file, environ, given)
	if err != nil {
		return badConfig(stderr, err)
	}
	log := hclog.New(&hclog.LoggerOptions{
		Name: "dona-host", Level: hclog.LevelFromString(cfg.LogLevel), Output: stderr, JSONFormat: cfg.LogJSON,
	})

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		first := <-signals
		cancel(interrupt{first})
		<-signals // a second one means it: do not drain
		os.Exit(exitInterrupted)
	}()

	h, err := host.New(cfg, log)
	if err == nil {
		err = h.Run(ctx)
	}
	var by interrupt
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		return badConfig(stderr, err)
	case errors.Is(err, store.ErrRefused):
		log.Error("refused for safety", "error", err)
		return exitRefused
	case err != nil:
		log.Error("failed", "error", err)
		return exitFailed
	case errors.As(context.Cause(ctx), &by) && by.signal == syscall.SIGINT:
		return exitInterrupted
	}
	return exitOK
}

func badConfig(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "dona-host: the configuration does not hold, nothing was started:\n%s\n", err)
	return exitConfig
}

type interrupt struct{ signal os.Signal }

func (i interrupt) Error() string { return i.signal.String() }

// parse reads the command line; done means that there is nothing left to run.
func parse(args, environ []string, stdout, stderr io.Writer) (file string, given map[string]string, done bool, code int) {
	flags := flag.NewFlagSet("dona-host", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "")
	flags.StringVar(&file, "config", env(environ, "DONA_CONFIG"), "")
	for _, s := range config.Settings() {
		if s.Flag == "" {
			continue
		}
		if s.Bool {
			flags.Bool(s.Flag, false, "")
		} else {
			flags.String(s.Flag, "", "")
		}
	}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(stdout)
		return "", nil, true, exitOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "dona-host: %s; dona-host --help lists the flags\n", err)
		return "", nil, true, exitUsage
	}
	if *version {
		_, _ = fmt.Fprintln(stdout, "dona-host", host.Version)
		return "", nil, true, exitOK
	}
	given = map[string]string{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = f.Value.String() })
	return file, given, false, exitOK
}

func env(environ []string, name string) string {
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

func usage(w io.Writer) {
	_, _ = fmt.Fprint(w, "dona-host runs the control plane.\n\n  dona-host --dev              on this machine, nothing to configure\n  dona-host --config FILE\n"+
		"  dona-host init DIR           prepare a secured host in DIR: authority, operator, configuration\n"+
		"  dona-host operator DIR       a fresh identity for its operator, while the host does not run\n\n")
	_, _ = fmt.Fprintf(w, "  --%-22s %s [DONA_CONFIG]\n", "config FILE", "settings in YAML")
	for _, s := range config.Settings() {
		if s.Flag == "" {
			continue
		}
		def := ""
		if s.Default != "" && !s.Bool {
			def = " (" + s.Default + ")"
		}
		_, _ = fmt.Fprintf(w, "  --%-22s %s%s [%s]\n", s.Flag, s.Help, def, s.Env())
	}
	_, _ = fmt.Fprintf(w, "  --%-22s %s\n", "version", "print the version")
}
