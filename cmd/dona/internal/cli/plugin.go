package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// reloadWait is how long a reload is waited for when --timeout says nothing: a
// moment more than a host takes at most.
const reloadWait = 65 * time.Second

func (a *app) pluginCommand() *cobra.Command {
	return group("plugin", "Look at the host's plugins, reload and reset them, read their logs; write, test, install and pin new ones",
		a.pluginListCommand(), a.pluginInspectCommand(), a.pluginReloadCommand(), a.pluginResetCommand(), a.pluginLogsCommand(),
		a.pluginNewCommand(), a.pluginTestCommand(), a.pluginInstallCommand(), a.pluginLockCommand(), a.pluginVerifyCommand())
}

// aboutPlugin is how the commands that take one name it.
const aboutPlugin = `

PLUGIN is KIND/NAME, such as analysis/prometheus: the first two columns of
"dona plugin list". NAME alone will do when no other kind has it.`

func (a *app) pluginListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the plugins: state, process, restarts",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := c.plugins()
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetPlugins()) == 0 {
						return []string{"the host at " + c.target + " has no plugins"}
					}
					return a.style().Plugins(reply.GetPlugins())
				})
			})
		},
	}
}

func (a *app) pluginInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect PLUGIN",
		Short: "Show all about a plugin, and the last warnings and errors of its log",
		Long:  "Show all about a plugin, and the last warnings and errors of its log: why it\nended is among them." + aboutPlugin,
		Args:  positional("PLUGIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPlugin(cmd, args[0], func(c *connection, p *donav1.PluginRequest) error {
				reply, err := c.plugins()
				if err != nil {
					return err
				}
				i := slices.IndexFunc(reply.GetPlugins(), func(x *donav1.PluginStatus) bool {
					return x.GetKind() == p.GetKind() && x.GetName() == p.GetName()
				})
				if i < 0 {
					return noPlugin(p.GetKind()+"/"+p.GetName(), reply.GetPlugins())
				}
				var troubles []*donav1.PluginLogLine
				if !a.json {
					if troubles, err = c.troubles(p); err != nil {
						return err
					}
				}
				return a.answer(reply.GetPlugins()[i], func() []string { return a.style().Plugin(reply.GetPlugins()[i], troubles) })
			})
		},
	}
}

func (a *app) pluginReloadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reload PLUGIN",
		Short: "Replace a plugin's process by a new one, when that has proven to work",
		Long: `Replace a plugin's process by a new one, when that has proven to work. No call is
lost; a new process that fails leaves the old one serving, and the error says why.
A reload that is interrupted goes on. Without --timeout it has a minute.` + aboutPlugin,
		Args: positional("PLUGIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPlugin(cmd, args[0], func(c *connection, p *donav1.PluginRequest) error {
				if !cmd.Flags().Changed("timeout") {
					c.timeout = reloadWait
				}
				operation := fmt.Sprintf("reload of %s/%s", p.GetKind(), p.GetName())
				var st *donav1.PluginStatus
				if err := a.busy(saying(operation), func() (err error) {
					st, err = call(c, operation, c.admin.ReloadPlugin, p)
					return err
				}); err != nil {
					return err
				}
				return a.answer(st, func() []string { return []string{render.PluginLine(st)} })
			})
		},
	}
}

func (a *app) pluginResetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reset PLUGIN",
		Short: "Bring a plugin back that waits, is quarantined or was rejected",
		Long: `Bring a plugin back that waits, is quarantined or was rejected, and forget how often
it ended. It does not wait for the start: look with "dona plugin inspect".` + aboutPlugin,
		Args: positional("PLUGIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPlugin(cmd, args[0], func(c *connection, p *donav1.PluginRequest) error {
				st, err := call(c, fmt.Sprintf("reset of %s/%s", p.GetKind(), p.GetName()), c.admin.ResetPlugin, p)
				if err != nil {
					return err
				}
				return a.answer(st, func() []string { return []string{render.PluginLine(st)} })
			})
		},
	}
}

// withPlugin finds the plugin that an argument names and runs do with it. What is
// wrong in itself needs no host.
func (a *app) withPlugin(cmd *cobra.Command, text string, do func(*connection, *donav1.PluginRequest) error) error {
	kind, name, both := strings.Cut(text, "/")
	if !both {
		kind, name = "", text
	}
	if both && !slices.Contains([]string{"strategy", "probe", "analysis", "unknown"}, kind) {
		return usage("PLUGIN has the kind %s: allowed are strategy, probe, analysis and unknown, as in analysis/prometheus", limits.Quote(kind))
	}
	if err := limits.Name(name); err != nil {
		return usage("PLUGIN has a name that %v", err)
	}
	return a.withHost(cmd.Context(), func(c *connection) error {
		if !both {
			var err error
			if kind, err = c.kindOf(name); err != nil {
				return err
			}
		}
		return do(c, &donav1.PluginRequest{Kind: kind, Name: name})
	})
}

// kindOf is the only kind with a plugin of this name.
func (c *connection) kindOf(name string) (string, error) {
	reply, err := c.plugins()
	if err != nil {
		return "", err
	}
	var kinds []string
	for _, p := range reply.GetPlugins() {
		if p.GetName() == name {
			kinds = append(kinds, p.GetKind())
		}
	}
	switch len(kinds) {
	case 0:
		return "", noPlugin(name, reply.GetPlugins())
	case 1:
		return kinds[0], nil
	}
	return "", usage("PLUGIN is %s: there are %s; say which", limits.Quote(name), strings.Join(kinds, "/"+name+" and ")+"/"+name)
}

// namesShown is how many plugins an error lists.
const namesShown = 20

func noPlugin(named string, there []*donav1.PluginStatus) error {
	var names []string
	for _, p := range there {
		names = append(names, p.GetKind()+"/"+p.GetName())
	}
	if more := len(names) - namesShown; more > 0 {
		names = append(names[:namesShown], fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		names = []string{"none"}
	}
	return failed("NOT_FOUND", "there is no plugin %s: the host has %s", limits.Quote(named), strings.Join(names, ", "))
}

// plugins is the host's list, sorted.
func (c *connection) plugins() (*donav1.ListPluginsReply, error) {
	reply, err := call(c, "plugins", c.admin.ListPlugins, &donav1.ListPluginsRequest{})
	slices.SortFunc(reply.GetPlugins(), func(x, y *donav1.PluginStatus) int {
		return cmp.Or(cmp.Compare(x.GetKind(), y.GetKind()), cmp.Compare(x.GetName(), y.GetName()))
	})
	return reply, err
}
