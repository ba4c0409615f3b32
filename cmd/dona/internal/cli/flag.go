package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) flagCommand() *cobra.Command {
	return group("flag", "Set, delete and list feature flags of a service",
		a.flagSetCommand(), a.flagDeleteCommand(), a.flagListCommand())
}

type flagFlags struct {
	percent  uint32
	variant  string
	match    []string
	noMatch  bool
	disabled bool
	expected uint64
}

func (a *app) flagSetCommand() *cobra.Command {
	var f flagFlags
	cmd := &cobra.Command{
		Use:   "set SERVICE FLAG",
		Short: "Make a flag, or change what is named of one",
		Long: `Make a flag, or change what is named of one: what the command leaves out stays
as it is. If somebody changes the flag at the same time the command fails, so
that no change is lost.

A --match is a targeting rule, "ATTRIBUTE OPERATOR VALUE,... -> VARIANT"; the
first that matches wins. All that are given take the place of those before.
Operators: in, not_in, starts_with, ends_with, contains, exists, num_lt, num_le,
num_gt, num_ge, semver_lt, semver_ge, cidr, matches. A value with a comma, a
blank or "->" in it is quoted.

  dona flag set checkout new-ui --match 'country in CH,DE -> v2' --match 'beta exists -> v2'
  dona flag set checkout new-ui --percent 10 --variant v2`,
		Args: positional("SERVICE", "FLAG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			targeting, err := f.targeting()
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				return a.setFlag(c, args[0], args[1], func(rule *donav1.FlagRule) {
					fl := cmd.Flags()
					if fl.Changed("percent") {
						rule.RolloutPercent = f.percent
					}
					if fl.Changed("variant") {
						rule.RolloutVariant = f.variant
					}
					if fl.Changed("match") || f.noMatch {
						rule.Targeting = targeting
					}
					if fl.Changed("disabled") {
						rule.Disabled = f.disabled
					}
				}, f.expected)
			})
		},
	}
	fl := cmd.Flags()
	fl.Uint32Var(&f.percent, "percent", 0, "share of the units that get the variant, 0 to 100")
	fl.StringVar(&f.variant, "variant", "", "the variant they get")
	fl.StringArrayVar(&f.match, "match", nil, "a targeting rule; may be repeated")
	fl.BoolVar(&f.noMatch, "no-match", false, "remove the targeting rules")
	fl.BoolVar(&f.disabled, "disabled", false, "leave the flag out of every decision; --disabled=false takes it in again")
	fl.Uint64Var(&f.expected, "expected-version", 0, "change it only if its version is this one")
	return cmd
}

func (f *flagFlags) targeting() ([]*donav1.TargetingRule, error) {
	if f.percent > 100 {
		return nil, usage("--percent is %d: allowed are 0 to 100", f.percent)
	}
	if err := limits.OptionalName(f.variant); err != nil {
		return nil, usage("--variant %v", err)
	}
	if f.noMatch && len(f.match) > 0 {
		return nil, usage("--match and --no-match contradict each other: allowed is one of them")
	}
	var rules []*donav1.TargetingRule
	for _, text := range f.match {
		rule, err := parseMatch(text)
		if err != nil {
			return nil, usage("--match %s: %v", limits.Quote(text), err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// setFlag changes the flag as it stands and writes it back if nobody else did.
func (a *app) setFlag(c *connection, service, flag string, change func(*donav1.FlagRule), expected uint64) error {
	rule, err := c.flag(service, flag)
	if err != nil {
		return err
	}
	if rule == nil {
		rule = &donav1.FlagRule{Service: service, Flag: flag}
	}
	if expected == 0 {
		expected = rule.GetVersion()
	}
	rule = proto.CloneOf(rule)
	change(rule)
	if rule.GetRolloutPercent() > 0 && rule.GetRolloutVariant() == "" {
		return usage("flag %s has no variant: say which one with --variant", flag)
	}
	rule.Version = 0
	request := &donav1.SetFlagRequest{Rule: rule, ExpectedVersion: expected}
	if _, err := call(c, "flag "+flag, c.control.SetFlag, request); err != nil {
		return err
	}
	now, err := c.flag(service, flag)
	if err != nil {
		return err
	}
	if now == nil {
		return failed("NOT_FOUND", "flag %s of %s was set, and deleted at once by somebody else", flag, service)
	}
	return a.answer(now, func() []string { return a.style().Flags([]*donav1.FlagRule{now}, nil) })
}

// flag reads one flag; nil = there is none.
func (c *connection) flag(service, flag string) (*donav1.FlagRule, error) {
	reply, err := c.status(service)
	if err != nil {
		var f *failure
		if errors.As(err, &f) && f.kind == "NOT_FOUND" {
			return nil, nil // the first flag makes the service
		}
		return nil, err
	}
	i := slices.IndexFunc(reply.GetConfig().GetFlags(), func(r *donav1.FlagRule) bool { return r.GetFlag() == flag })
	if i < 0 {
		return nil, nil
	}
	return reply.GetConfig().GetFlags()[i], nil
}

func (a *app) flagDeleteCommand() *cobra.Command {
	var expected uint64
	cmd := &cobra.Command{
		Use:   "delete SERVICE FLAG",
		Short: "Delete a flag",
		Args:  positional("SERVICE", "FLAG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &donav1.SetFlagRequest{
				Rule:   &donav1.FlagRule{Service: args[0], Flag: args[1]},
				Delete: true, ExpectedVersion: expected,
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "flag "+args[1], c.control.SetFlag, request)
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string { return []string{fmt.Sprintf("flag %s of %s is deleted", args[1], args[0])} })
			})
		},
	}
	cmd.Flags().Uint64Var(&expected, "expected-version", 0, "delete it only if its version is this one")
	return cmd
}

func (a *app) flagListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list SERVICE",
		Short: "List the flags of a service",
		Args:  positional("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := c.status(args[0])
				if err != nil {
					return err
				}
				config := reply.GetConfig()
				only := &donav1.StatusReply{
					Config:    &donav1.ConfigSnapshot{Service: config.GetService(), Version: config.GetVersion(), Flags: config.GetFlags()},
					Exposures: reply.GetExposures(),
				}
				return a.answer(only, func() []string {
					if len(config.GetFlags()) == 0 {
						return []string{render.Clean(args[0]) + " has no flags"}
					}
					return a.style().Flags(config.GetFlags(), reply.GetExposures())
				})
			})
		},
	}
}
