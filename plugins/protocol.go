package plugins

import (
	"fmt"

	goplugin "github.com/hashicorp/go-plugin"

	"github.com/dodona-project/dodona/plugins/runner"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// oldestProtocol is the first wire major that there ever was.
const oldestProtocol = 1

// protocolsFrom are the wire majors that a host understands, newest first: its own
// and the one before, so that host and plugins need not be upgraded on one day.
func protocolsFrom(newest int) []int {
	if newest <= oldestProtocol {
		return []int{oldestProtocol}
	}
	return []int{newest, newest - 1}
}

// spoken are those of this host.
func spoken() []int { return protocolsFrom(wire.ProtocolVersion) }

func protocolWords(protocols []int) string {
	if len(protocols) == 1 {
		return fmt.Sprint(protocols[0])
	}
	return fmt.Sprintf("%d and %d", protocols[0], protocols[1])
}

// pluginSets has go-plugin take the newest one that the plugin speaks, too. All mean
// the same services: a major is for what fields mean, and who needs to know asks the
// generation.
func pluginSets(protocols []int) map[int]goplugin.PluginSet {
	sets := make(map[int]goplugin.PluginSet, len(protocols))
	for _, p := range protocols {
		sets[p] = goplugin.PluginSet{wire.PluginSet: runner.Connection{}}
	}
	return sets
}
