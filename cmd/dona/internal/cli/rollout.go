package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) rolloutCommand() *cobra.Command {
	return group("rollout", "Start, watch and steer canary rollouts",
		a.rolloutStartCommand(), a.rolloutStatusCommand(), a.rolloutWatchCommand(),
		a.control("pause", "Freeze a rollout: weights and dwell stay, a breach still rolls back", donav1.ControlRolloutRequest_ACTION_PAUSE),
		a.control("resume", "Go on where a paused rollout was", donav1.ControlRolloutRequest_ACTION_RESUME),
		a.promoteCommand(),
		a.control("abort", "End a rollout and send everything to the stable variant", donav1.ControlRolloutRequest_ACTION_ABORT),
		a.liftCommand())
}

func (a *app) rolloutStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status SERVICE",
		Short: "Show a service's newest rollout",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error { return a.showRollout(c, args[0]) })
		},
	}
}

func (a *app) showRollout(c *connection, service string) error {
	reply, err := c.status(service)
	if err != nil {
		return err
	}
	if reply.GetRollout() == nil {
		return noRollout(service)
	}
	return a.answer(reply.GetRollout(), func() []string { return a.style().Block(render.RolloutOf(reply)) })
}

func noRollout(service string) error {
	return failed("NOT_FOUND", "%s has no rollout; start one with: dona rollout start %s --canary VARIANT --stable VARIANT", service, service)
}

func (a *app) rolloutWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch SERVICE",
		Short: "Follow a rollout to its end; exit 0 when it is PROMOTED, 1 otherwise",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error { return a.watchRollout(c, args[0], 0) })
		},
	}
}

// watchRollout follows the newest rollout of a service to its end. dwell is how
// long its steps last, when known.
func (a *app) watchRollout(c *connection, service string, dwell time.Duration) error {
	var id, mark string
	return a.follow(c, service, func(reply *donav1.StatusReply) (bool, error) {
		st := reply.GetRollout()
		if st == nil {
			return true, noRollout(service)
		}
		if id == "" {
			id = st.GetId()
		}
		if id != st.GetId() {
			return true, failed("ENDED", "%s: the rollout was replaced by another; watch that one with: dona rollout watch %s", service, service)
		}
		view := render.RolloutOf(reply)
		view.StepDwell = dwell
		if err := a.showStep(view, &mark); err != nil {
			return true, err
		}
		return a.ended(st)
	})
}

// showStep shows one state of a rollout that is watched. mark is of the last
// line written.
func (a *app) showStep(view render.Rollout, mark *string) error {
	switch {
	case a.json:
		return a.message(view.Status)
	case a.screen.Live():
		return a.draw(a.style().Block(view))
	}
	if m := render.Mark(view); m != *mark {
		*mark = m
		return a.lines(a.now().Format(time.TimeOnly) + " " + render.Line(view))
	}
	return nil
}

func (a *app) ended(st *donav1.RolloutStatus) (bool, error) {
	if !render.Ended(st.GetState()) {
		return false, nil
	}
	if st.GetState() == donav1.RolloutStatus_STATE_PROMOTED {
		return true, nil
	}
	return true, failed("ENDED", "%s: the rollout of %s ended %s: %s", st.GetService(), st.GetCanaryVariant(), render.State(st.GetState()), st.GetReason())
}

// control is a verb that needs no more than a reason.
func (a *app) control(verb, short string, action donav1.ControlRolloutRequest_Action) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   verb + " SERVICE",
		Short: short,
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd, verb, &donav1.ControlRolloutRequest{Service: args[0], Action: action, Reason: reason})
		},
	}
	reasonFlag(cmd, &reason)
	return cmd
}

func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why; kept in the audit log")
}

func (a *app) promoteCommand() *cobra.Command {
	var reason string
	var all bool
	cmd := &cobra.Command{
		Use:   "promote SERVICE",
		Short: "Move a rollout to its next step now; with --all to its end, marked unverified",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			action := donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP
			if all {
				action = donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL
			}
			return a.steer(cmd, "promote", &donav1.ControlRolloutRequest{Service: args[0], Action: action, Reason: reason})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "promote to the end at once, without the evidence of the steps left out")
	reasonFlag(cmd, &reason)
	return cmd
}

func (a *app) liftCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "lift SERVICE VARIANT",
		Short: "Lift the quarantine of a variant that was rolled back",
		Args:  positional("SERVICE", "VARIANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd, "lift", &donav1.ControlRolloutRequest{
				Service: args[0], Variant: args[1], Reason: reason,
				Action: donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE,
			})
		},
	}
	reasonFlag(cmd, &reason)
	return cmd
}

func (a *app) steer(cmd *cobra.Command, verb string, request *donav1.ControlRolloutRequest) error {
	if err := limits.Text(request.GetReason(), limits.ReasonLen); err != nil {
		return usage("--reason %v", err)
	}
	return a.withHost(cmd.Context(), func(c *connection) error {
		st, err := call(c, fmt.Sprintf("%s %s", verb, request.GetService()), c.control.ControlRollout, request)
		if err != nil {
			return err
		}
		return a.answer(st, func() []string {
			if request.GetAction() == donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE {
				return []string{fmt.Sprintf("%s: the quarantine of %s is lifted", request.GetService(), request.GetVariant())}
			}
			return []string{render.Line(render.Rollout{Status: st})}
		})
	})
}
