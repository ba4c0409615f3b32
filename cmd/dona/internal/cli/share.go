package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) shareCommand() *cobra.Command {
	return group("share", "Say who may watch a service",
		a.shareSetCommand(), a.shareShowCommand(), a.shareClearCommand())
}

func (a *app) shareSetCommand() *cobra.Command {
	request := &donav1.SetSharedServiceRequest{}
	cmd := &cobra.Command{
		Use:   "set SERVICE --consumer SERVICE",
		Short: "Let only the named consumers watch a service, in the named regions",
		Long: `Let only the named consumers watch a service, in the named regions. What is
named takes the place of what was before. Streams of those shut out end at once.

  dona share set checkout --consumer shop,edge --region eu-west
  dona share set checkout --consumer '*' --region eu-west`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Service = args[0]
			if len(request.Consumers) == 0 {
				return usage("--consumer is empty: name services, or '*' for all; dona share clear lets everyone watch again")
			}
			for _, consumer := range request.Consumers {
				if err := limits.Service(consumer); consumer != "*" && err != nil {
					return usage("--consumer %v", err)
				}
			}
			if err := checkRegions(request.AllowedRegions); err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				if _, err := call(c, "sharing of "+request.Service, c.control.SetSharedService, request); err != nil {
					return err
				}
				return a.showShared(c, request.Service)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&request.Consumers, "consumer", nil, "a service that may watch, or '*'; may be repeated")
	fl.StringSliceVar(&request.AllowedRegions, "region", nil, "the only regions it may watch from; may be repeated")
	return cmd
}

func (a *app) shareShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show SERVICE",
		Short: "Show who may watch a service",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error { return a.showShared(c, args[0]) })
		},
	}
}

// showShared shows the sharing as the host has it. JSON of a service that everyone
// may watch has no consumers.
func (a *app) showShared(c *connection, service string) error {
	reply, err := c.status(service)
	if err != nil {
		return err
	}
	shared := reply.GetShared()
	if shared == nil {
		shared = &donav1.SharedService{Service: service}
	}
	return a.answer(shared, func() []string { return a.style().Shared(reply) })
}

func (a *app) shareClearCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "clear SERVICE",
		Short: "Let every workload watch a service again",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "sharing of "+args[0], c.control.SetSharedService, &donav1.SetSharedServiceRequest{Service: args[0], Delete: true})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string { return []string{fmt.Sprintf("every workload may watch %s", args[0])} })
			})
		},
	}
}
