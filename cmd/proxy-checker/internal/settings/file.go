package settings

import (
	"time"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/plugins"
)

// file is what the file says.
type file struct {
	control startup.ControlPlane
	dir     string
	drain   time.Duration
	plugins map[plugins.ID]plugins.PluginConfig
}

// readFile reads a file, none when it has no name.
func readFile(name string) (*file, error) {
	f := &file{control: startup.ControlPlane{Key: "checkerTLS", Kind: "checker"}, drain: defaultDrain, plugins: map[plugins.ID]plugins.PluginConfig{}}
	err := startup.ReadFile(name, strict.Fields{
		"controlPlane": f.control.Fields(name),
		"checker": func(v strict.Value) {
			v.Fields(strict.Fields{"drain": func(v strict.Value) { v.Duration(&f.drain, time.Second, time.Hour) }})
		},
		"plugins": func(v strict.Value) {
			v.Fields(strict.Fields{"dir": startup.Path(name, &f.dir), "probe": f.readProbes, "backoff": startup.Other, "strategy": startup.Other, "analysis": startup.Other})
		},
		"store": startup.Other, "audit": startup.Other, "identity": startup.Other, "http": startup.Other, "gateway": startup.Other,
	})
	if err != nil {
		return nil, err
	}
	return f, f.control.Check()
}

// readProbes reads the settings of probes by their names.
func (f *file) readProbes(v strict.Value) {
	v.Entries(limits.Probes, func(name string, v strict.Value) {
		if err := limits.Name(name); err != nil {
			v.Refuse("%s", err)
			return
		}
		var c plugins.PluginConfig
		v.Fields(strict.Fields{
			"env": func(v strict.Value) {
				c.Env = map[string]string{}
				v.Entries(64, func(key string, v strict.Value) {
					var value string
					v.String(&value, nil)
					c.Env[key] = value
				})
			},
			"deadline":         func(v strict.Value) { v.Duration(&c.Deadline, 100*time.Millisecond, time.Minute) },
			"required":         func(v strict.Value) { v.Bool(&c.Required) },
			"override_builtin": func(v strict.Value) { v.Bool(&c.OverrideBuiltin) },
		})
		f.plugins[plugins.ID{Kind: plugins.KindProbe, Name: name}] = c
	})
}
