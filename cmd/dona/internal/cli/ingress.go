package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/ingress"
)

func (a *app) ingressCommand() *cobra.Command {
	return group("ingress", "Set, delete and list what requests from outside a service gets",
		a.ingressSetCommand(), a.ingressListCommand(), a.ingressDeleteCommand())
}

// route is a rule's HOST or HOST/PATH.
func route(text string) (host, prefix string, err error) {
	host, rest, found := strings.Cut(text, "/")
	prefix = "/" + rest
	if err := ingress.CheckHost(host); err != nil {
		return "", "", usage("the host of HOST/PATH is %s: %v", limits.Quote(host), err)
	}
	if err := ingress.CheckPrefix(prefix); found && err != nil {
		return "", "", usage("the path of HOST/PATH is %s: %v", limits.Quote(prefix), err)
	}
	return host, prefix, nil
}

func (a *app) ingressSetCommand() *cobra.Command {
	var regions []string
	cmd := &cobra.Command{
		Use:   "set SERVICE HOST[/PATH]",
		Short: "Lead the requests of a host and path prefix to a service",
		Long: `Lead the requests of a host and path prefix to a service. HOST is a name, or *.
and a name for all hosts below it. Of the rules that match, an exact host goes
before a suffix, and then the longest prefix wins. A prefix covers whole segments.

  dona ingress set checkout shop.example.com/api --region eu-west
  dona ingress set pages '*.example.com'`,
		Args: positional("SERVICE", "HOST/PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, prefix, err := route(args[1])
			if err != nil {
				return err
			}
			if err := checkRegions(regions); err != nil {
				return err
			}
			rule := &donav1.Ingress{Service: args[0], Host: host, PathPrefix: prefix, AllowedRegions: regions}
			return a.withHost(cmd.Context(), func(c *connection) error {
				request := &donav1.SetIngressRequest{Service: rule.Service, Host: host, PathPrefix: prefix, AllowedRegions: regions}
				if _, err := call(c, "ingress of "+rule.Service, c.control.SetIngress, request); err != nil {
					return err
				}
				return a.answer(rule, func() []string { return a.style().Ingresses([]*donav1.Ingress{rule}) })
			})
		},
	}
	cmd.Flags().StringSliceVar(&regions, "region", nil, "the only regions that may serve these requests; may be repeated")
	return cmd
}

func (a *app) ingressDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete SERVICE HOST[/PATH]",
		Short: "Delete a rule",
		Args:  positional("SERVICE", "HOST/PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, prefix, err := route(args[1])
			if err != nil {
				return err
			}
			request := &donav1.SetIngressRequest{Service: args[0], Host: host, PathPrefix: prefix, Delete: true}
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "ingress of "+args[0], c.control.SetIngress, request)
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					return []string{fmt.Sprintf("%s%s leads to %s no more", render.Clean(host), render.Clean(prefix), args[0])}
				})
			})
		},
	}
}

func (a *app) ingressListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [SERVICE]",
		Short: "List the rules of a service; without SERVICE those of all",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return positional("SERVICE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				rules, err := c.ingresses(args)
				if err != nil {
					return err
				}
				return a.answer(&donav1.StatusReply{Ingresses: rules}, func() []string {
					if len(rules) == 0 {
						return []string{"there are no ingress rules"}
					}
					return a.style().Ingresses(rules)
				})
			})
		},
	}
}

// ingresses are the rules of the services, or of all.
func (c *connection) ingresses(services []string) (rules []*donav1.Ingress, err error) {
	all := len(services) == 0
	if all {
		reply, err := call(c, "services", c.control.ListServices, &donav1.ListServicesRequest{})
		if err != nil {
			return nil, err
		}
		services = slices.Sorted(slices.Values(reply.GetServices()))
	}
	for _, service := range services {
		reply, err := c.status(service)
		var f *failure
		if all && errors.As(err, &f) && f.kind == "NOT_FOUND" {
			continue // it went away between the two questions
		}
		if err != nil {
			return nil, err
		}
		rules = append(rules, reply.GetIngresses()...)
	}
	return rules, nil
}
