package poolconfig

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/config/strict"
)

// keys are the paths of all keys that Render can write, which are all that Parse
// knows: see TestRenderKnowsEveryKey.
func keys(t reflect.Type, path string, all map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		all[path] = true
		return
	}
	for i := range t.NumField() {
		word, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		keys(t.Field(i).Type, strings.TrimPrefix(path+"."+word, "."), all)
	}
}

// TestRenderKnowsEveryKey: a mapping that Parse refuses names the keys that it
// knows, which are those that Render writes.
func TestRenderKnowsEveryKey(t *testing.T) {
	want := map[string]bool{}
	keys(reflect.TypeFor[document](), "", want)
	got := map[string]bool{}
	list := map[string]bool{"upstreams": true, "routings": true, "routings.upstreams": true, "routings.check.targets": true}
	unknown := regexp.MustCompile(`no such key: is not a setting \(allowed: ([^)]*)\)`)
	var ask func(before, after, path string)
	ask = func(before, after, path string) {
		_, err := Parse("f", before+"{no such key: 1}"+after)
		if err == nil {
			t.Fatalf("%s takes any key", path)
		}
		var words []string
		for _, m := range unknown.FindAllStringSubmatch(err.Error(), -1) {
			words = strings.Split(m[1], ", ")
		}
		if words == nil {
			got[path] = true // no mapping, or one of the operator's own words
		}
		for _, word := range words {
			at := strings.TrimPrefix(path+"."+word, ".")
			if list[at] {
				ask(before+"{"+word+": [", "]}"+after, at)
			} else {
				ask(before+"{"+word+": ", "}"+after, at)
			}
		}
	}
	ask("", "", "")
	for key := range want {
		if !got[key] {
			t.Errorf("Render writes %s, which Parse does not know", key)
		}
	}
	for key := range got {
		if !want[key] {
			t.Errorf("Parse knows %s, which Render does not write", key)
		}
	}
}

// TestThePageHasEveryKey compares docs/egress.md with the keys, and reads its
// example.
func TestThePageHasEveryKey(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/egress.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	all := map[string]bool{}
	keys(reflect.TypeFor[document](), "", all)
	for key := range all {
		section, rest, _ := strings.Cut(key, ".")
		_, table, ok := strings.Cut(page, "\n### `"+section+"`\n")
		table, _, _ = strings.Cut(table, "\n##")
		last := rest[strings.LastIndexByte(rest, '.')+1:]
		row := strings.NewReplacer("upstreams.", "upstreams[].", "targets.", "targets[].").Replace(rest)
		if !ok || !strings.Contains(table, "`"+row+"`") && !strings.Contains(table, ", `"+last+"` |") {
			t.Errorf("docs/egress.md has no row for %s", key)
		}
	}
	for _, d := range []time.Duration{DefaultTTL, DefaultSourceEvery, DefaultWait, DefaultTargetEvery, DefaultSafetyMargin, DefaultSnapshotValidity, DefaultSessionTTL, DefaultMaxStaleAge} {
		if !strings.Contains(page, "| `"+strict.Short(d)+"` |") {
			t.Errorf("docs/egress.md has no default of %s", strict.Short(d))
		}
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(examples) == 0 {
		t.Error("docs/egress.md has no example")
	}
	for _, e := range examples {
		if c, err := Parse("docs/egress.md", e[1]); err != nil || len(c.Warnings()) > 0 {
			t.Errorf("the example has problems: %v %v", err, c.Warnings())
		}
	}
}
