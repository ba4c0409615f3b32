package cli

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

func (a *app) pluginCommand() *cobra.Command {
	return group("plugin", "Look at the host's plugins", a.pluginListCommand())
}

func (a *app) pluginListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the plugins: state, process, restarts",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "plugins", c.admin.ListPlugins, &donav1.ListPluginsRequest{})
				if err != nil {
					return err
				}
				slices.SortFunc(reply.Plugins, func(x, y *donav1.PluginStatus) int {
					return cmp.Or(cmp.Compare(x.GetKind(), y.GetKind()), cmp.Compare(x.GetName(), y.GetName()))
				})
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
