package cli

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) policyCommand() *cobra.Command {
	return group("policy", "Set and show where a service may run, how it is balanced and checked",
		a.policySetCommand(), a.policyGetCommand())
}

type policyFlags struct {
	regions                  []string
	rule                     string
	clear                    bool
	strategy, strategyConfig string
	probe, probeConfig       string
}

func (a *app) policySetCommand() *cobra.Command {
	var f policyFlags
	cmd := &cobra.Command{
		Use:   "set SERVICE",
		Short: "Change what is named of a service's policy; the rest stays",
		Long: `Change what is named of a service's policy; the rest stays.

  dona policy set checkout --region eu-west,eu-central --rule-id gdpr-1
  dona policy set checkout --strategy round-robin
  dona policy set checkout --strategy consistent-hash --strategy-config '{"max_load_percent": 150}'
  dona policy set checkout --probe http --probe-config '{"path": "/healthz"}'
  dona policy set checkout --probe none
  dona policy set checkout --clear-residency`,
		Args: positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(a, args[0])
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				if _, err := call(c, "policy of "+args[0], c.control.SetServicePolicy, request); err != nil {
					return err
				}
				return a.showPolicy(c, args[0])
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.regions, "region", nil, "the regions that may serve; may be repeated")
	fl.StringVar(&f.rule, "rule-id", "", "name of the residency rule, for the audit log")
	fl.BoolVar(&f.clear, "clear-residency", false, "let every region serve")
	fl.StringVar(&f.strategy, "strategy", "", "strategy plugin, or default")
	fl.StringVar(&f.strategyConfig, "strategy-config", "", "its configuration: JSON, or @FILE")
	fl.StringVar(&f.probe, "probe", "", "probe plugin for the endpoints, or none")
	fl.StringVar(&f.probeConfig, "probe-config", "", "its configuration: JSON, or @FILE")
	return cmd
}

// checkRegions checks the values of --region.
func checkRegions(regions []string) error {
	for _, region := range regions {
		if err := limits.Name(region); err != nil {
			return usage("--region %v", err)
		}
	}
	return nil
}

func (f *policyFlags) request(a *app, service string) (*donav1.SetServicePolicyRequest, error) {
	request := &donav1.SetServicePolicyRequest{
		Service: service, Strategy: f.strategy, Probe: f.probe, ClearResidency: f.clear,
	}
	switch {
	case f.clear && len(f.regions) > 0:
		return nil, usage("--clear-residency and --region contradict each other: allowed is one of them")
	case len(f.regions) == 0 && !f.clear && f.rule+f.strategy+f.strategyConfig+f.probe+f.probeConfig == "":
		return nil, usage("dona policy set says nothing to change; see dona policy set --help")
	}
	if f.rule != "" && len(f.regions) == 0 {
		return nil, usage("--rule-id is for --region, and none is given")
	}
	if err := checkRegions(f.regions); err != nil {
		return nil, err
	}
	if len(f.regions) > 0 {
		request.Residency = &donav1.ResidencyPolicy{AllowedRegions: f.regions, RuleId: f.rule}
	}
	for _, c := range []struct {
		flag, text string
		set        **structpb.Struct
	}{
		{"--strategy-config", f.strategyConfig, &request.StrategyConfig},
		{"--probe-config", f.probeConfig, &request.ProbeConfig},
	} {
		if c.text == "" {
			continue
		}
		config, err := a.readConfig(c.flag, c.text)
		if err != nil {
			return nil, err
		}
		*c.set = config
	}
	return request, nil
}

// readConfig reads a plugin's configuration: a JSON object, or the file after @.
func (a *app) readConfig(flag, text string) (*structpb.Struct, error) {
	raw, wrong := []byte(text), usage
	if name, ok := strings.CutPrefix(text, "@"); ok {
		var err error
		wrong = configuration
		if raw, err = a.readInput(name); err != nil {
			return nil, configuration("%s: %v", flag, err)
		}
	}
	var config structpb.Struct
	if err := protojson.Unmarshal(bytes.TrimSpace(raw), &config); err != nil {
		return nil, wrong("%s: %s: allowed is a JSON object", flag, oneLine(err))
	}
	return &config, nil
}

func (a *app) policyGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get SERVICE",
		Short: "Show a service's policy and the plan in use",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error { return a.showPolicy(c, args[0]) })
		},
	}
}

func (a *app) showPolicy(c *connection, service string) error {
	reply, err := c.status(service)
	if err != nil {
		return err
	}
	policy := reply.GetPolicy()
	if policy == nil {
		policy = &donav1.ServicePolicy{Residency: reply.GetConfig().GetResidency()}
	}
	return a.answer(policy, func() []string { return a.style().Policy(reply) })
}
