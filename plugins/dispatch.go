package plugins

import (
	"fmt"
	"os"

	"github.com/dodona-project/dodona/plugins/restrict"
	"github.com/dodona-project/dodona/plugins/watchdog"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// builtinArg is the hidden first argument with which a program becomes one of
// its built-in plugins; the second one names it.
const builtinArg = "__dona-plugin"

// Dispatch turns this process into a built-in plugin, the watchdog, or what becomes
// a restricted plugin, when the host started it as one, and then never returns. Otherwise it only keeps
// descriptors that the process inherited from its plugins.
// It has to be the first statement of main of a program that makes a Host:
// nothing may be opened, listened on or printed before it.
func Dispatch(builtins []*plugin.Plugin) {
	if len(os.Args) < 2 || (os.Args[1] != builtinArg && os.Args[1] != watchdog.Arg && os.Args[1] != restrict.Arg) {
		keepInherited()
		return
	}
	if os.Getenv(wire.CookieKey) != wire.CookieValue {
		fmt.Fprintf(os.Stderr, "%s is for the host itself: it starts its plugins with it\n", os.Args[1])
		os.Exit(2)
	}
	if os.Args[1] == restrict.Arg {
		restrict.Main()
	}
	if os.Args[1] == watchdog.Arg {
		watchdog.Main()
		os.Exit(0)
	}
	if len(os.Args) > 2 {
		id, err := parseID(os.Args[2])
		for _, p := range builtins {
			if err == nil && (ID{kindOf(p.Kind()), p.Name()}) == id {
				plugin.Serve(p)
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s %q: there is no such built-in\n", builtinArg, os.Args[2:])
	os.Exit(2)
}

// BuiltinArgs are the arguments with which a program that calls Dispatch becomes
// one of its built-in plugins. Conformance tests start built-ins so.
func BuiltinArgs(id ID) []string { return []string{builtinArg, id.String()} }
