// Package schema makes JSON Schemas (2020-12) from Go types and checks plugin
// configurations against them. The SDK uses it inside a plugin, the host uses
// it for configurations of plugins that are not running just now. A schema is
// untrusted text: nothing outside it is ever loaded, and its size is bounded.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	reflector "github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"google.golang.org/protobuf/types/known/structpb"
)

// MaxLen is the longest schema that Compile takes, in bytes.
const MaxLen = 256 << 10

// maxDepth is how deep a schema may be nested: what compiles it takes time and
// memory with the square of its depth, and more.
const maxDepth = 64

// maxViolations is how many violations one check reports.
const maxViolations = 20

// location is the name under which the one document is known; it is never
// opened.
const location = "dona:config"

// Of returns the JSON Schema of struct type t as one self-contained document.
// Fields without omitempty are required, unknown fields are not allowed, and
// the tags of github.com/invopop/jsonschema are understood.
func Of(t reflect.Type) (string, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return "", fmt.Errorf("schema of %s: a configuration is a struct", t)
	}
	r := &reflector.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true}
	text, err := json.Marshal(r.ReflectFromType(t))
	if err != nil {
		return "", fmt.Errorf("schema of %s: %w", t, err)
	}
	return string(text), nil
}

// A Violation is one thing wrong with a configuration.
type Violation struct {
	Path    string // JSON Pointer into the configuration; empty = the whole
	Message string
}

func (v Violation) String() string {
	if v.Path == "" {
		return v.Message
	}
	return v.Path + ": " + v.Message
}

// A Schema is a compiled schema. It may be used concurrently.
type Schema struct {
	compiled *validator.Schema // nil = takes no configuration
}

// Compile reads a schema. Empty text is the schema of a plugin that takes no
// configuration.
func Compile(text string) (s *Schema, err error) {
	if text == "" {
		return &Schema{}, nil
	}
	if len(text) > MaxLen {
		return nil, fmt.Errorf("config schema has %d bytes: allowed are at most %d", len(text), MaxLen)
	}
	// The text comes from another program: a defect it finds in the compiler
	// is a bad schema, not our end.
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("config schema cannot be compiled: %v", r)
		}
	}()
	doc, err := validator.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("config schema is not JSON: %w", err)
	}
	if deep := depth(doc, maxDepth); deep > maxDepth {
		return nil, fmt.Errorf("config schema is nested more than %d levels deep: make it flatter", maxDepth)
	}
	c := validator.NewCompiler()
	c.DefaultDraft(validator.Draft2020)
	c.UseLoader(nothing{})
	if err := c.AddResource(location, doc); err != nil {
		return nil, fmt.Errorf("config schema: %w", err)
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, fmt.Errorf("config schema: %w", err)
	}
	return &Schema{compiled: compiled}, nil
}

// depth counts the levels of a JSON value, and stops counting after most.
func depth(v any, most int) (deep int) {
	if most < 0 {
		return 1
	}
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deep = max(deep, depth(e, most-1))
		}
	case []any:
		for _, e := range v {
			deep = max(deep, depth(e, most-1))
		}
	default:
		return 0
	}
	return deep + 1
}

// nothing loads nothing: a schema that points outside itself is refused.
type nothing struct{}

func (nothing) Load(string) (any, error) {
	return nil, errors.New("a schema may not refer to other documents")
}

// Check returns what is wrong with config, at most 20 violations; none means
// that it is accepted. A nil config is the empty object.
func (s *Schema) Check(config *structpb.Struct) (violations []Violation) {
	defer func() {
		if r := recover(); r != nil {
			violations = []Violation{{Message: fmt.Sprintf("cannot be checked: %v", r)}}
		}
	}()
	if s.compiled == nil {
		if len(config.GetFields()) > 0 {
			return []Violation{{Message: "this plugin takes no configuration: leave it empty"}}
		}
		return nil
	}
	text, err := JSON(config)
	if err != nil {
		return []Violation{{Message: err.Error()}}
	}
	value, err := validator.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return []Violation{{Message: err.Error()}}
	}
	err = s.compiled.Validate(value)
	if err == nil {
		return nil
	}
	var bad *validator.ValidationError
	if !errors.As(err, &bad) {
		return []Violation{{Message: err.Error()}}
	}
	return leaves(bad, nil)
}

var english = message.NewPrinter(language.English)

// leaves collects the causes without causes of their own: the places a person
// has to change.
func leaves(e *validator.ValidationError, found []Violation) []Violation {
	if len(found) >= maxViolations {
		return found
	}
	if len(e.Causes) == 0 {
		return append(found, Violation{Path: pointer(e.InstanceLocation), Message: e.ErrorKind.LocalizedString(english)})
	}
	for _, cause := range e.Causes {
		found = leaves(cause, found)
	}
	return found
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

func pointer(path []string) string {
	var b strings.Builder
	for _, p := range path {
		b.WriteByte('/')
		b.WriteString(escape.Replace(p))
	}
	return b.String()
}

// JSON encodes a configuration; nil is the empty object.
func JSON(config *structpb.Struct) ([]byte, error) {
	if config == nil {
		return []byte("{}"), nil
	}
	text, err := json.Marshal(config.AsMap())
	if err != nil {
		return nil, fmt.Errorf("config cannot be written as JSON: %w", err)
	}
	return text, nil
}
