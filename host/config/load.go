package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dodona-project/dodona/host/config/strict"
)

const maxDepth = 8

// Problem is one thing that is wrong: with a key of a file, a flag or a variable.
type Problem = strict.Problem

// Error is everything that is wrong.
type Error = strict.Error

// Load makes a configuration from a file (empty = none), the environment and
// the flags that were given, by flag name. Every problem is reported in one
// *Error.
func Load(file string, environ []string, flags map[string]string) (*Config, error) {
	l := loader{config: Defaults(), from: map[string]string{}}
	if file != "" {
		l.file(file)
	}
	l.environ(environ)
	for _, s := range Settings() {
		if value, given := flags[s.Flag]; given && s.Flag != "" {
			l.set(s, "--"+s.Flag, value)
		}
	}
	l.config.Plaintext = l.config.Plaintext || l.config.ControlPlane.TLSDisabled
	l.config.Identities = !l.config.Dev && !l.config.Plaintext || l.from["bootstrap.listen"] != ""
	if len(l.problems) == 0 {
		l.problems = l.config.check(func(key string) string {
			if where := l.from[key]; where != "" {
				return where
			}
			return "default"
		})
	}
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	return l.config, nil
}

type loader struct {
	config   *Config
	from     map[string]string // key -> where its value comes from
	problems []Problem
	name     string
}

