package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/demo"
	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
)

func (a *app) demoCommand() *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show canaries, faults and recovery with real processes, in under a minute",
		Long: `Show the main job with real processes on this machine: a good canary is
promoted although its analysis plugin is killed on the way, the host is killed
and comes back while requests go on, and a bad canary is rolled back. Everything
is checked; exit 1 and the reasons when something did not happen. It needs no
configuration, uses free ports on 127.0.0.1 and leaves nothing behind. With
--json the story goes to stderr, and what was seen to stdout.`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return failed("DEMO", "demo: this program's own file is unknown: %v", err)
			}
			if host == "" {
				host = filepath.Join(filepath.Dir(self), "dona-host")
				if runtime.GOOS == "windows" {
					host += ".exe"
				}
			}
			if info, err := os.Stat(host); err != nil || info.IsDir() {
				return configuration("demo: no host program at %s; build it with \"make build\", or name it with --dona-host", host)
			}
			screen := a.screen
			if a.json { // stdout is for its summary
				screen = terminal.New(a.errOut, a.getenv)
			} else {
				a.wrote = true
			}
			report, err := demo.Run(cmd.Context(), demo.Options{Host: host, Self: self, Screen: screen, Environ: os.Environ()})
			switch {
			case cmd.Context().Err() != nil:
				return err
			case err != nil && report == nil:
				return failed("DEMO", "demo: %v", err)
			case a.json:
				if outErr := a.object(report); outErr != nil {
					return outErr
				}
				if err != nil {
					return &failure{code: ExitFailed, kind: kindTold, msg: err.Error()}
				}
			case err != nil:
				return failed("DEMO", "%v", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&host, "dona-host", "", "the host program (default: dona-host beside this one)")
	return cmd
}

// demoServiceCommand is what the demo starts as its service's processes.
func (a *app) demoServiceCommand() *cobra.Command {
	v := demo.Variant{Endpoints: 2, Latency: 5 * time.Millisecond}
	cmd := &cobra.Command{
		Use:    "demo-service",
		Short:  "Serve one variant of the demo's service until stdin ends",
		Hidden: true,
		Args:   positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := a.hostAddress()
			if err != nil {
				return err
			}
			if v.Endpoints < 1 || v.Endpoints > 26 || v.ErrorPercent < 0 || v.ErrorPercent > 100 {
				return usage("demo-service: allowed are 1 to 26 endpoints and 0 to 100 percent errors")
			}
			v.Target = target
			creds, done, err := a.secure()
			if err != nil {
				return err
			}
			defer done()
			v.Credentials = creds
			v.Say = func(line string) { fmt.Fprintf(a.errOut, "dona: %s\n", render.Clean(line)) }
			if err := demo.Serve(cmd.Context(), v, a.stdin); err != nil {
				return failed("DEMO", "%v", err)
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&v.Service, "service", "checkout", "the service")
	fl.StringVar(&v.Name, "variant", "v1", "the variant")
	fl.IntVar(&v.Endpoints, "endpoints", v.Endpoints, "how many endpoints")
	fl.StringVar(&v.Region, "region", "", "their region")
	fl.DurationVar(&v.Latency, "latency", v.Latency, "how long an answer takes, about")
	fl.IntVar(&v.ErrorPercent, "error-percent", 0, "share of the answers that are 500")
	return cmd
}
