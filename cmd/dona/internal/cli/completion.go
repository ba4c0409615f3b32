package cli

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// completionWait is how long a completion waits for a host when --timeout says
// nothing: nobody waits longer for a key to do something.
const completionWait = 2 * time.Second

// shells write the script that completes dona's command lines.
var shells = map[string]func(*cobra.Command, *bytes.Buffer) error{
	"bash": func(root *cobra.Command, w *bytes.Buffer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":  func(root *cobra.Command, w *bytes.Buffer) error { return root.GenZshCompletion(w) },
	"fish": func(root *cobra.Command, w *bytes.Buffer) error { return root.GenFishCompletion(w, true) },
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write the script that completes dona's command lines in bash, zsh or fish",
		Long: `Write the script that completes dona's command lines. Names of services, variants,
flags and plugins come from the host that the line names, when it answers.

  source <(dona completion bash)
  dona completion zsh > "${fpath[1]}/_dona"
  dona completion fish > ~/.config/fish/completions/dona.fish`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := positional("SHELL")(cmd, args); err != nil {
				return err
			}
			if shells[args[0]] == nil {
				return usage("SHELL is %s: allowed are %s", limits.Quote(args[0]), strings.Join(slices.Sorted(maps.Keys(shells)), ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var script bytes.Buffer
			if err := shells[args[0]](cmd.Root(), &script); err != nil {
				return failed("OUTPUT", "the script cannot be made: %v", err)
			}
			if a.json {
				return a.object(map[string]string{"shell": args[0], "script": script.String()})
			}
			return a.lines(strings.TrimSuffix(script.String(), "\n"))
		},
	}
}

// offer says what may come in one place of a command line, for the arguments
// before it.
type offer func(cmd *cobra.Command, args []string) []string

func (o offer) words(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if o == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o(cmd, args), cobra.ShellCompDirectiveNoFileComp
}

// files leaves it to the shell.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

var argument = regexp.MustCompile(`^\[?([A-Z]+)`)

// argumentNames are what a command's usage calls its arguments.
func argumentNames(cmd *cobra.Command) (names []string) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		m := argument.FindStringSubmatch(word)
		if m == nil {
			break // flags
		}
		names = append(names, m[1])
	}
	return names
}

// completeEach tells the shells what the arguments and flags of every command may
// be, by their names.
func (a *app) completeEach(cmd *cobra.Command) {
	names := argumentNames(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if slices.Contains([]string{"FILE", "YAML", "LIST"}, names[len(args)]) {
			return files(cmd, args, begun)
		}
		return a.argumentOffer(names[len(args)]).words(cmd, args, begun)
	}
	flag := func(f *pflag.Flag) {
		complete := a.flagOffer(cmd.Name(), f.Name).words
		switch f.Name {
		case "file", "analysis-file", "dona-host":
			complete = files
		case "data-dir", "plugin-dir":
			complete = directories
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // of a flag that is there, once
	}
	cmd.PersistentFlags().VisitAll(flag)
	cmd.LocalNonPersistentFlags().VisitAll(flag)
	for _, c := range cmd.Commands() {
		a.completeEach(c)
	}
}

func (a *app) argumentOffer(name string) offer {
	switch name {
	case "SHELL":
		return func(*cobra.Command, []string) []string { return slices.Sorted(maps.Keys(shells)) }
	case "SERVICE":
		return a.services
	case "VARIANT":
		return a.variants
	case "FLAG":
		return a.ofService(func(reply *donav1.StatusReply) (flags []string) {
			for _, f := range reply.GetConfig().GetFlags() {
				flags = append(flags, f.GetFlag())
			}
			return flags
		})
	case "HOST":
		return a.ofService(func(reply *donav1.StatusReply) (rules []string) {
			for _, r := range reply.GetIngresses() {
				rules = append(rules, r.GetHost()+r.GetPathPrefix())
			}
			return rules
		})
	case "PLUGIN":
		return a.plugins("", "")
	case "UPSTREAM":
		return a.upstreams
	case "ROUTING":
		return a.routings
	}
	return nil
}

func (a *app) flagOffer(command, name string) offer {
	switch {
	case name == "strategy" && command == "start":
		return func(*cobra.Command, []string) []string { return slices.Sorted(maps.Keys(strategies)) }
	case name == "strategy":
		return a.plugins("strategy", "default")
	case name == "probe":
		return a.plugins("probe", noProbe)
	case name == "upstream":
		return a.upstreams
	case name == "routing":
		return a.routings
	case name == "state":
		return func(*cobra.Command, []string) []string {
			return []string{"new", "available", "suspect", "unhealthy", "extracted", "expired"}
		}
	case name == "protocol":
		return func(*cobra.Command, []string) []string { return []string{"http", "https", "socks5"} }
	case name == "canary", name == "stable", name == "variant" && command != "demo-service":
		return a.variants
	}
	return nil
}

const noProbe = "none"

// asked is what the host says in time; a host that is away or refuses offers
// nothing and is no reason to complain.
func (a *app) asked(cmd *cobra.Command, ask func(*connection) []string) (words []string) {
	if !cmd.Flags().Changed("timeout") {
		a.timeout = completionWait
	}
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), a.timeout)
	defer cancel()
	_ = a.withHost(ctx, func(c *connection) error {
		words = ask(c)
		return nil
	})
	// A shell takes them for words, a tab for the beginning of a description.
	return slices.DeleteFunc(words, func(w string) bool { return limits.Text(w, limits.URLLen) != nil })
}

