package cli

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) deployCommand() *cobra.Command {
	return group("deploy", "Start and watch deployments of a service",
		a.deployStartCommand(), a.deployStatusCommand(), a.deployWatchCommand())
}

var strategies = map[string]donav1.StartDeploymentRequest_Strategy{
	"recreate":   donav1.StartDeploymentRequest_STRATEGY_RECREATE,
	"blue-green": donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN,
	"canary":     donav1.StartDeploymentRequest_STRATEGY_CANARY,
}

type deployFlags struct {
	release, environment, strategy string
	regions                        []string
	ready                          time.Duration
	rollout                        startFlags
	watch                          bool
}

func (a *app) deployStartCommand() *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "start SERVICE --release NUMBER --strategy STRATEGY",
		Short: "Bring a release to where requests are",
		Long: `Bring a release to where requests are. It waits until the release's variant has
an endpoint in each --region, and then moves the traffic:

  recreate    all of it at once
  blue-green  all of it at once; the variant that had it stays ready at 0
  canary      by a rollout, with the flags of "dona rollout start"

  dona deploy start checkout --release 7 --strategy canary --stable v1 \
    --region eu-west --steps 5,25,100 --step 30s --watch`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(a, args[0], cmd.Flags())
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error { return a.startDeployment(c, args[0], request, &f) })
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.release, "release", "", "number of the release, or its id")
	fl.StringVar(&f.strategy, "strategy", "", "recreate, blue-green or canary")
	fl.StringVar(&f.environment, "environment", "", "a name for people and reports")
	fl.StringSliceVar(&f.regions, "region", nil, "each needs an endpoint before traffic moves; may be repeated")
	fl.DurationVar(&f.ready, "ready-timeout", 10*time.Minute, "how long to wait for the endpoints, in whole seconds")
	fl.BoolVarP(&f.watch, "watch", "w", false, "follow it to its end, as deploy watch does")
	f.rollout.add(fl)
	return cmd
}

func (f *deployFlags) request(a *app, service string, flags *pflag.FlagSet) (*donav1.StartDeploymentRequest, error) {
	request := &donav1.StartDeploymentRequest{ReleaseId: f.release, Environment: f.environment, Regions: f.regions}
	if !strings.Contains(f.release, "/") { // a number of this service's
		if n, err := strconv.ParseUint(f.release, 10, 64); err != nil || n == 0 {
			return nil, usage("--release is %s: allowed is the number of a release; dona release list %s shows them", limits.Quote(f.release), service)
		}
		request.ReleaseId = service + "/" + f.release
	} else if !strings.HasPrefix(f.release, service+"/") {
		return nil, usage("--release is %s, of another service than %s", limits.Quote(f.release), service)
	}
	var known bool
	if request.Strategy, known = strategies[f.strategy]; !known {
		return nil, usage("--strategy is %s: allowed are %s", limits.Quote(f.strategy), strings.Join(slices.Sorted(maps.Keys(strategies)), ", "))
	}
	if f.ready < time.Second || f.ready%time.Second != 0 {
		return nil, usage("--ready-timeout is %s: allowed are whole seconds from 1s", f.ready)
	}
	request.ReadyTimeoutSeconds = uint32(min(f.ready/time.Second, 1<<31))
	if err := checkRegions(f.regions); err != nil {
		return nil, err
	}
	if request.Strategy == donav1.StartDeploymentRequest_STRATEGY_CANARY {
		var err error
		request.Canary, err = f.rollout.plan(a)
		return request, err
	}
	var wrong error
	flags.Visit(func(flag *pflag.Flag) {
		if f.rollout.has(flag.Name) {
			wrong = usage("--%s is for --strategy canary alone", flag.Name)
		}
	})
	return request, wrong
}

// has reports whether a rollout has a flag of that name.
func (f *startFlags) has(name string) bool {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(startFlags).add(all)
	return all.Lookup(name) != nil
}

func (a *app) startDeployment(c *connection, service string, request *donav1.StartDeploymentRequest, f *deployFlags) error {
	d, err := call(c, "deployment of "+service, c.control.StartDeployment, request)
	if err != nil {
		return err
	}
	if !f.watch {
		return a.answer(d, func() []string { return []string{render.DeploymentLine(service, d)} })
	}
	return a.watchDeployment(c, service, d.GetId())
}

func (a *app) deployStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status SERVICE",
		Short: "Show a service's deployments, the newest first",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := c.status(args[0])
				if err != nil {
					return err
				}
				only := &donav1.StatusReply{Deployments: reply.GetDeployments()}
				return a.answer(only, func() []string {
					if len(reply.GetDeployments()) == 0 {
						return []string{args[0] + " has no deployments"}
					}
					return a.style().Deployments(reply.GetDeployments())
				})
			})
		},
	}
}

func (a *app) deployWatchCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "watch SERVICE",
		Short: "Follow the newest deployment to its end; exit 0 when it SUCCEEDED, 1 otherwise",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error { return a.watchDeployment(c, args[0], id) })
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "follow this one instead of the newest")
	return cmd
}

// watchDeployment follows a deployment of a service to its end; without an id the
// one that is the newest now.
func (a *app) watchDeployment(c *connection, service, id string) error {
	var mark string
	return a.follow(c, service, func(reply *donav1.StatusReply) (bool, error) {
		if id == "" && len(reply.GetDeployments()) > 0 {
			id = reply.GetDeployments()[0].GetId()
		}
		i := slices.IndexFunc(reply.GetDeployments(), func(d *donav1.Deployment) bool { return d.GetId() == id })
		switch {
		case id == "":
			return true, failed("NOT_FOUND", "%s has no deployment; start one with: dona deploy start %s --release NUMBER --strategy STRATEGY", service, service)
		case i < 0:
			return true, failed("NOT_FOUND", "%s has no deployment %s", service, limits.Quote(id))
		}
		d := reply.GetDeployments()[i]
		if err := a.showDeployment(reply, d, &mark); err != nil {
			return true, err
		}
		switch d.GetState() {
		case donav1.Deployment_STATE_SUCCEEDED:
			return true, nil
		case donav1.Deployment_STATE_FAILED, donav1.Deployment_STATE_ROLLED_BACK:
			return true, failed("ENDED", "%s: the deployment of %s ended %s: %s", service, d.GetReleaseId(), render.DeploymentState(d.GetState()), d.GetReason())
		}
		return false, nil
	})
}

// showDeployment shows one state of a deployment that is watched. mark is of the
// last line written.
func (a *app) showDeployment(reply *donav1.StatusReply, d *donav1.Deployment, mark *string) error {
	service := reply.GetConfig().GetService()
	view := render.RolloutOf(reply)
	moves := d.GetState() == donav1.Deployment_STATE_RUNNING && view.Status != nil
	switch {
	case a.json:
		return a.message(d)
	case a.screen.Live():
		block := []string{render.DeploymentLine(service, d)}
		if moves {
			block = append(append(block, ""), a.style().Block(view)...)
		}
		return a.draw(block)
	}
	line, m := render.DeploymentLine(service, d), render.DeploymentMark(d)
	if moves {
		line, m = line+"; "+render.Brief(view, true), m+render.Mark(view)
	}
	if m == *mark {
		return nil
	}
	*mark = m
	return a.lines(a.now().Format(time.TimeOnly) + " " + line)
}
