package plugins_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
)

func configOf(t testing.TB, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Two uses of a plugin share an instance exactly when both the use and the
// configuration are equal.
func TestInstancesDifferAsTheirConfigurationsDo(t *testing.T) {
	var list []any
	for i := range 20 {
		list = append(list, i)
	}
	many := make(map[string]any)
	for i := range 40 {
		many[fmt.Sprint(i)] = i
	}
	configs := []map[string]any{
		{},
		{"a": nil}, {"a": false}, {"a": true}, {"a": 0}, {"a": 1}, {"a": ""}, {"a": "0"}, {"a": "1"}, {"a": "true"}, {"a": "null"},
		{"a": []any{}}, {"a": map[string]any{}}, {"a": []any{nil}}, {"a": []any{[]any{}}}, {"a": []any{1, 2}}, {"a": []any{2, 1}}, {"a": []any{12}},
		{"a": map[string]any{"a": 1}}, {"a": map[string]any{"b": 1}}, {"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1},
		{"ab": "c"}, {"a": "bc"}, {"abc": ""}, {"": "abc"}, {"a": "b", "c": "d"}, {"a": "bcd"}, {"a": list}, many,
	}
	uses := []string{"", "a", "ab", "service/shop"}
	seen := make(map[string]string)
	for _, use := range uses {
		for i, fields := range configs {
			config := configOf(t, fields)
			id := plugins.InstanceFor(use, config).ID
			name := fmt.Sprintf("use %q with %v", use, fields)
			if len(id) != 32 {
				t.Errorf("%s has id %q", name, id)
			}
			if other, is := seen[id]; is {
				t.Errorf("%s and %s have one id", name, other)
			}
			seen[id] = name
			for range 5 { // the order of a map is another each time
				if again := plugins.InstanceFor(use, proto.Clone(config).(*structpb.Struct)).ID; again != id {
					t.Errorf("%s has ids %s and %s", name, id, again)
				}
			}
			if i == 0 && plugins.InstanceFor(use, nil).ID != id {
				t.Errorf("use %q without a configuration differs from an empty one", use)
			}
		}
	}
}

// The id of an instance is made for each call: it costs its own text and the place
// where the configuration is written.
func TestInstanceIDAllocates(t *testing.T) {
	for name, config := range map[string]*structpb.Struct{
		"no configuration": nil,
		"some fields":      configOf(t, map[string]any{"address": "http://prometheus:9090", "times": 3, "labels": map[string]any{"a": "b"}}),
	} {
		n := testing.AllocsPerRun(1000, func() { plugins.InstanceFor("service/shop", config) })
		if n > 2 {
			t.Errorf("%s: %v allocations: allowed are 2", name, n)
		}
	}
}

func BenchmarkInstanceFor(b *testing.B) {
	config := configOf(b, map[string]any{"address": "http://prometheus:9090", "timeout": "5s", "times": 3, "labels": map[string]any{"a": "b", "c": "d"}})
	b.ReportAllocs()
	for b.Loop() {
		plugins.InstanceFor("service/shop", config)
	}
}
