package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/scaffold"
	"github.com/dodona-project/dodona/host/limits"
)

// moduleDirVariable says where the source of this project is.
const moduleDirVariable = "DONA_MODULE_DIR"

// pluginName is what hosts take as the name of a plugin.
var pluginName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func (a *app) pluginNewCommand() *cobra.Command {
	var checkout, module string
	cmd := &cobra.Command{
		Use:   "new KIND NAME",
		Short: "Write a new plugin: a Go module that builds and passes its tests",
		Long: `Write a new plugin of KIND strategy, analysis or probe into the folder NAME, which
must not be there yet: a Go module with a program, a conformance test and a
Makefile. It builds and passes as it is:

  dona plugin new analysis my-check
  cd my-check && make test

The module is built with a folder that has the source of Dodona: --module-dir, or
else DONA_MODULE_DIR, or else the one whose bin/ this program is in. Its go.mod has
the folder in a line "replace", and takes over the versions of all other modules.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := positional("KIND", "NAME")(cmd, args); err != nil {
				return err
			}
			if !slices.Contains(scaffold.Kinds, args[0]) {
				return usage("KIND is %s: allowed are %s", limits.Quote(args[0]), strings.Join(scaffold.Kinds, ", "))
			}
			if !pluginName.MatchString(args[1]) {
				return usage("NAME is %s: allowed are 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit", limits.Quote(args[1]))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			o := scaffold.Options{Kind: args[0], Name: args[1], Module: module}
			if strings.ContainsAny(module, " \t\r\n\"'`()") {
				return usage("--module is %s: allowed is a module path such as example.com/my-check", limits.Quote(module))
			}
			var err error
			if o.Checkout, err = a.checkout(checkout); err != nil {
				return err
			}
			files, err := scaffold.Write(o.Name, o)
			switch {
			case errors.Is(err, fs.ErrExist):
				return usage("NAME is %s: %s is there already; choose another name, or move it away", limits.Quote(o.Name), o.Name)
			case err != nil:
				return failed("OUTPUT", "plugin new: %v", err)
			}
			if a.json {
				return a.object(map[string]any{"dir": o.Name, "kind": o.Kind, "files": files, "module_dir": o.Checkout})
			}
			return a.lines("wrote "+o.Name+"/: "+strings.Join(files, ", "),
				"build and test it:  cd "+o.Name+" && make test")
		},
	}
	cmd.Flags().StringVar(&checkout, "module-dir", "", "folder with the source of Dodona (default $"+moduleDirVariable+", or the one whose bin/ this program is in)")
	cmd.Flags().StringVar(&module, "module", "", "path of the new module (default example.com/NAME)")
	return cmd
}

// checkout finds the source that a new plugin is built with.
func (a *app) checkout(named string) (string, error) {
	said := "--module-dir"
	if named == "" {
		said, named = moduleDirVariable, a.getenv(moduleDirVariable)
	}
	if named != "" {
		if err := scaffold.IsCheckout(named); err != nil {
			what := "%s is %s: it %v; name the folder of a checkout"
			if said == moduleDirVariable {
				return "", configuration(what, said, limits.Quote(named), err)
			}
			return "", usage(what, said, limits.Quote(named), err)
		}
		return filepath.Abs(named)
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	dir := filepath.Dir(filepath.Dir(self))
	if err != nil || scaffold.IsCheckout(dir) != nil {
		return "", configuration("plugin new: no source of Dodona is known: name the folder of a checkout with --module-dir or %s", moduleDirVariable)
	}
	return dir, nil
}
