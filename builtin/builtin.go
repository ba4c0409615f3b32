// Package builtin lists the plugins that are part of the host program. They run
// as processes like all others: the program starts itself again under a hidden
// argument, and [Dispatch], the first statement of its main, turns that process
// into the plugin.
package builtin

import (
	"github.com/dodona-project/dodona/builtin/strategy/leastconnections"
	"github.com/dodona-project/dodona/builtin/strategy/roundrobin"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// version is that of every built-in: they are released with the host.
const version = "0.1.0"

// All returns the built-in plugins.
func All() []*plugin.Plugin {
	return []*plugin.Plugin{
		plugin.Strategy(roundrobin.Name, version, roundrobin.Compile,
			plugin.Summary("candidates in turn, by weight")),
		plugin.StrategyOf(leastconnections.Name, version, leastconnections.Strategy{},
			plugin.Summary("the fewest calls in flight among a few, drawn by weight")),
	}
}

// Dispatch turns this process into a built-in plugin or the host's watchdog
// when it was started as one, and then never returns. It is the first statement
// of main.
func Dispatch() { plugins.Dispatch(All()) }
