package plugin

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

// maxInstances is how many configured instances a process keeps. Those used
// least recently go first; the host configures one again when it is told that
// it is not known.
const maxInstances = 16_384

// configurer holds the configurations of all instances and the plugin's own
// Configure, if it has one.
type configurer struct {
	method reflect.Value // Configure(ctx, T) error; invalid = takes no configuration
	typ    reflect.Type  // T, never a pointer
	ptr    bool          // Configure takes *T
	text   string        // JSON Schema of T
	schema *schema.Schema

	mu        sync.Mutex
	instances map[string]*list.Element // of *instance
	recent    *list.List               // front = used last
	most      int                      // instances kept
}

type instance struct {
	id     string
	digest string // canonical JSON of the configuration
	config any    // T or *T
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

func newConfigurer(impl any) (*configurer, error) {
	c := &configurer{instances: make(map[string]*list.Element), recent: list.New(), most: maxInstances}
	if m := reflect.ValueOf(impl).MethodByName("Configure"); m.IsValid() {
		t := m.Type()
		if t.NumIn() != 2 || t.In(0) != contextType || t.NumOut() != 1 || t.Out(0) != errorType {
			return nil, fmt.Errorf("%T has Configure with signature %s: allowed is Configure(context.Context, T) error with T a struct or a pointer to one", impl, t)
		}
		c.method, c.typ = m, t.In(1)
		if c.typ.Kind() == reflect.Pointer {
			c.typ, c.ptr = c.typ.Elem(), true
		}
		var err error
		if c.text, err = schema.Of(c.typ); err != nil {
			return nil, err
		}
	}
	var err error
	c.schema, err = schema.Compile(c.text)
	return c, err
}

// configure checks a configuration and, unless only asked to check, makes it
// that of the instance. Repeating it changes nothing and does not call the
// plugin's Configure again.
func (c *configurer) configure(ctx context.Context, id string, config *structpb.Struct, checkOnly bool) ([]schema.Violation, error) {
	if bad := c.schema.Check(config); len(bad) > 0 {
		return bad, nil
	}
	text, err := schema.JSON(config)
	if err != nil {
		return []schema.Violation{{Message: err.Error()}}, nil //nolint:nilerr // a config that is no JSON is refused: that is an answer
	}
	if !checkOnly && c.holds(id, string(text)) {
		return nil, nil
	}
	value, bad, err := c.decode(ctx, text)
	if err != nil || len(bad) > 0 || checkOnly {
		return bad, err
	}
	c.keep(&instance{id: id, digest: string(text), config: value})
	return nil, nil
}

func (c *configurer) decode(ctx context.Context, text []byte) (any, []schema.Violation, error) {
	if !c.method.IsValid() {
		return nil, nil, nil
	}
	v := reflect.New(c.typ)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v.Interface()); err != nil {
		return nil, []schema.Violation{{Message: err.Error()}}, nil //nolint:nilerr // as above
	}
	if !c.ptr {
		v = v.Elem()
	}
	out := c.method.Call([]reflect.Value{reflect.ValueOf(ctx), v})
	if err, _ := out[0].Interface().(error); err != nil {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, []schema.Violation{{Message: err.Error()}}, nil
	}
	return v.Interface(), nil, nil
}

func (c *configurer) holds(id, digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.instances[id]
	return ok && e.Value.(*instance).digest == digest
}

func (c *configurer) keep(i *instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.instances[i.id]; ok {
		e.Value = i
		c.recent.MoveToFront(e)
		return
	}
	c.instances[i.id] = c.recent.PushFront(i)
	for len(c.instances) > c.most {
		last := c.recent.Back()
		c.recent.Remove(last)
		delete(c.instances, last.Value.(*instance).id)
	}
}

// lookup returns the configuration of an instance, and false when the plugin
// takes one and was not given it.
func (c *configurer) lookup(id string) (any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.instances[id]
	if !ok {
		return nil, !c.method.IsValid()
	}
	c.recent.MoveToFront(e)
	return e.Value.(*instance).config, true
}
