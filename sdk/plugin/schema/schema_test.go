package schema_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

type sample struct {
	Name  string   `json:"name" jsonschema:"maxLength=3"`
	Items []inner  `json:"items,omitempty"`
	Odd   *float64 `json:"a/b~c,omitempty" jsonschema:"minimum=1"`
}

type inner struct {
	N int `json:"n" jsonschema:"maximum=5"`
}

func TestCheck(t *testing.T) {
	text, err := schema.Of(reflect.TypeFor[*sample]())
	if err != nil {
		t.Fatal(err)
	}
	s, err := schema.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		config map[string]any
		want   string
	}{
		{map[string]any{"name": "x"}, "[]"},
		{map[string]any{"name": "xxxx"}, "[/name: maxLength: got 4, want 3]"},
		{map[string]any{"name": "x", "items": []any{map[string]any{"n": 1}, map[string]any{"n": 6}}}, "[/items/1/n: maximum: got 6, want 5]"},
		{map[string]any{"name": "x", "a/b~c": 0}, "[/a~1b~0c: minimum: got 0, want 1]"},
		{nil, "[missing property 'name']"},
	} {
		c, err := structpb.NewStruct(tc.config)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.Check(c)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.config, got, tc.want)
		}
	}
}

func TestBadSchemas(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON":         "{",
		"wrong type":       `{"type":"object","properties":7}`,
		"another document": `{"$ref":"https://example.com/other.json"}`,
		"a file":           `{"$ref":"file:///etc/passwd"}`,
		"too long":         `{"title":"` + strings.Repeat("x", schema.MaxLen) + `"}`,
	} {
		if _, err := schema.Compile(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := schema.Of(reflect.TypeFor[int]()); err == nil {
		t.Error("a number is no configuration")
	}
}

// FuzzCompile reads schemas of other programs: any text is a schema or an
// error, and a schema that compiles can be checked against.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"", "{}", "true", `{"$ref":"#"}`, `{"$dynamicRef":"#a","$dynamicAnchor":"a"}`, `{"pattern":"("}`, `{"allOf":[{"$ref":"#"}]}`} {
		f.Add(s)
	}
	c, err := structpb.NewStruct(map[string]any{"a": []any{1, "x", nil}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := schema.Compile(text); err == nil {
			s.Check(c)
		}
	})
}

// A schema is compiled only as deep as that takes no time.
func TestDepthIsBounded(t *testing.T) {
	nest := func(levels int) string {
		return strings.Repeat(`{"items":`, levels) + "{}" + strings.Repeat("}", levels)
	}
	if _, err := schema.Compile(nest(60)); err != nil {
		t.Errorf("60 levels: %v", err)
	}
	for _, levels := range []int{70, 9_000, 25_000} {
		if _, err := schema.Compile(nest(levels)); err == nil || !strings.Contains(err.Error(), "64 levels") && !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("%d levels: %v", levels, err)
		}
	}
}
