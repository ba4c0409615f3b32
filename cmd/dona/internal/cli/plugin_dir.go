package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/plugins/lock"
)

// The commands that keep a plugin directory need no host: one that runs follows what
// they change.

const aboutPluginDir = `

The directory is that of the host's plugins.dir: name it with --plugin-dir, or in
DONA_PLUGIN_DIR. No host is needed; one that runs with the directory follows.`

// installedPlugin, lockedPlugin and checkedPlugin are what the commands tell, also as
// JSON.
type (
	installedPlugin struct {
		Name     string `json:"name"`
		Version  string `json:"version"`
		Kind     string `json:"kind"`
		Platform string `json:"platform"`
		Path     string `json:"path"`
		Digest   string `json:"digest"`
		There    bool   `json:"already_there"`
	}
	lockedPlugin struct {
		Name      string            `json:"name"`
		Version   string            `json:"version"`
		Kind      string            `json:"kind"`
		Platforms map[string]string `json:"platforms"`
		Change    string            `json:"change"` // new, version, digest, platforms or none
		Before    string            `json:"version_before,omitempty"`
	}
	checkedPlugin struct {
		Name     string `json:"name"`
		Version  string `json:"version"`
		Kind     string `json:"kind"`
		Platform string `json:"platform"`
		Expected string `json:"expected"`
		Actual   string `json:"actual,omitempty"`
		Problem  string `json:"problem,omitempty"`
	}
)

// pinRequest names a version of a plugin; empty is the newest.
type pinRequest struct{ name, version, kind string }

func (a *app) pluginDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "plugin-dir", "", "the plugin directory [DONA_PLUGIN_DIR]")
}

// pluginDir is the directory that is meant.
func (a *app) pluginDir(flag string) (string, error) {
	if dir := cmp.Or(flag, a.getenv("DONA_PLUGIN_DIR")); dir != "" {
		return dir, nil
	}
	return "", usage("which plugin directory is not said: name it with --plugin-dir, or in DONA_PLUGIN_DIR")
}

func (a *app) pluginInstallCommand() *cobra.Command {
	var dir string
	var replace bool
	cmd := &cobra.Command{
		Use:   "install FILE [--replace]",
		Short: "Put a plugin into the plugin directory, where its version belongs",
		Long: `Put a plugin into the plugin directory, where its name, its version and this platform
say that it belongs; other versions stay beside it. FILE is the program or script, or
a folder with a script of the folder's name in it and what that needs. A copy of it is
run, with --describe, to ask what it is.

It does not run before it is pinned: dona plugin lock NAME.` + aboutPluginDir,
		Args: positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := a.pluginDir(dir)
			if err != nil {
				return err
			}
			p, err := installPlugin(cmd.Context(), dir, args[0], replace)
			if err != nil {
				return err
			}
			if a.json {
				return a.object(p)
			}
			done := "installed"
			if p.There {
				done = "is there already:"
			}
			return a.lines(
				render.Clean(fmt.Sprintf("%s/%s %s %s for %s", p.Kind, p.Name, p.Version, done, p.Platform)),
				"file    "+render.Clean(p.Path), "digest  "+p.Digest,
				"It runs when it is pinned: dona plugin lock "+p.Name)
		},
	}
	a.pluginDirFlag(cmd, &dir)
	cmd.Flags().BoolVar(&replace, "replace", false, "take the place of other bytes under the same version")
	return cmd
}

