package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/plugins"
)

// fakePlugins are three plugins without processes. A test says what a reload and
// a tail do.
type fakePlugins struct {
	mu     sync.Mutex
	list   []*donav1.PluginStatus
	reload func(context.Context) error
	tail   func(ctx context.Context, last int, follow bool, each func(plugins.LogLine) error) error
	acted  []string
}

func newFakePlugins() *fakePlugins {
	return &fakePlugins{
		list: []*donav1.PluginStatus{
			{Kind: "analysis", Name: "prometheus", State: "ready", Version: "0.1.0", Digest: "sha256:aa", Generation: 4, Pid: 77},
			{Kind: "strategy", Name: "least-connections", State: "quarantined"},
			{Kind: "strategy", Name: "round-robin", State: "ready"},
		},
		reload: func(context.Context) error { return nil },
		tail:   func(context.Context, int, bool, func(plugins.LogLine) error) error { return nil },
	}
}

func (f *fakePlugins) set(change func(*fakePlugins)) { f.mu.Lock(); defer f.mu.Unlock(); change(f) }

func (f *fakePlugins) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.acted...)
}

func (f *fakePlugins) List() (list []*donav1.PluginStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.list {
		list = append(list, proto.CloneOf(p))
	}
	return list
}

func (f *fakePlugins) Status(kind plugins.Kind, name string) (*donav1.PluginStatus, error) {
	for _, p := range f.List() {
		if p.Kind == string(kind) && p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s %s: %w", kind, name, plugins.ErrUnknown)
}

func (f *fakePlugins) act(verb string, kind plugins.Kind, name string) func(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acted = append(f.acted, fmt.Sprintf("%s %s/%s", verb, kind, name))
	return f.reload
}

func (f *fakePlugins) Reload(ctx context.Context, kind plugins.Kind, name string) error {
	return f.act("reload", kind, name)(ctx)
}

func (f *fakePlugins) Reset(kind plugins.Kind, name string) error {
	f.act("reset", kind, name)
	f.set(func(f *fakePlugins) { f.list[1].State = "starting" })
	return nil
}

func (f *fakePlugins) Tail(ctx context.Context, id plugins.ID, last int, follow bool, each func(plugins.LogLine) error) error {
	f.act("tail", id.Kind, id.Name)
	f.mu.Lock()
	tail := f.tail
	f.mu.Unlock()
	return tail(ctx, last, follow, each)
}

func prometheus() *donav1.PluginRequest {
	return &donav1.PluginRequest{Kind: "analysis", Name: "prometheus"}
}

// hostChain is what the audit chain of the host itself holds.
func (e *edge) hostChain() (entries []map[string]any) {
	e.t.Helper()
	fatal(e.t, e.store.View(context.Background(), func(tx store.ReadTx) error {
		entries = nil
		lines, err := tx.ReadLog("audit/@host", 1, 1000)
		for _, l := range lines {
			var entry map[string]any
			if err := json.Unmarshal(l.Payload, &entry); err != nil {
				return err
			}
			entries = append(entries, entry)
		}
		return err
	}))
	return entries
}

// lines reads a tail to its end.
func lines(s grpc.ServerStreamingClient[donav1.PluginLogLine], err error) (all []*donav1.PluginLogLine, _ error) {
	for err == nil {
		var l *donav1.PluginLogLine
		if l, err = s.Recv(); err == nil {
			all = append(all, l)
		}
	}
	if errors.Is(err, io.EOF) {
		return all, nil
	}
	return all, err
}

// TestBadPluginRequests: every refusal names its field, and nothing was written,
// reloaded, reset or read.
func TestBadPluginRequests(t *testing.T) {
	e := newEdge(t)
	before := e.written()
	type bad struct {
		name, kind, plugin string
		code               codes.Code
		field              string
	}
	rows := []bad{
		{"nothing", "", "", codes.InvalidArgument, "kind"},
		{"no kind", "", "prometheus", codes.InvalidArgument, "kind"},
		{"no name", "analysis", "", codes.InvalidArgument, "name"},
		{"upper case", "Analysis", "prometheus", codes.InvalidArgument, "kind"},
		{"unknown", "analysis", "nope", codes.NotFound, "there are prometheus"},
		{"of another kind", "strategy", "prometheus", codes.NotFound, "there are least-connections, round-robin"},
		{"a kind without plugins", "probe", "http", codes.NotFound, "there is none of this kind"},
		{"the longest name", "analysis", strings.Repeat("x", 128), codes.NotFound, "there are prometheus"},
	}
	for _, n := range names {
		rows = append(rows, bad{"kind " + n.what, n.value, "prometheus", codes.InvalidArgument, "kind"},
			bad{"name " + n.what, "analysis", n.value, codes.InvalidArgument, "name"})
	}
	for _, r := range rows {
		req := &donav1.PluginRequest{Kind: r.kind, Name: r.plugin}
		_, err := e.admin.ReloadPlugin(ctx(t), req)
		refused(t, "ReloadPlugin: "+r.name, err, r.code, r.field)
		_, err = e.admin.ResetPlugin(ctx(t), req)
		refused(t, "ResetPlugin: "+r.name, err, r.code, r.field)
		_, err = lines(e.admin.TailPluginLogs(ctx(t), &donav1.TailPluginLogsRequest{Kind: r.kind, Name: r.plugin}))
		refused(t, "TailPluginLogs: "+r.name, err, r.code, r.field)
	}
	for _, last := range []uint32{1001, 1 << 31} {
		_, err := lines(e.admin.TailPluginLogs(ctx(t), &donav1.TailPluginLogsRequest{Kind: "analysis", Name: "prometheus", Last: last}))
		refused(t, fmt.Sprintf("TailPluginLogs: last %d", last), err, codes.InvalidArgument, "last")
	}
	if now := e.written(); now != before {
		t.Error("something was stored")
	}
	if did := e.plugins.done(); len(did) != 0 {
		t.Errorf("the plugins were asked for %q", did)
	}
}

// TestPluginVerbs: a reload and a reset are in the audit log, with who asked, by
// the time they are done.
func TestPluginVerbs(t *testing.T) {
	e := newEdge(t)
	atReload := 0
	e.plugins.set(func(f *fakePlugins) {
		f.reload = func(context.Context) error {
			atReload = len(e.hostChain())
			f.set(func(f *fakePlugins) { f.list[0].Generation = 5 })
			return nil
		}
	})
	is, err := e.admin.ReloadPlugin(ctx(t), prometheus())
	if err != nil || is.Generation != 5 || is.Name != "prometheus" || is.State != "ready" {
		t.Fatalf("reload: %v, %v", is, err)
	}
	if atReload != 1 {
		t.Errorf("%d entries when the reload began, want the one of it", atReload)
	}
	is, err = e.admin.ResetPlugin(ctx(t), &donav1.PluginRequest{Kind: "strategy", Name: "least-connections"})
	if err != nil || is.State != "starting" {
		t.Fatalf("reset: %v, %v", is, err)
	}
	chain := e.hostChain()
	if len(chain) != 2 {
		t.Fatalf("the chain is %v", chain)
	}
	for i, want := range []struct{ kind, name, generation string }{
		{"plugin.reload", "prometheus", "4"}, {"plugin.reset", "least-connections", "0"},
	} {
		detail, _ := chain[i]["detail"].(map[string]any)
		if chain[i]["kind"] != want.kind || chain[i]["actor"] != api.DevActor || detail["name"] != want.name || detail["generation"] != want.generation {
			t.Errorf("entry %v, want %+v by %s", chain[i], want, api.DevActor)
		}
	}
	if did := fmt.Sprint(e.plugins.done()); did != "[reload analysis/prometheus reset strategy/least-connections]" {
		t.Errorf("done was %s", did)
	}
}

// TestReloadFails: what each failure is to the caller.
func TestReloadFails(t *testing.T) {
	e := newEdge(t)
	for _, tc := range []struct {
		err   error
		code  codes.Code
		words string
	}{
		{errors.New("reload plugin analysis/prometheus: generation 4 stays: no handshake within 10s; it said: a\nb"), codes.FailedPrecondition, "generation 4 stays: no handshake within 10s; it said: a b"},
		{fmt.Errorf("Describe: %w", status.Error(codes.Unknown, "odd")), codes.FailedPrecondition, "odd"}, // the plugin's code is not ours
		{fmt.Errorf("plugin analysis/prometheus is quarantined (ended 5 times): %w", plugins.ErrAway), codes.FailedPrecondition, "dona plugin reset analysis/prometheus"},
		{errors.New(strings.Repeat("é", 2000)), codes.FailedPrecondition, ""},
		{fmt.Errorf("gone: %w", plugins.ErrUnknown), codes.NotFound, "there are prometheus"},
	} {
		e.plugins.set(func(f *fakePlugins) { f.reload = func(context.Context) error { return tc.err } })
		_, err := e.admin.ReloadPlugin(ctx(t), prometheus())
		refused(t, tc.err.Error()[:20], err, tc.code, tc.words)
	}
	e.plugins.set(func(f *fakePlugins) {
		f.reload = func(context.Context) error { e.stop(); return plugins.ErrAway }
	})
	_, err := e.admin.ReloadPlugin(ctx(t), prometheus())
	refused(t, "the host stops", err, codes.Unavailable, "")
}

// TestReloadHasItsOwnCap: a start takes longer than other calls may; and a caller
// that goes away is not waited for.
func TestReloadHasItsOwnCap(t *testing.T) {
	e := newEdge(t)
	left := make(chan time.Duration, 1)
	ended := make(chan error, 1)
	e.plugins.set(func(f *fakePlugins) {
		f.reload = func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
	})
	c, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	answer := make(chan error, 1)
	go func() { _, err := e.admin.ReloadPlugin(c, prometheus()); answer <- err }()
	if d := <-left; d <= 10*time.Second || d > time.Minute {
		t.Errorf("a reload has %v, want up to a minute", d)
	}
	began := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the reload ends with %v", err)
	}
	t.Logf("the reload learned after %v that its caller is gone", time.Since(began))
	refused(t, "a caller that goes away", <-answer, codes.Canceled, "")
	for method, rule := range api.Policy {
		if rule.Cap != 0 && !slices.Contains([]string{
			donav1.HostAdmin_ReloadPlugin_FullMethodName, // starts a process
			donav1.HostAdmin_CheckStore_FullMethodName,   // reads all of the store
			donav1.HostAdmin_BackupStore_FullMethodName,
			controlplanev1.PoolAdmin_ImportProxies_FullMethodName, // many transactions, one after the other
		}, method) {
			t.Errorf("%s may take %v: say here why", method, rule.Cap)
		}
	}
}

