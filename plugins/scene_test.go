//go:build linux

package plugins_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/badplugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// stopPromise is how long the end of a host may take, whatever plugins do. The
// host's own clocks keep it, so that it holds on a busy machine as well.
const stopPromise = 5 * time.Second

// tolerable is how long a call of the well-behaved plugin may take while others
// behave badly: by far more than it does, by far less than a call that waits
// for another plugin's deadline would. On a busy machine it may take longer by as
// many steps between processes as a call has, and what each takes there.
func tolerable(step time.Duration) time.Duration { return 2*time.Second + 10*step }

var buildOnce = sync.OnceValues(badplugins.Build)

// program is the built library of bad plugins.
func program(t testing.TB) *badplugins.Program {
	t.Helper()
	p, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// removeProgram removes what program has built, if anything.
func removeProgram() {
	if p, err := buildOnce(); err == nil {
		p.Remove()
	}
}

// cast says which plugins a scene has: name and behaviour. A name without a kind
// is an analysis.
type cast map[string]string

// idOf reads KIND/NAME; without a kind it is an analysis.
func idOf(name string) plugins.ID {
	if kind, rest, ok := strings.Cut(name, "/"); ok {
		return plugins.ID{Kind: plugins.Kind(kind), Name: rest}
	}
	return plugins.ID{Kind: plugins.KindAnalysis, Name: name}
}

// A scene is a host with bad plugins beside a well-behaved one that is called
// all the time. When the test ends it checks that all those calls were answered
// in time, that the host stops as promised, and that nothing is left.
type scene struct {
	*plugins.Host
	t        testing.TB
	catalog  *badplugins.Catalog
	analysis *analysis.Facade
	strategy *strategy.Facade
	events   *events
	log      *logBuffer
	metrics  *prometheus.Registry
	runDir   string

	callers  sync.WaitGroup
	silence  context.CancelFunc
	mu       sync.Mutex
	times    []time.Duration      // of the calls of the well-behaved plugin
	step     func() time.Duration // of the machine, see steps
	failures []error
	stopOnce sync.Once
}

const wellBehaved = "well-behaved"

// play starts a scene. change may be nil.
func play(t testing.TB, c cast, change func(*plugins.Options)) *scene {
	t.Helper()
	p := program(t)
	before := takeStock(t)
	s := &scene{t: t, catalog: &badplugins.Catalog{}, events: &events{}, log: &logBuffer{}, metrics: prometheus.NewRegistry()}
	for name, behaviour := range c {
		s.catalog.Put(idOf(name), p.File(idOf(name), behaviour))
	}
	s.catalog.Put(idOf(wellBehaved), p.File(idOf(wellBehaved), "sdk"))
	o := newOptions(t)
	o.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: s.log, JSONFormat: true})
	o.Exe, o.Builtins = p.Path(), badplugins.Builtins()
	o.Catalog, o.OnEvent, o.Registerer = s.catalog, s.events.on, s.metrics
	if change != nil {
		change(&o)
	}
	s.runDir = o.RunDir
	h, err := plugins.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Host, s.analysis, s.strategy = h, analysis.New(h), strategy.New(h)
	ctx, cancel := context.WithCancel(context.Background())
	s.silence, s.step = cancel, steps(t)
	t.Cleanup(func() {
		s.end()
		leavesNothing(t, before, s.runDir)
		if t.Failed() {
			t.Logf("the host's log ends with:\n%s", s.log.tail(8<<10))
		}
	})
	await(t, h, plugins.KindAnalysis, wellBehaved)
	s.callers.Go(func() { s.keepCalling(ctx) })
	return s
}

// steps measures what the machine takes for a byte to another process and back, without
// any host or plugin, until it is asked for the p99.
func steps(t testing.TB) (p99 func() time.Duration) {
	t.Helper()
	cat := exec.Command("cat")
	in, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cat.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	var times []time.Duration
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for b := []byte{1}; ; {
			began := time.Now()
			if _, err := in.Write(b); err != nil {
				return
			}
			if _, err := io.ReadFull(out, b); err != nil {
				return
			}
			times = append(times, time.Since(began))
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return sync.OnceValue(func() time.Duration {
		close(end)
		<-ended
		_ = in.Close()
		if err := cat.Wait(); err != nil {
			t.Errorf("measuring the machine: %v", err)
		}
		return quantile(times, 0.99)
	})
}

// keepCalling calls the well-behaved plugin until ctx ends.
func (s *scene) keepCalling(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		_, err := s.analysis.Evaluate(context.Background(), wellBehaved, ask(""))
		s.mu.Lock()
		s.times = append(s.times, time.Since(began))
		if err != nil {
			s.failures = append(s.failures, err)
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// end judges the calls of the well-behaved plugin and stops the host.
func (s *scene) end() {
	s.stopOnce.Do(func() {
		s.silence()
		s.callers.Wait()
		step := s.step()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.failures) > 0 {
			s.t.Errorf("%d calls of the well-behaved plugin failed, the first with: %v", len(s.failures), s.failures[0])
		}
		if p99, most := quantile(s.times, 0.99), quantile(s.times, 1); len(s.times) > 0 {
			s.t.Logf("well-behaved: %d calls, p50 %v, p99 %v, max %v; a step of the machine: p99 %v", len(s.times), quantile(s.times, 0.5), p99, most, step)
			if allowed := tolerable(step); p99 > allowed {
				s.t.Errorf("p99 of the well-behaved plugin is %v: allowed are %v", p99, allowed)
			}
		}
		began := time.Now()
		s.Stop(context.Background())
		took := time.Since(began)
		s.t.Logf("the host stopped in %v", took)
		if took > stopPromise {
			s.t.Errorf("the host took %v to stop: promised are %v", took, stopPromise)
		}
	})
}

// quantile sorts times and returns one of them; 0 when there is none.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, int(q*float64(len(times))))]
}

// ask is a request without configuration; do says what the plugin does.
func ask(do string) *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{Service: "shop", Query: &donav1.AnalysisQuery{Name: "q", Query: do}}
}