func (a *app) pluginLockCommand() *cobra.Command {
	var dir, kind string
	cmd := &cobra.Command{
		Use:   "lock [NAME[@VERSION]...] [--kind KIND]",
		Short: "Pin plugins in plugins.lock: what it names runs, and nothing else",
		Long: `Pin plugins in plugins.lock as they are in the plugin directory: their version, kind,
and the digest of the file for each platform. What is pinned runs, and nothing else.
NAME alone is its newest version, NAME@VERSION that one: so an upgrade is rolled back.
Without NAME it is about all plugins that are there, each in its newest version; then
a file that has changed under a version that is pinned is refused.

A file for this platform is run, with --describe, to ask what it is. One that is here
for other platforms only cannot be asked: --kind says it.

  dona plugin lock my-check
  dona plugin lock my-check@0.1.0` + aboutPluginDir,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind != "" && !slices.Contains(lock.Kinds, kind) {
				return usage("--kind is %q: allowed are %s", kind, strings.Join(lock.Kinds, ", "))
			}
			if kind != "" && len(args) != 1 {
				return usage("--kind is about one plugin: name one, not %d", len(args))
			}
			var requests []pinRequest
			for _, arg := range args {
				name, version, both := strings.Cut(arg, "@")
				if _, ok := lock.ParseVersion(version); !lock.ValidName(name) || both && !ok {
					return usage("%.80q is no plugin: allowed is NAME or NAME@VERSION, such as my-check@0.1.0", arg)
				}
				if slices.ContainsFunc(requests, func(r pinRequest) bool { return r.name == name }) {
					return usage("%s is named twice: one version of a plugin is pinned", name)
				}
				requests = append(requests, pinRequest{name, version, kind})
			}
			dir, err := a.pluginDir(dir)
			if err != nil {
				return err
			}
			path, done, err := lockPlugins(cmd.Context(), dir, requests)
			if err != nil {
				return err
			}
			if a.json {
				return a.object(map[string]any{"lock": path, "plugins": done})
			}
			if len(done) == 0 {
				return a.lines("no plugin is in "+render.Clean(dir)+": put one there with dona plugin install FILE", "wrote "+render.Clean(path))
			}
			return a.lines(append(lockedLines(done), "wrote "+render.Clean(path))...)
		},
	}
	a.pluginDirFlag(cmd, &dir)
	cmd.Flags().StringVar(&kind, "kind", "", "which kind of plugin it is, when it cannot be asked: "+strings.Join(lock.Kinds, ", "))
	return cmd
}

func lockedLines(done []lockedPlugin) (lines []string) {
	for _, p := range done {
		what := map[string]string{
			"new": "pinned", "version": "pinned in place of " + p.Before, "digest": "pinned with its new file",
			"platforms": "pinned for other platforms, too", "none": "pinned as before",
		}[p.Change]
		lines = append(lines, render.Clean(fmt.Sprintf("%s/%s %s: %s", p.Kind, p.Name, p.Version, what)))
		for _, platform := range slices.Sorted(maps.Keys(p.Platforms)) {
			lines = append(lines, fmt.Sprintf("  %s  %s", platform, p.Platforms[platform]))
		}
	}
	return lines
}

func (a *app) pluginVerifyCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the files of the plugin directory with plugins.lock",
		Long: `Compare the files of the plugin directory with what plugins.lock pins, and name the
plugins that are there and not pinned. Nothing is run and nothing changed. Files for
other platforms are looked at when they are here. It exits with 5 when one is not what
is pinned; what is not pinned does not count, because it does not run.` + aboutPluginDir,
		Args: positional(),
		RunE: func(*cobra.Command, []string) error {
			dir, err := a.pluginDir(dir)
			if err != nil {
				return err
			}
			path, checked, unpinned, err := verifyPlugins(dir)
			if err != nil {
				return err
			}
			bad := 0
			for _, c := range checked {
				if c.Problem != "" {
					bad++
				}
			}
			if a.json {
				err = a.object(map[string]any{"lock": path, "verified": bad == 0, "plugins": checked, "unpinned": unpinned})
			} else {
				err = a.lines(verifiedLines(path, checked, unpinned)...)
			}
			if err != nil || bad == 0 {
				return err
			}
			f := &failure{code: ExitUnverified, kind: "UNVERIFIED", msg: fmt.Sprintf("%d of %d are not what is pinned in %s", bad, len(checked), path)}
			if a.json {
				f.kind = kindTold
			}
			return f
		},
	}
	a.pluginDirFlag(cmd, &dir)
	return cmd
}

func verifiedLines(path string, checked []checkedPlugin, unpinned []string) (lines []string) {
	for _, c := range checked {
		line := fmt.Sprintf("%s/%s %s %s: ", c.Kind, c.Name, c.Version, c.Platform)
		if c.Problem == "" {
			line += "as pinned, " + c.Actual
		} else {
			line += "REFUSED: " + c.Problem
		}
		lines = append(lines, render.Clean(line))
	}
	if len(checked) == 0 {
		lines = append(lines, "nothing is pinned in "+render.Clean(path))
	}
	for _, name := range unpinned {
		lines = append(lines, fmt.Sprintf("%s: not pinned, so that it does not run; to have it run: dona plugin lock %s", name, name))
	}
	return lines
}