// TestNoReloadWithoutAudit: with a store that takes no entry nothing is done.
func TestNoReloadWithoutAudit(t *testing.T) {
	var fault atomic.Pointer[error]
	e := newEdge(t, withStore(func(s store.Store) store.Store { return faulty{s, &fault} }))
	blocked := error(nil)
	for name, f := range map[string]*error{"full": &store.ErrFull, "read-only": &store.ErrReadOnly, "blocked": &blocked} {
		fault.Store(f)
		for verb, do := range map[string]func(context.Context, *donav1.PluginRequest, ...grpc.CallOption) (*donav1.PluginStatus, error){
			"ReloadPlugin": e.admin.ReloadPlugin, "ResetPlugin": e.admin.ResetPlugin,
		} {
			_, err := do(ctx(t), prometheus())
			refused(t, verb+" with the store "+name, err, codes.Unavailable, "")
			reason := ""
			for _, d := range status.Convert(err).Details() {
				if i, ok := d.(*errdetails.ErrorInfo); ok {
					reason = i.Reason
				}
			}
			if reason != "audit" {
				t.Errorf("%s with the store %s: the reason is %q, want audit", verb, name, reason)
			}
		}
	}
	if did := e.plugins.done(); len(did) != 0 {
		t.Errorf("done was %q", did)
	}
	fault.Store(nil)
	_, err := e.admin.ResetPlugin(ctx(t), prometheus())
	fatal(t, err)
}