// do has an analysis do something.
func (s *scene) do(name, what string) (analysis.Measurement, error) {
	return s.analysis.Evaluate(context.Background(), name, ask(what))
}

// must is do that has to succeed.
func (s *scene) must(name, what string) analysis.Measurement {
	s.t.Helper()
	m, err := s.do(name, what)
	if err != nil {
		s.t.Fatalf("%s: %q: %v", name, what, err)
	}
	return m
}

// ready waits for plugins to take calls.
func (s *scene) ready(names ...string) {
	s.t.Helper()
	for _, name := range names {
		id := idOf(name)
		if err := s.Ensure(id.Kind, id.Name); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, name := range names {
		s.until(name, "ready", func(p *donav1.PluginStatus) bool { return p.GetState() == "ready" })
	}
}

// state returns the status of a plugin.
func (s *scene) state(name string) *donav1.PluginStatus {
	s.t.Helper()
	id := idOf(name)
	p, err := s.Status(id.Kind, id.Name)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// until waits for a status and returns it.
func (s *scene) until(name, what string, ok func(*donav1.PluginStatus) bool) (last *donav1.PluginStatus) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("status of %s: %v", name, last)
		}
	}()
	eventually(s.t, s.Host, name+" "+what, func() bool { last = s.state(name); return ok(last) })
	return last
}

// back waits until a plugin is ready with another process than that of before.
func (s *scene) back(name string, before *donav1.PluginStatus) *donav1.PluginStatus {
	s.t.Helper()
	return s.until(name, "ready with another process", func(p *donav1.PluginStatus) bool {
		return p.GetState() == "ready" && p.GetPid() != before.GetPid()
	})
}

// A logBuffer keeps a log for tests to read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) tail(most int) string {
	s := l.String()
	return s[max(0, len(s)-most):]
}

// lines returns the lines of one plugin's log; a line that is not JSON fails
// the test.
func (l *logBuffer) lines(t testing.TB, plugin string) (lines []map[string]any) {
	t.Helper()
	for _, text := range strings.Split(strings.TrimSpace(l.String()), "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("line %q of the log is not JSON: %v", text, err)
		}
		if m["plugin"] == plugin {
			lines = append(lines, m)
		}
	}
	return lines
}

// stock is what a process has; taken before and after, it shows what was left.
type stock struct {
	goroutines, descriptors int
	strays                  map[string]bool // go-plugin's directories in the shared temporary folder
}

func takeStock(t testing.TB) stock {
	t.Helper()
	s := stock{goroutines: runtime.NumGoroutine(), descriptors: openDescriptors(t), strays: map[string]bool{}}
	for _, dir := range pluginDirs(t) {
		s.strays[dir] = true
	}
	return s
}

func pluginDirs(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "plugin-dir*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// few goroutines and descriptors may be new after a test: the runtime's own.
const few = 4

// besides are the tests that run beside one another, by name.
var besides sync.Map

// beside has a test that mostly waits run beside others that do. What such tests leave
// in this process is looked for when all have ended.
func beside(t *testing.T) {
	t.Helper()
	besides.Store(t.Name(), true)
	t.Parallel()
}

// leavesNothing checks that of a stopped host nothing is left: no process, no socket, no
// directory, and in this process no zombie, no goroutine, no descriptor.
func leavesNothing(t testing.TB, before stock, runDir string) {
	t.Helper()
	if left, err := os.ReadDir(runDir); err != nil || len(left) > 0 {
		t.Errorf("left in the run directory: %v, %v", left, err)
	}
	if left := processesOf(t, runDir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if left := socketsOf(t, runDir); len(left) > 0 {
		t.Errorf("sockets left: %v", left)
	}
	top, _, _ := strings.Cut(t.Name(), "/")
	if _, others := besides.Load(top); others {
		return
	}
	for _, dir := range pluginDirs(t) {
		if !before.strays[dir] {
			t.Errorf("left in the shared temporary folder: %s", dir)
		}
	}
	if left := zombies(t, os.Getpid()); len(left) > 0 {
		until(t, fmt.Sprintf("zombies %v reaped", left), nil, func() bool { return len(zombies(t, os.Getpid())) == 0 })
	}
	until(t, fmt.Sprintf("goroutines back to %d", before.goroutines), nil, func() bool { return runtime.NumGoroutine() <= before.goroutines+few })
	until(t, fmt.Sprintf("descriptors back to %d", before.descriptors), nil, func() bool { return openDescriptors(t) <= before.descriptors+few })
}

// processesOf lists the living processes that have a directory below dir in
// their environment, as plugins and their children have.
func processesOf(t testing.TB, dir string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte("="+dir+"/")) {
			continue
		}
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))); alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func socketsOf(t testing.TB, dir string) (paths []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) == 8 && strings.HasPrefix(fields[7], dir+"/") {
			paths = append(paths, fields[7])
		}
	}
	return paths
}

// zombies lists the children of a process that are dead and were not waited for.
func zombies(t testing.TB, parent int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}
