package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/metadata"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/plugins"
)

// Plugins is what operators need of the plugins; *plugins.Host is one.
type Plugins interface {
	List() []*donav1.PluginStatus
	Status(kind plugins.Kind, name string) (*donav1.PluginStatus, error)
	Reload(ctx context.Context, kind plugins.Kind, name string) error
	Reset(kind plugins.Kind, name string) error
	Tail(ctx context.Context, id plugins.ID, last int, follow bool, each func(plugins.LogLine) error) error
}

const (
	maxTail     = 1000 // lines
	defaultTail = 100
	namesShown  = 20 // of plugins, in an error
)

// pluginKinds are those that a request may name, whether this host has one or
// not. A file that does not say what it is has the last one.
var pluginKinds = []string{string(plugins.KindStrategy), string(plugins.KindProbe), string(plugins.KindAnalysis), string(plugins.KindUnknown)}

// ListPlugins shows every plugin the host knows.
func (s *HostAdmin) ListPlugins(context.Context, *donav1.ListPluginsRequest) (*donav1.ListPluginsReply, error) {
	return &donav1.ListPluginsReply{Plugins: s.Plugins.List()}, nil
}

// ReloadPlugin replaces a plugin's process by a new one when that is proven. It
// is in the audit log before it is done; the host's own entry follows when the
// new process has taken over. A caller that goes away does not end the reload.
func (s *HostAdmin) ReloadPlugin(ctx context.Context, req *donav1.PluginRequest) (*donav1.PluginStatus, error) {
	id, err := s.ask(ctx, string(plugins.EventReload), req)
	if err != nil {
		return nil, err
	}
	if err := s.Plugins.Reload(ctx, id.Kind, id.Name); err != nil {
		return nil, s.pluginRefused(ctx, id, err)
	}
	return s.pluginStatus(ctx, id)
}

// ResetPlugin brings a plugin back that waits, is quarantined or was rejected,
// and forgets how often it ended. It does not wait for the start.
func (s *HostAdmin) ResetPlugin(ctx context.Context, req *donav1.PluginRequest) (*donav1.PluginStatus, error) {
	id, err := s.ask(ctx, "plugin.reset", req)
	if err != nil {
		return nil, err
	}
	if err := s.Plugins.Reset(id.Kind, id.Name); err != nil {
		return nil, s.pluginRefused(ctx, id, err)
	}
	return s.pluginStatus(ctx, id)
}

// TailPluginLogs sends the last lines of a plugin's log and, when asked to
// follow, those that come. A client that reads too slowly loses lines and is told
// how many in a line of the host's own.
func (s *HostAdmin) TailPluginLogs(req *donav1.TailPluginLogsRequest, stream donav1.HostAdmin_TailPluginLogsServer) error {
	id, err := s.known(req.Kind, req.Name)
	if err != nil {
		return err
	}
	if req.Last > maxTail {
		return refusal.Field("last", "is %d: allowed are 0 (%d) to %d", req.Last, defaultTail, maxTail)
	}
	last := int(req.Last)
	if last == 0 {
		last = defaultTail
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.Stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	// A plugin may say nothing for long: who follows learns at once that it does.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	var broken error // the stream's own
	err = s.Plugins.Tail(ctx, id, last, req.Follow, func(l plugins.LogLine) error {
		out := &donav1.PluginLogLine{UnixMs: l.Time.UnixMilli(), Level: l.Level, Text: l.Text, Generation: l.Generation}
		if l.Missed > 0 {
			gap := &donav1.PluginLogLine{UnixMs: out.UnixMs, Level: "warn", Generation: l.Generation,
				Text: fmt.Sprintf("%d lines are missing here: they came faster than they were read", l.Missed)}
			if broken = stream.Send(gap); broken != nil {
				return broken
			}
		}
		broken = stream.Send(out)
		return broken
	})
	if err == nil || broken != nil {
		return broken
	}
	return s.pluginRefused(ctx, id, err)
}

// ask checks what an operator wants done with a plugin and puts it into the audit
// log: nothing is done that is not there.
func (s *HostAdmin) ask(ctx context.Context, kind string, req *donav1.PluginRequest) (plugins.ID, error) {
	id, err := s.known(req.Kind, req.Name)
	if err != nil {
		return id, err
	}
	is, err := s.pluginStatus(ctx, id)
	if err != nil {
		return id, err
	}
	entry := audit.Entry{Kind: kind, Actor: actor(ctx), Detail: map[string]string{
		"plugin_kind": req.Kind, "name": req.Name, "version": is.GetVersion(), "digest": is.GetDigest(),
		"generation": strconv.FormatUint(is.GetGeneration(), 10), "reason": "asked for by an operator",
	}}
	return id, s.Actions.Update(ctx, store.Hard, func(tx store.Tx) error { return s.Audit.Append(tx, audit.HostChain, entry) })
}

// known checks that kind and name are those of a plugin.
func (s *HostAdmin) known(kind, name string) (plugins.ID, error) {
	id := plugins.ID{Kind: plugins.Kind(kind), Name: name}
	if !slices.Contains(pluginKinds, kind) {
		return id, refusal.Field("kind", "is %s: allowed are %s", limits.QuoteOrEmpty(kind), strings.Join(pluginKinds, ", "))
	}
	if err := refusal.Check("name", limits.Name(name)); err != nil {
		return id, err
	}
	if _, err := s.Plugins.Status(id.Kind, id.Name); err != nil {
		return id, s.noPlugin(id)
	}
	return id, nil
}

// noPlugin says which plugins of the kind there are.
func (s *HostAdmin) noPlugin(id plugins.ID) error {
	var names []string
	for _, p := range s.Plugins.List() {
		if p.GetKind() == string(id.Kind) {
			names = append(names, p.GetName())
		}
	}
	there := "there is none of this kind"
	if more := len(names) - namesShown; more > 0 {
		names = append(names[:namesShown], fmt.Sprintf("%d more", more))
	}
	if len(names) > 0 {
		there = "there are " + strings.Join(names, ", ")
	}
	return refusal.New(refusal.NotFound, "there is no %s plugin %s: %s", id.Kind, limits.Quote(id.Name), there)
}

func (s *HostAdmin) pluginStatus(ctx context.Context, id plugins.ID) (*donav1.PluginStatus, error) {
	is, err := s.Plugins.Status(id.Kind, id.Name)
	if err != nil {
		return nil, s.pluginRefused(ctx, id, err)
	}
	return is, nil
}

// pluginRefused turns what the plugins answer into a refusal.
func (s *HostAdmin) pluginRefused(ctx context.Context, id plugins.ID, err error) error {
	select {
	case <-s.Stopping:
		return errStopping
	default:
	}
	switch {
	case errors.Is(err, plugins.ErrUnknown):
		return s.noPlugin(id)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, plugins.ErrFollowers):
		return refusal.New(refusal.Exhausted, "%d clients follow the log of %s, and no more may: end one of them, or read it without following", plugins.MaxFollowers, id)
	}
	text := strings.Join(strings.Fields(err.Error()), " ") // in one line, whatever the plugin said
	if errors.Is(err, plugins.ErrAway) {
		text += fmt.Sprintf("; cure that, then bring it back with: dona plugin reset %s", id)
	}
	return &refusal.Error{Kind: refusal.Precondition, Reason: "plugin", Text: text}
}
