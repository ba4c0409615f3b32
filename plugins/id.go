package plugins

import (
	"fmt"
	"strings"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// A Kind is what a plugin is for, as people and configuration write it.
type Kind string

// The kinds that this host runs.
const (
	KindStrategy Kind = "strategy"
	KindAnalysis Kind = "analysis"
	KindProbe    Kind = "probe"

	// KindUnknown is that of a file which does not say what it is. It never runs.
	KindUnknown Kind = "unknown"
)

var wireKinds = map[Kind]pluginv1.Kind{
	KindStrategy: pluginv1.Kind_KIND_STRATEGY,
	KindAnalysis: pluginv1.Kind_KIND_ANALYSIS,
	KindProbe:    pluginv1.Kind_KIND_PROBE,
}

// KindWords are the kinds as an error lists them.
const KindWords = "strategy, analysis and probe"

func kindOf(k pluginv1.Kind) Kind {
	for word, wire := range wireKinds {
		if wire == k {
			return word
		}
	}
	return Kind(strings.ToLower(strings.TrimPrefix(k.String(), "KIND_")))
}

// KindOf returns the kind that a description names, and whether this host runs
// it.
func KindOf(k pluginv1.Kind) (kind Kind, runs bool) {
	kind = kindOf(k)
	_, runs = wireKinds[kind]
	return kind, runs
}

// An ID names a plugin: two kinds may have a plugin of the same name.
type ID struct {
	Kind Kind
	Name string
}

func (id ID) String() string { return string(id.Kind) + "/" + id.Name }

func parseID(s string) (ID, error) {
	kind, name, ok := strings.Cut(s, "/")
	if !ok || name == "" {
		return ID{}, fmt.Errorf("plugin %q: allowed is KIND/NAME", s)
	}
	return ID{Kind: Kind(kind), Name: name}, nil
}
