package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
)

// conformance is what "plugin test" asks of the suite.
type conformance struct {
	file           string
	config, noData string   // JSON; empty = none
	env            []string // NAME=VALUE
	quick          bool
}

// judgement is what the suite found.
type judgement struct {
	plugin string // KIND/NAME, or the file
	failed int
	lines  []string
	junit  []byte
	object any
}

func (a *app) pluginTestCommand() *cobra.Command {
	var c conformance
	var junit string
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Test whether a plugin keeps what hosts rely on",
		Long: `Start the plugin FILE as a host does, and test whether it keeps what hosts rely on.
It asks no host. Exit 1 when a check fails; each says what was seen and what to do.

A plugin that asks others meets servers of the suite: a probe's endpoint, a query's
prometheus_url, and ${TARGET} in --config, are the address of one on 127.0.0.1.

  dona plugin test bin/my-check
  dona plugin test bin/my-check --config '{"url":"http://${TARGET}/"}' --junit report.xml`,
		Args: positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file = args[0]
			switch info, err := os.Stat(c.file); {
			case err != nil:
				return usage("FILE is %s: there is no such file; build the plugin first", limits.Quote(c.file))
			case info.IsDir():
				return usage("FILE is %s: it is a folder; name the program or script that is in it", limits.Quote(c.file))
			}
			for _, e := range c.env {
				if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
					return usage("--env is %s: allowed is NAME=VALUE", limits.Quote(e))
				}
			}
			var found *judgement
			if err := a.busy(saying("testing "+c.file), func() (err error) {
				found, err = judge(cmd.Context(), c)
				return err
			}); err != nil {
				return err
			}
			if junit != "" {
				if err := os.WriteFile(junit, found.junit, 0o644); err != nil {
					return failed("OUTPUT", "--junit: %v", err)
				}
			}
			var err error
			if a.json {
				err = a.object(found.object)
			} else {
				err = a.lines(found.lines...)
			}
			if err == nil && found.failed > 0 {
				kind := "CONFORMANCE"
				if a.json {
					kind = kindTold
				}
				err = failed(kind, "plugin test: %s fails %d checks; the report says what to do", found.plugin, found.failed)
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&c.config, "config", "", "configuration of the instances that are tested, as JSON")
	fl.StringVar(&c.noData, "no-data", "", "for an analysis: a configuration with which there is nothing to measure, as JSON (default --config)")
	fl.StringArrayVar(&c.env, "env", nil, "NAME=VALUE in the plugin's environment; may be given more than once")
	fl.BoolVar(&c.quick, "quick", false, "fewer calls: 200 at once, 1,000 to look for leaks")
	fl.StringVar(&junit, "junit", "", "file to write the report to, as JUnit XML")
	return cmd
}
