package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

func (a *app) poolCommand() *cobra.Command {
	return group("pool", "Operate the egress plane: configuration, proxies, workers, extractions",
		group("config", "Check, publish and get the configuration of the egress plane",
			a.poolConfigCheckCommand(), a.poolConfigPublishCommand(), a.poolConfigGetCommand()),
		a.poolProxiesCommand(), a.poolWorkersCommand(), a.poolAvailabilityCommand(),
		a.poolDrainCommand(), a.poolImportCommand(), a.poolExtractCommand(),
		group("upstream", "Switch an upstream on and off", a.poolUpstreamCommand("enable", true), a.poolUpstreamCommand("disable", false)),
		group("routing", "Change a routing", a.poolRoutingSetCommand()))
}

func (a *app) poolConfigCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check YAML",
		Short: "Check a configuration here; asks no host",
		Long: `Check a configuration, a file, here; asks no host. All problems are shown at once, each with
file, line and column; "-" is stdin. Whether strategies and probes exist and take
their configurations only a host knows: "dona pool config publish --dry-run".`,
		Args: positional("YAML"),
		RunE: func(_ *cobra.Command, args []string) error {
			_, c, err := a.readPoolConfig(args[0])
			if err != nil {
				return err
			}
			warnings := c.Warnings()
			if a.json {
				return a.object(poolCheck{Ok: true, Warnings: warnings})
			}
			return a.lines(append(a.warnings(warnings), fmt.Sprintf("%s holds: %d upstreams, %d routings", render.Clean(documentName(args[0])), len(c.Upstreams), len(c.Routings)))...)
		},
	}
}

// poolCheck is the answer of a check as JSON.
type poolCheck struct {
	Ok       bool          `json:"ok"`
	Problems []poolProblem `json:"problems,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
}

type poolProblem struct {
	Where   string `json:"where"`
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem"`
}

// documentName is what a document is called in what is said of it.
func documentName(file string) string {
	if file == "-" {
		return "stdin"
	}
	return file
}

// readPoolConfig reads a configuration and shows what is wrong with it.
func (a *app) readPoolConfig(name string) (text string, c *poolconfig.Config, err error) {
	raw, err := a.readInput(name)
	if err != nil {
		return "", nil, configuration("%v", err)
	}
	name = documentName(name)
	c, err = poolconfig.Parse(name, string(raw))
	if err == nil {
		return string(raw), c, nil
	}
	var wrong *strict.Error
	if !errors.As(err, &wrong) {
		return "", nil, configuration("%v", err)
	}
	n := len(wrong.Problems)
	said := fmt.Sprintf("%s has %d problems", name, n)
	if n == 1 {
		said = name + " has a problem"
	}
	if a.json {
		answer := poolCheck{}
		for _, p := range wrong.Problems[:min(n, strict.MaxProblems)] {
			answer.Problems = append(answer.Problems, poolProblem{p.Where, p.Key, p.Text})
		}
		if err := a.object(answer); err != nil {
			return "", nil, err
		}
		return "", nil, &failure{code: ExitConfig, kind: kindTold, msg: said}
	}
	for _, line := range strings.Split(wrong.Error(), "\n") {
		if err := a.lines(render.Clean(line)); err != nil {
			return "", nil, err
		}
	}
	return "", nil, configuration("%s", said)
}

// warnings are lines for people.
func (a *app) warnings(warnings []string) (lines []string) {
	for _, w := range warnings {
		lines = append(lines, a.style().Warn("warning")+" "+render.Clean(w))
	}
	return lines
}

func (a *app) poolConfigPublishCommand() *cobra.Command {
	request := &controlplanev1.PublishConfigRequest{}
	cmd := &cobra.Command{
		Use:   "publish YAML",
		Short: "Put a configuration in force on all workers, without a restart",
		Long: `Put a configuration in force on all workers, without a restart; "-" is stdin. It is
checked here first, as "dona pool config check" does, and then by the host with its
plugins. With --dry-run nothing is published.

  dona pool config get > pool.yaml
  dona pool config publish pool.yaml --expected-revision 7`,
		Args: positional("YAML"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, _, err := a.readPoolConfig(args[0])
			if err != nil {
				return err
			}
			request.Yaml = text
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "configuration", c.pool.PublishConfig, request)
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					said := fmt.Sprintf("revision %d is published", reply.GetRevision())
					if request.DryRun {
						said = fmt.Sprintf("it holds and is not published; revision %d stays", reply.GetRevision())
					}
					return append(a.warnings(reply.GetWarnings()), said)
				})
			})
		},
	}
	fl := cmd.Flags()
	fl.Uint64Var(&request.ExpectedRevision, "expected-revision", 0, "publish only on top of this revision")
	fl.BoolVar(&request.DryRun, "dry-run", false, "have the host check it, and publish nothing")
	return cmd
}

