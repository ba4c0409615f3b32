package plugins

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// maxInstances is how many instances the host remembers per plugin; those used
// least recently go first and are configured again when they are used.
const maxInstances = 16_384

// An Instance is one configured use of a plugin. The id says which (two uses
// with equal ids must have equal configurations); a plugin keeps one
// configuration per id.
type Instance struct {
	ID     string
	Config *structpb.Struct // nil = none
}

// instances remembers which instances a process was told of. The zero of a new
// process is empty: it is told before an instance's first use.
type instances struct {
	mu     sync.Mutex
	known  map[string]*list.Element // of *told
	recent *list.List
}

// told is one instance; mu is held while the plugin is told, so that calls of
// one instance tell it once.
type told struct {
	Instance
	mu   sync.Mutex
	done bool
}

func newInstances() *instances {
	return &instances{known: make(map[string]*list.Element), recent: list.New()}
}

func (i *instances) get(in Instance) *told {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e, ok := i.known[in.ID]; ok {
		i.recent.MoveToFront(e)
		return e.Value.(*told)
	}
	t := &told{Instance: in}
	i.known[in.ID] = i.recent.PushFront(t)
	for len(i.known) > maxInstances {
		last := i.recent.Back()
		i.recent.Remove(last)
		delete(i.known, last.Value.(*told).ID)
	}
	return t
}

// all returns the instances, last used first.
func (i *instances) all() []Instance {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := make([]Instance, 0, len(i.known))
	for e := i.recent.Front(); e != nil; e = e.Next() {
		list = append(list, e.Value.(*told).Instance)
	}
	return list
}

func (i *instances) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.known)
}

// ready makes sure that the process knows the instance. again forgets that it
// was told, because the process says that it does not know.
func (g *generation) ready(ctx context.Context, in Instance, again bool) error {
	t := g.instances.get(in)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done && !again {
		return nil
	}
	t.done = false
	bad, err := g.configure(ctx, in, false)
	if err != nil {
		return err
	}
	if len(bad) > 0 {
		return &ConfigError{Plugin: g.id, Violations: bad}
	}
	t.done = true
	return nil
}

func (g *generation) configure(ctx context.Context, in Instance, checkOnly bool) ([]Violation, error) {
	if bad := g.schema().Check(in.Config); len(bad) > 0 {
		return bad, nil
	}
	reply, err := pluginv1.NewLifecycleClient(g.conn).Configure(ctx, &pluginv1.ConfigureRequest{
		InstanceId: in.ID, Config: in.Config, ValidateOnly: checkOnly,
	})
	if err != nil {
		return nil, err
	}
	var bad []Violation
	for _, v := range reply.GetViolations() {
		if len(bad) == 20 {
			break
		}
		bad = append(bad, Violation{Path: g.words(v.GetPath(), 256), Message: g.words(v.GetMessage(), 512)})
	}
	return bad, nil
}

// reconfigure tells a new process, during its start, of the instances that the
// one before it had. What does not fit into the time is told at its first use.
// An instance that is refused fails its own calls, not the start.
func (g *generation) reconfigure(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, g.limits.Configure)
	defer cancel()
	for _, in := range g.instances.all() {
		err := g.ready(ctx, in, false)
		var refused *ConfigError
		switch {
		case err == nil || errors.As(err, &refused):
		case ctx.Err() != nil && parent.Err() == nil && g.anyTold():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("call of Configure not answered within %v", g.limits.Configure)
		default:
			return fmt.Errorf("call of Configure: %s", g.said(err))
		}
	}
	return nil
}

func (g *generation) anyTold() bool {
	g.instances.mu.Lock()
	defer g.instances.mu.Unlock()
	for _, e := range g.instances.known {
		if e.Value.(*told).done {
			return true
		}
	}
	return false
}
