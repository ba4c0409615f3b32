package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dodona-project/dodona/host/limits"
)

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, SuggestionsMinimumDistance: 2}
	g.AddCommand(commands...)
	g.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("%s wants a command; see %s --help", cmd.CommandPath(), cmd.CommandPath())
		}
		return noCommand(cmd, args[0])
	}
	return g
}

func noCommand(cmd *cobra.Command, name string) error {
	hint := ""
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = fmt.Sprintf(": did you mean %s?", strings.Join(near, " or "))
	}
	return usage("%s has no command %s%s; see %s --help", cmd.CommandPath(), limits.Quote(name), hint, cmd.CommandPath())
}

// refuseHelp makes --help after an unknown command what the command alone is: a
// wrong command line. Without it the help of the group above would show.
func (a *app) refuseHelp(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if left := cmd.Flags().Args(); cmd.HasSubCommands() && len(left) > 0 {
			a.wrong = noCommand(cmd, left[0])
			return
		}
		help(cmd, args)
	})
}

// helpCommand is the group of words for what --help says, and knows no others.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Show the help of a command, as --help does",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			named, left, err := cmd.Root().Find(args)
			if err != nil || len(left) > 0 {
				return noCommand(named, left[0])
			}
			return named.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if named, left, err := cmd.Root().Find(args); err == nil && len(left) == 0 {
				for _, c := range named.Commands() {
					if c.IsAvailableCommand() {
						names = append(names, c.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// positional wants exactly the named arguments and checks those whose name has a
// grammar.
func positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usage("%s wants %s, got %d; see %s --help", cmd.CommandPath(), wanted(names), len(args), cmd.CommandPath())
		}
		for i, name := range names {
			if err := checkArgument(name, args[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// anyForm marks an argument that has the name of one with a grammar, and none.
const anyForm = " of any form"

func wanted(names []string) string {
	if len(names) == 0 {
		return "no arguments"
	}
	return strings.ReplaceAll(strings.Join(names, " and "), anyForm, "")
}

func checkArgument(name, value string) error {
	var err error
	switch name {
	case "SERVICE":
		err = limits.Service(value)
	case "FLAG", "VARIANT", "UPSTREAM", "ROUTING":
		err = limits.Name(value)
	case "PROXY":
		err = limits.ID(value)
	}
	if err != nil {
		return usage("%s %v", name, err)
	}
	return nil
}

// once refuses a flag that is given twice: the last one would win silently.
type once struct {
	pflag.Value
	given bool
}

var errTwice = errors.New("is given twice")

// flagError says what is wrong with a flag and what it takes, in the words of the
// other refusals instead of those of a parser.
func flagError(err error) string {
	var bad *pflag.InvalidValueError
	var empty *pflag.ValueRequiredError
	switch {
	case errors.As(err, &empty):
		return "--" + empty.GetFlag().Name + " wants a value"
	case !errors.As(err, &bad):
		return err.Error()
	case errors.Is(err, errTwice):
		return "--" + bad.GetFlag().Name + " " + errTwice.Error()
	}
	why := bad.Unwrap().Error()
	switch bad.GetFlag().Value.Type() {
	case "bool":
		why = "allowed are true and false"
	case "duration":
		why = "allowed are durations with a unit, such as 500ms, 30s or 5m"
	case "int":
		why = "allowed are whole numbers"
	case "uint", "uint32", "uint64":
		why = "allowed are whole numbers from 0"
		if errors.Is(bad, strconv.ErrRange) {
			why = "it is too large"
		}
	}
	return fmt.Sprintf("--%s is %s: %s", bad.GetFlag().Name, limits.Quote(bad.GetValue()), why)
}

func (o *once) Set(text string) error {
	if o.given {
		return errTwice
	}
	o.given = true
	return o.Value.Set(text)
}

func onceEach(cmd *cobra.Command) {
	wrap := func(f *pflag.Flag) {
		if _, done := f.Value.(*once); done || slices.Contains(repeatable, f.Value.Type()) {
			return
		}
		f.Value = &once{Value: f.Value}
	}
	cmd.PersistentFlags().VisitAll(wrap)
	cmd.LocalNonPersistentFlags().VisitAll(wrap)
	for _, c := range cmd.Commands() {
		onceEach(c)
	}
}

// repeatable are the types of flags that add up.
var repeatable = []string{"stringArray", "stringSlice"}