func (a *app) poolConfigGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get",
		Short: "Show the published configuration",
		Long: `Show the published configuration, as it was published: on stdout the YAML, on stderr
its revision. What was switched since by "dona pool upstream" and "dona pool routing"
is not in it.`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "configuration", c.pool.GetConfig, &controlplanev1.GetConfigRequest{})
				if err != nil {
					return err
				}
				if a.json {
					return a.message(reply)
				}
				if reply.GetYaml() == "" {
					return failed("NOT_FOUND", "no configuration is published: see dona pool config publish --help")
				}
				fmt.Fprintf(a.errOut, "revision %d\n", reply.GetRevision())
				var lines []string
				for _, line := range strings.Split(strings.TrimRight(reply.GetYaml(), "\n"), "\n") {
					lines = append(lines, printable(line))
				}
				return a.lines(lines...)
			})
		},
	}
}

// printable is a line of a document that is meant to be written into a file again:
// as it is, unless it could steer a terminal.
func printable(line string) string {
	body := strings.TrimSuffix(line, "\r")
	if render.Clean(strings.ReplaceAll(body, "\t", " ")) == strings.ReplaceAll(body, "\t", " ") {
		return line
	}
	return render.Clean(line)
}

func (a *app) poolUpstreamCommand(verb string, enabled bool) *cobra.Command {
	short := "Send requests to an upstream again"
	if !enabled {
		short = "Send no more requests to an upstream; its proxies stay where they are"
	}
	return &cobra.Command{
		Use:   verb + " UPSTREAM",
		Short: short,
		Args:  positional("UPSTREAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "upstream "+args[0], c.pool.SetUpstreamEnabled, &controlplanev1.SetUpstreamEnabledRequest{Upstream: args[0], Enabled: enabled})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					return []string{fmt.Sprintf("upstream %s is %sd: revision %d", args[0], verb, reply.GetRevision())}
				})
			})
		},
	}
}

func (a *app) poolRoutingSetCommand() *cobra.Command {
	request := &controlplanev1.SetRoutingRequest{}
	var upstreams []string
	var config string
	cmd := &cobra.Command{
		Use:   "set ROUTING",
		Short: "Switch a routing on or off, give it other upstreams or another strategy",
		Long: `Switch a routing on or off, give it other upstreams or another strategy. What
is left out stays as it is. It holds until it is set again, also over publications
that have this routing.

  dona pool routing set shop --enabled=false
  dona pool routing set shop --upstream acme=3 --upstream fixed=1,2
  dona pool routing set shop --enabled --strategy consistent-hash --strategy-config '{"source": "client_id"}'

An --upstream is NAME[=WEIGHT[,PRIORITY]]; all that are given take the place of
those before.`,
		Args: positional("ROUTING"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Routing, request.KeepEnabled = args[0], !cmd.Flags().Changed("enabled")
			if request.KeepEnabled && len(upstreams) == 0 && request.Strategy == "" && config == "" {
				return usage("dona pool routing set changes nothing: give --enabled, --enabled=false, --upstream or --strategy")
			}
			if request.Upstreams, err = upstreamRefs(upstreams); err != nil {
				return err
			}
			if config != "" {
				if request.Strategy == "" {
					return usage("--strategy-config is for --strategy, and none is given")
				}
				if request.StrategyConfig, err = a.readConfig("--strategy-config", config); err != nil {
					return err
				}
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "routing "+args[0], c.pool.SetRouting, request)
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					return []string{fmt.Sprintf("routing %s is set: revision %d", args[0], reply.GetRevision())}
				})
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&request.Enabled, "enabled", false, "whether it matches requests at all")
	fl.StringArrayVar(&upstreams, "upstream", nil, "NAME[=WEIGHT[,PRIORITY]]; may be repeated")
	fl.StringVar(&request.Strategy, "strategy", "", "strategy plugin")
	fl.StringVar(&config, "strategy-config", "", "its configuration: JSON, or @FILE")
	return cmd
}

// upstreamRefs reads NAME[=WEIGHT[,PRIORITY]] texts.
func upstreamRefs(texts []string) (refs []*controlplanev1.UpstreamRef, err error) {
	for _, text := range texts {
		name, numbers, weighted := strings.Cut(text, "=")
		ref := &controlplanev1.UpstreamRef{Name: name, Weight: 1}
		wrong := usage("--upstream is %s: allowed is NAME[=WEIGHT[,PRIORITY]], the weight 0 to %d and the priority 0 to %d", limits.Quote(text), poolconfig.MaxWeight, poolconfig.MaxPriority)
		if limits.Name(name) != nil {
			return nil, wrong
		}
		weight, priority, both := strings.Cut(numbers, ",")
		if weighted && !whole(weight, poolconfig.MaxWeight, &ref.Weight) || both && !whole(priority, poolconfig.MaxPriority, &ref.Priority) {
			return nil, wrong
		}
		refs = append(refs, ref)
	}
	return refs, nil
}