func (l *loader) add(where, key, format string, args ...any) {
	l.problems = append(l.problems, Problem{Where: where, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (l *loader) set(s Setting, where, value string) {
	l.setAs(s, s.Key, where, value)
}

// setAs is set for a key that may be another name of the setting.
func (l *loader) setAs(s Setting, written, where, value string) {
	if err := s.set(l.config, value); err != nil {
		l.add(where, written, "%s", err)
		return
	}
	l.from[s.Key] = where
}

// elsewhere are variables that begin with DONA_ and belong to other programs or
// to the plugin boundary.
var elsewhere = []string{"DONA_HOST", "DONA_IDENTITY", "DONA_BOOTSTRAP", "DONA_TOKEN", "DONA_PLUGIN", "DONA_CONFIG", "DONA_CRASH_POINT"}

func (l *loader) environ(environ []string) {
	known := map[string]Setting{}
	for _, s := range Settings() {
		known[s.Env()] = s
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if s, ok := known[name]; ok {
			l.set(s, name, value)
		} else if strings.HasPrefix(name, "DONA_") && !slices.Contains(elsewhere, name) {
			l.add(name, "", "is not a setting: known are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
}

func (l *loader) file(name string) {
	l.name = name
	data, err := strict.Load(name)
	if err != nil {
		l.add(name, "", "%s", err)
		return
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	if err := decoder.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // an empty file says nothing, which is allowed
			l.add(name, "", "is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		return
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		l.add(name, "", "has more than one document: allowed is one")
		return
	}
	settings := map[string]Setting{}
	for _, s := range Settings() {
		settings[s.Key] = s
	}
	l.mapping(doc.Content[0], "", settings, 0)
}

func (l *loader) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d:%d", l.name, n.Line, n.Column) }

// mapping walks a mapping below prefix, which ends with a dot or is empty.
func (l *loader) mapping(n *yaml.Node, prefix string, settings map[string]Setting, depth int) {
	if n.Kind != yaml.MappingNode || depth > maxDepth {
		l.add(l.at(n), strings.TrimSuffix(prefix, "."), "is not a mapping of keys to values")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		keyNode, value := n.Content[i], n.Content[i+1]
		key := prefix + keyNode.Value
		if other, ok := otherNames[key]; ok {
			key = other
		}
		switch {
		case keyNode.Kind != yaml.ScalarNode || value.Kind == yaml.AliasNode || keyNode.Anchor != "" || value.Anchor != "":
			l.add(l.at(keyNode), short(key), "uses an anchor, an alias or a key that is no word: not allowed")
			continue
		case seen[key]:
			l.add(l.at(keyNode), short(key), "is there a second time")
			continue
		}
		seen[key] = true
		if others[key] {
			if value.Kind != yaml.MappingNode {
				l.add(l.at(value), key, "is not a mapping of keys to values")
			}
			continue
		}
		if s, ok := settings[key]; ok {
			if value.Kind == yaml.MappingNode && prefix == "" && len(under(settings, key+".")) > 0 {
				l.mapping(value, key+".", settings, depth+1)
				continue
			}
			if value.Kind != yaml.ScalarNode {
				l.add(l.at(value), key, "is not a single value")
				continue
			}
			written := prefix + keyNode.Value
			if before := l.from[key]; before != "" { // by its other name: what is not in the file comes later
				l.add(l.at(value), written, "is one setting with %s, which is set at %s: leave one of them out", other(key, written), before)
				continue
			}
			l.setAs(s, written, l.at(value), value.Value)
			continue
		}
		if kind, ok := strings.CutPrefix(key, "plugins."); ok && slices.Contains(pluginKinds, kind) {
			l.plugins(value, kind)
			continue
		}
		if below := under(settings, key+"."); len(below) > 0 {
			l.mapping(value, key+".", settings, depth+1)
			continue
		}
		l.add(l.at(keyNode), short(key), "is not a setting: allowed here are %s", strings.Join(under(settings, prefix), ", "))
	}
}

// pluginKinds are the sections that settings of single plugins are in.
var pluginKinds = []string{"analysis", "probe", "strategy"}

// pluginSettings are those of a single plugin, as an error lists them.
const pluginSettings = "deadline, env, maxAddressSpaceMiB, maxConcurrency, override_builtin, required, restricted"

// under lists the words that may follow prefix.
func under(settings map[string]Setting, prefix string) []string {
	words := map[string]bool{}
	for key := range settings {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			word, _, _ := strings.Cut(rest, ".")
			words[word] = true
		}
	}
	for key := range otherNames {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			word, _, _ := strings.Cut(rest, ".")
			words[word] = true
		}
	}
	for key := range others {
		if rest, ok := strings.CutPrefix(key, prefix); ok && !strings.Contains(rest, ".") {
			words[rest] = true
		}
	}
	if prefix == "plugins." {
		for _, kind := range pluginKinds {
			words[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(words))
}

// plugins reads plugins.<kind>: a mapping of plugin names to what is set for
// them.
func (l *loader) plugins(n *yaml.Node, kind string) {
	if n.Kind != yaml.MappingNode {
		l.add(l.at(n), "plugins."+kind, "is not a mapping of plugin names to settings")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, body := n.Content[i], n.Content[i+1]
		key := "plugins." + kind + "." + short(name.Value)
		id := kind + "/" + name.Value
		if _, twice := l.config.Plugins[id]; twice {
			l.add(l.at(name), key, "is there a second time")
			continue
		}
		if body.Kind != yaml.MappingNode {
			l.add(l.at(body), key, "is not a mapping: allowed are "+pluginSettings)
			continue
		}
		l.config.Plugins[id] = l.plugin(body, key)
	}
}

func (l *loader) plugin(n *yaml.Node, prefix string) (p Plugin) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		keyNode, value := n.Content[i], n.Content[i+1]
		key := prefix + "." + short(keyNode.Value)
		if seen[keyNode.Value] {
			l.add(l.at(keyNode), key, "is there a second time")
			continue
		}
		seen[keyNode.Value] = true
		if keyNode.Value == "env" {
			p.Env = l.env(value, key)
			continue
		}
		if value.Kind != yaml.ScalarNode {
			l.add(l.at(value), key, "is not a single value")
			continue
		}
		v := value.Value
		switch keyNode.Value {
		case "required":
			p.Required = l.truth(value, key)
		case "restricted":
			p.Restricted = l.truth(value, key)
		case "override_builtin":
			p.OverrideBuiltin = l.truth(value, key)
		case "deadline":
			d, err := time.ParseDuration(v)
			if err != nil || d < time.Millisecond || d > time.Minute {
				l.add(l.at(value), key, "is %q: allowed are 1ms to 1m, with a unit", short(v))
			}
			p.Deadline = d
		case "maxConcurrency":
			c, err := strconv.Atoi(v)
			if err != nil || c < 1 || c > 1024 {
				l.add(l.at(value), key, "is %q: allowed are 1 to 1024", short(v))
			}
			p.MaxConcurrency = c
		case "maxAddressSpaceMiB":
			c, err := strconv.Atoi(v)
			if err != nil || c < 1<<10 || c > 1<<20 {
				l.add(l.at(value), key, "is %q: allowed are 1024 to 1048576", short(v))
			}
			p.AddressSpace = uint64(max(c, 0)) << 20
		default:
			l.add(l.at(keyNode), key, "is not a setting: allowed here are "+pluginSettings)
		}
	}
	return p
}

func (l *loader) truth(n *yaml.Node, key string) bool {
	if n.Value != "true" && n.Value != "false" {
		l.add(l.at(n), key, "is %q: allowed are true and false", short(n.Value))
	}
	return n.Value == "true"
}

func (l *loader) env(n *yaml.Node, key string) map[string]string {
	if n.Kind != yaml.MappingNode {
		l.add(l.at(n), key, "is not a mapping of names to values")
		return nil
	}
	env := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if _, twice := env[name.Value]; twice || name.Value == "" || strings.ContainsAny(name.Value, "=\x00") ||
			value.Kind != yaml.ScalarNode || strings.Contains(value.Value, "\x00") {
			l.add(l.at(name), key+"."+short(name.Value), "is not allowed: names without = and NUL, each once, with one value")
			continue
		}
		env[name.Value] = value.Value
	}
	return env
}
