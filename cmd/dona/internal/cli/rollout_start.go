package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// startFlags are the words of "rollout start".
type startFlags struct {
	canary, stable   string
	steps            string
	step             time.Duration
	maxError         uint32
	minRequests      uint32
	queries          queryFlags
	supersede, retry bool
	watch            bool
}

func (a *app) rolloutStartCommand() *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start SERVICE --canary VARIANT --stable VARIANT",
		Short: "Start a canary rollout",
		Long: `Start a canary rollout: the canary gets the share of each step in turn, and goes
on when the step's time is served and every check passed. One breach rolls it
back; what cannot be measured holds it where it is.

The built-in gate compares the canary's error rate with --max-error once it has
--min-requests. Further checks are asked of an analysis plugin, one --query each:

  dona rollout start checkout --canary v2 --stable v1 --steps 5,25,100 --step 30s \
    --prometheus http://127.0.0.1:9090 \
    --query 'p99=histogram_quantile(0.99, sum by (le) (rate(latency_bucket{variant="v2"}[1m])))' \
    --max p99=0.5

For everything a check can say there is --analysis-file: a JSON array of
dona.v1.AnalysisQuery, or an object with it under "analysis".`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(a, args[0])
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error { return a.startRollout(c, request, f.watch) })
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.canary, "canary", "", "the variant to introduce")
	f.add(fl)
	fl.BoolVarP(&f.watch, "watch", "w", false, "follow it to its end, as rollout watch does")
	return cmd
}

// add gives a command the flags of a rollout, without those of its canary.
func (f *startFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.stable, "stable", "", "the variant that serves now")
	fl.StringVar(&f.steps, "steps", "5,25,50,100", "percents of the steps, rising, the last is 100")
	fl.DurationVar(&f.step, "step", 30*time.Second, "how long each step lasts, in whole seconds")
	fl.Uint32Var(&f.maxError, "max-error", 5, "roll back above this share of errors, in percent")
	fl.Uint32Var(&f.minRequests, "min-requests", 20, "judge no step on fewer requests")
	fl.BoolVar(&f.supersede, "supersede", false, "replace a rollout of this service that is under way")
	fl.BoolVar(&f.retry, "retry", false, "allow a canary that was rolled back before; lifts its quarantine")
	f.queries.add(fl)
}

func (f *startFlags) request(a *app, service string) (*donav1.StartRolloutRequest, error) {
	if err := limits.Name(f.canary); err != nil {
		return nil, usage("--canary %v", err)
	}
	request, err := f.plan(a)
	if err != nil {
		return nil, err
	}
	request.Service, request.CanaryVariant = service, f.canary
	return request, nil
}

// plan is the rollout without its service and canary.
func (f *startFlags) plan(a *app) (*donav1.StartRolloutRequest, error) {
	if err := limits.Name(f.stable); err != nil {
		return nil, usage("--stable %v", err)
	}
	steps, err := parseSteps(f.steps)
	if err != nil {
		return nil, err
	}
	if f.step < time.Second || f.step%time.Second != 0 {
		return nil, usage("--step is %s: allowed are whole seconds from 1s", f.step)
	}
	analysis, err := f.queries.parse(a)
	if err != nil {
		return nil, err
	}
	return &donav1.StartRolloutRequest{
		StableVariant: f.stable, Steps: steps, StepSeconds: uint32(min(f.step/time.Second, 1<<31)),
		MaxErrorPercent: f.maxError, MinRequests: f.minRequests, Analysis: analysis,
		Supersede: f.supersede, Retry: f.retry,
	}, nil
}

func parseSteps(text string) ([]uint32, error) {
	var steps []uint32
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil {
			return nil, usage("--steps has %s: allowed are percents from 1 to 100, separated by commas", limits.Quote(part))
		}
		steps = append(steps, uint32(n))
	}
	return steps, nil
}

func (a *app) startRollout(c *connection, request *donav1.StartRolloutRequest, watch bool) error {
	service := request.GetService()
	if _, err := call(c, "rollout of "+service, c.control.StartRollout, request); err != nil {
		return err
	}
	if !watch {
		return a.showRollout(c, service)
	}
	if !a.json && !a.screen.Live() {
		if err := a.lines(fmt.Sprintf("%s: the rollout of %s has started", render.Clean(service), render.Clean(request.GetCanaryVariant()))); err != nil {
			return err
		}
	}
	return a.watchRollout(c, service, time.Duration(request.GetStepSeconds())*time.Second)
}