func TestTailPluginLogs(t *testing.T) {
	e := newEdge(t)
	at := time.UnixMilli(1_700_000_000_123)
	var asked int
	e.plugins.set(func(f *fakePlugins) {
		f.tail = func(_ context.Context, last int, follow bool, each func(plugins.LogLine) error) error {
			asked = last
			if err := each(plugins.LogLine{Time: at, Level: "info", Text: "one a=1", Generation: 3}); err != nil {
				return err
			}
			return each(plugins.LogLine{Time: at, Level: "error", Text: "two", Generation: 4, Missed: 7})
		}
	})
	for last, want := range map[uint32]int{0: 100, 1: 1, 1000: 1000} {
		got, err := lines(e.admin.TailPluginLogs(ctx(t), &donav1.TailPluginLogsRequest{Kind: "analysis", Name: "prometheus", Last: last}))
		if err != nil || asked != want || len(got) != 3 {
			t.Fatalf("last %d: asked for %d, got %v, %v", last, asked, got, err)
		}
		if l := got[0]; l.UnixMs != at.UnixMilli() || l.Level != "info" || l.Text != "one a=1" || l.Generation != 3 {
			t.Errorf("the first line is %v", l)
		}
		if l := got[1]; l.Level != "warn" || !strings.HasPrefix(l.Text, "7 lines are missing here") {
			t.Errorf("the gap is %v", l)
		}
		if l := got[2]; l.Level != "error" || l.Text != "two" {
			t.Errorf("the last line is %v", l)
		}
	}
	e.plugins.set(func(f *fakePlugins) {
		f.tail = func(context.Context, int, bool, func(plugins.LogLine) error) error {
			return fmt.Errorf("16: %w", plugins.ErrFollowers)
		}
	})
	_, err := lines(e.admin.TailPluginLogs(ctx(t), &donav1.TailPluginLogsRequest{Kind: "analysis", Name: "prometheus", Follow: true}))
	refused(t, "one follower too many", err, codes.ResourceExhausted, "analysis/prometheus")
	if n := len(e.hostChain()); n != 0 {
		t.Errorf("reading a log left %d entries", n)
	}
}

// TestFollowPluginLogs: acceptance comes before the first line; the stream ends
// with its client, and with the host.
func TestFollowPluginLogs(t *testing.T) {
	e := newEdge(t)
	ended := make(chan error, 1)
	e.plugins.set(func(f *fakePlugins) {
		f.tail = func(ctx context.Context, _ int, follow bool, _ func(plugins.LogLine) error) error {
			if !follow {
				return errors.New("should follow")
			}
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	})
	follow := func(c context.Context) grpc.ServerStreamingClient[donav1.PluginLogLine] {
		s, err := e.admin.TailPluginLogs(c, &donav1.TailPluginLogsRequest{Kind: "analysis", Name: "prometheus", Follow: true})
		fatal(t, err)
		_, err = s.Header()
		fatal(t, err)
		return s
	}
	c, cancel := context.WithCancel(ctx(t))
	s := follow(c)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the client is %v", err)
	}
	_, err := lines(s, nil)
	refused(t, "cancelled", err, codes.Canceled, "")

	s = follow(ctx(t))
	e.stop()
	<-ended
	_, err = lines(s, nil)
	refused(t, "the host stops", err, codes.Unavailable, "")
}
