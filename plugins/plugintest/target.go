package plugintest

import (
	"fmt"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// A Target is a plugin to test. Make it with Command, Builtin or InProcess; With adds
// what it needs. It is a value: With changes none but what it returns.
type Target struct {
	name  string // for people
	path  string
	args  []string
	local *plugin.Plugin // served in this process; nil = path is run
	part  bool           // path is another program too: it describes nothing by itself

	config string // JSON; empty = none
	noData string // JSON; empty = config
	env    map[string]string
	quick  bool
}

// Command is a plugin that is a program, with the arguments that the host would
// give it, which are none for a file in a plugin directory.
func Command(path string, args ...string) Target {
	return Target{name: path, path: path, args: args}
}

// Builtin is a built-in plugin as the host runs it: this program, which calls
// [plugins.Dispatch] first, as a process of its own. exe is the program's file.
func Builtin(exe string, id plugins.ID) Target {
	return Target{name: "built-in " + id.String(), path: exe, args: plugins.BuiltinArgs(id), part: true}
}

// InProcess serves a plugin in this process, over memory: for tests that want to
// look at it with a debugger. What only a process can show is skipped.
func InProcess(p *plugin.Plugin) Target {
	return Target{name: p.Name() + " in this process", local: p}
}

// An Option adds to a Target.
type Option func(*Target)

// With returns the target with options.
func (t Target) With(options ...Option) Target {
	for _, o := range options {
		o(&t)
	}
	return t
}

// Config is the configuration of the instances that are tested, as JSON. A plugin
// that does not work without one needs it.
func Config(json string) Option { return func(t *Target) { t.config = json } }

// NoData is a configuration, as JSON, with which there is nothing to measure: an
// analysis that finds its data by its configuration must not pass with it. Without
// this option Config is taken, the windows are empty and no server answers.
func NoData(json string) Option { return func(t *Target) { t.noData = json } }

// Env adds a variable to the plugin's environment, as plugins.<kind>.<name>.env does.
func Env(name, value string) Option {
	return func(t *Target) {
		env := map[string]string{name: value}
		for k, v := range t.env {
			if k != name {
				env[k] = v
			}
		}
		t.env = env
	}
}

// Quick has fewer calls made, for a test that runs often: 200 at once and 1,000 to
// look for leaks. A leak is then found only when it is a large one.
func Quick() Option { return func(t *Target) { t.quick = true } }

// check reads the options and finds the file.
func (t Target) check() (Target, error) {
	for _, text := range []string{t.config, t.noData} {
		if _, err := parseConfig(text, ""); err != nil {
			return t, err
		}
	}
	if t.local != nil {
		return t, nil
	}
	path, err := filepath.Abs(t.path)
	if err != nil {
		return t, fmt.Errorf("find %s: %w", t.path, err)
	}
	t.path = path
	return t, nil
}

// parseConfig reads a configuration, with address in the place of ${TARGET}; nil
// is none.
func parseConfig(text, address string) (*structpb.Struct, error) {
	if text == "" {
		return nil, nil
	}
	s := new(structpb.Struct)
	if err := protojson.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("configuration %.64q is not a JSON object: %w", text, err)
	}
	for _, v := range s.GetFields() {
		substitute(v, address)
	}
	return s, nil
}
