package builtin_test

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/plugintest"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// needs are what built-ins are configured with to be tested.
var needs = map[string][]plugintest.Option{
	"probe":            {plugintest.Env(builtin.ProbeAllow, "loopback"), plugintest.Config(`{"allow":["loopback"]}`)},
	"analysis/webhook": {plugintest.Config(`{"url":"http://${TARGET}/judge"}`)},
}

// inTests are the built-ins that are tested in this process each time: one of each
// kind. With faults all of them are.
var inTests = []string{"strategy/priority", "analysis/sequential", "probe/http"}

// TestConformance: every built-in keeps the promises of a plugin, in a process and
// in this one.
func TestConformance(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	options := func(id plugins.ID) []plugintest.Option {
		o := slices.Concat(needs[string(id.Kind)], needs[id.String()])
		if !everyCall {
			o = append(o, plugintest.Quick())
		}
		return o
	}
	ids := map[plugins.ID]*plugin.Plugin{}
	for _, p := range builtin.All() {
		kind, _ := plugins.KindOf(p.Kind())
		ids[plugins.ID{Kind: kind, Name: p.Name()}] = p
	}
	// They mostly wait, so more run at once than there are processors.
	reports := sync.Map{}
	var all sync.WaitGroup
	turn := make(chan struct{}, 4)
	for id := range ids {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			report, err := plugintest.Test(t.Context(), plugintest.Builtin(exe, id).With(options(id)...))
			if err != nil {
				t.Error(err)
				return
			}
			reports.Store(id, report)
		})
	}
	all.Wait()
	for id, p := range ids {
		t.Run(id.String()+"/process", func(t *testing.T) {
			report, _ := reports.Load(id)
			report.(*plugintest.Report).Tell(t)
		})
		t.Run(id.String()+"/in-process", func(t *testing.T) {
			if !everyCall && !slices.Contains(inTests, id.String()) {
				t.Skip("with faults only: one of each kind is tested here each time")
			}
			plugintest.Run(t, plugintest.InProcess(p).With(options(id)...))
		})
	}
}