func (a *app) services(cmd *cobra.Command, _ []string) []string {
	return a.asked(cmd, func(c *connection) []string {
		reply, _ := call(c, "services", c.control.ListServices, &donav1.ListServicesRequest{})
		return slices.Sorted(slices.Values(reply.GetServices()))
	})
}

// ofService offers what the status of the line's service holds.
func (a *app) ofService(of func(*donav1.StatusReply) []string) offer {
	return func(cmd *cobra.Command, args []string) []string {
		if len(args) == 0 || !slices.Contains(argumentNames(cmd), "SERVICE") {
			return nil
		}
		return a.asked(cmd, func(c *connection) []string {
			reply, _ := c.status(args[0])
			words := of(reply)
			slices.Sort(words)
			return slices.Compact(words)
		})
	}
}

func (a *app) variants(cmd *cobra.Command, args []string) []string {
	return a.ofService(func(reply *donav1.StatusReply) (names []string) {
		for _, e := range reply.GetConfig().GetEndpoints() {
			names = append(names, e.GetVariant())
		}
		for _, w := range reply.GetConfig().GetWeights() {
			names = append(names, w.GetVariant())
		}
		return append(names, reply.GetConfig().GetQuarantinedVariants()...)
	})(cmd, args)
}

// plugins offers the plugins of a kind by name and one word beside them, or without
// a kind all of them as KIND/NAME.
func (a *app) plugins(kind, also string) offer {
	return func(cmd *cobra.Command, _ []string) []string {
		return a.asked(cmd, func(c *connection) (words []string) {
			reply, err := c.plugins()
			if err != nil {
				return nil
			}
			for _, p := range reply.GetPlugins() {
				switch kind {
				case "":
					words = append(words, p.GetKind()+"/"+p.GetName())
				case p.GetKind():
					words = append(words, p.GetName())
				}
			}
			if also != "" {
				words = append(words, also)
			}
			return words
		})
	}
}

func (a *app) upstreams(cmd *cobra.Command, _ []string) []string {
	return a.asked(cmd, func(c *connection) (names []string) {
		reply, _ := call(c, "availability", c.pool.GetAvailability, &controlplanev1.GetAvailabilityRequest{})
		for _, u := range reply.GetUpstreams() {
			names = append(names, u.GetUpstream())
		}
		return names
	})
}

func (a *app) routings(cmd *cobra.Command, _ []string) []string {
	return a.asked(cmd, func(c *connection) (names []string) {
		reply, _ := call(c, "configuration", c.pool.GetConfig, &controlplanev1.GetConfigRequest{})
		config, err := poolconfig.Parse("published", reply.GetYaml())
		if err != nil {
			return nil
		}
		for _, r := range config.Routings {
			names = append(names, r.Name)
		}
		return names
	})
}
