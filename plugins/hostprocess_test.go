//go:build linux

package plugins_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/badplugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// hostArg makes the test binary a host in a process of its own, to be killed,
// signalled and measured. It obeys lines on stdin and answers each with one
// line of JSON. SIGTERM ends it in good order.
const hostArg = "__host"

// hostSetup is the argument of a host process, as JSON.
type hostSetup struct {
	RunDir  string
	Program string // of the bad plugins
	Cast    cast
	Product bool // as programs run it: nothing is shortened
}

// hostReply is the answer to one line.
type hostReply struct {
	Error  string
	Detail string

	State      string
	Reason     string
	PID        int
	Generation uint64
	Starts     uint64

	CPU                              time.Duration // of the process itself, its children not counted
	RSS, Peak                        int           // KiB
	Descriptors, Goroutines, Zombies int
	Sockets, Processes               int
	OK, Failed                       int // of calls begun with "go" and "keep"
	P50, P99, Max                    time.Duration
	Stop                             time.Duration // how long the host took to stop
}

// hosting is what a host process has.
type hosting struct {
	*plugins.Host
	runDir  string
	metrics *prometheus.Registry
	calls   sync.WaitGroup

	mu         sync.Mutex
	ok, failed int
	firstError error
	times      []time.Duration
}

func hostProcess(arg string) {
	var setup hostSetup
	err := json.Unmarshal([]byte(arg), &setup)
	p := badplugins.Open(setup.Program)
	var catalog badplugins.Catalog
	for name, behaviour := range setup.Cast {
		catalog.Put(idOf(name), p.File(idOf(name), behaviour))
	}
	h := &hosting{runDir: setup.RunDir, metrics: prometheus.NewRegistry()}
	o := plugins.Options{RunDir: setup.RunDir, Builtins: testPlugins(), Catalog: &catalog, Registerer: h.metrics}
	if !setup.Product {
		quicken(&o)
	}
	if err == nil {
		h.Host, err = plugins.New(o)
	}
	if err == nil {
		err = h.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	lines := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- in.Text()
		}
		close(lines)
	}()
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				h.Stop(context.Background())
				os.Exit(0)
			}
			_ = out.Encode(h.obey(line))
		case <-term:
			began := time.Now()
			h.Stop(context.Background())
			took := time.Since(began)
			h.calls.Wait()
			r := h.counts()
			r.Stop = took
			_ = out.Encode(r)
			os.Exit(0)
		}
	}
}

// obey does what a line says: a verb, mostly a plugin, and what that shall do.
func (h *hosting) obey(line string) (r hostReply) {
	verb, rest, _ := strings.Cut(line, " ")
	name, what, _ := strings.Cut(rest, " ")
	id := idOf(name)
	var err error
	switch verb {
	case "await":
		err = h.Await(context.Background(), id.Kind, id.Name)
	case "ensure":
		err = h.Ensure(id.Kind, id.Name)
	case "do":
		r.Detail, err = h.do(id, what)
	case "go": // and do not wait
		h.calls.Go(func() { h.count(h.timed(id, what)) })
	case "keep", "keep-slowly": // doing it
		pause := 2 * time.Millisecond
		if verb == "keep-slowly" {
			pause = 50 * time.Millisecond
		}
		go func() {
			for {
				h.count(h.timed(id, what))
				time.Sleep(pause)
			}
		}()
	case "counts":
		r = h.counts()
	case "begun": // calls in flight and over
		h.mu.Lock()
		r.OK = h.ok + h.failed + int(gauge(failer{}, h.metrics, "dona_plugin_inflight"))
		h.mu.Unlock()
	case "span": // for which something is measured
		var d time.Duration
		if d, err = time.ParseDuration(name); err == nil {
			time.Sleep(d)
		}
	case "watchdog":
		r.PID, _ = h.WatchdogPID()
	case "stats":
		r = h.stats()
	case "settle": // what can be given back is, and the peak begins anew
		debug.FreeOSMemory()
		err = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200)
		r = h.stats()
	case "status":
	default:
		err = fmt.Errorf("no verb %q", verb)
	}
	if err != nil {
		r.Error = err.Error()
	}
	if s, err := h.Status(id.Kind, id.Name); err == nil {
		r.State, r.Reason, r.Generation, r.Starts = s.GetState(), s.GetReason(), s.GetGeneration(), s.GetStarts()
		r.PID = int(s.GetPid())
	}
	return r
}

func (h *hosting) do(id plugins.ID, what string) (string, error) {
	if id.Kind == plugins.KindStrategy {
		_, err := strategy.New(h).Compile(context.Background(), id.Name, &pluginv1.CompileRequest{
			Scope: "service/" + what, Candidates: []*pluginv1.Candidate{{Id: "a", Group: "g", Weight: 1}},
		})
		return "", err
	}
	m, err := analysis.New(h).Evaluate(context.Background(), id.Name, ask(what))
	return m.Detail, err
}

func (h *hosting) timed(id plugins.ID, what string) (time.Duration, error) {
	began := time.Now()
	_, err := h.do(id, what)
	return time.Since(began), err
}

func (h *hosting) count(d time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = append(h.times, d)
	if err == nil {
		h.ok++
		return
	}
	h.failed++
	if h.firstError == nil {
		h.firstError = err
	}
}

// counts are of the calls since the last counts.
func (h *hosting) counts() hostReply {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := hostReply{OK: h.ok, Failed: h.failed, P50: quantile(h.times, 0.5), P99: quantile(h.times, 0.99), Max: quantile(h.times, 1)}
	if h.firstError != nil {
		r.Error = h.firstError.Error()
	}
	h.ok, h.failed, h.firstError, h.times = 0, 0, nil, nil
	return r
}

func (h *hosting) stats() (r hostReply) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err == nil {
		r.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	var t failer
	r.RSS, r.Peak = kib(&t, "/proc/self/status", "VmRSS:"), kib(&t, "/proc/self/status", "VmHWM:")
	r.Descriptors, r.Goroutines, r.Zombies = openDescriptors(&t), runtime.NumGoroutine(), len(zombies(&t, os.Getpid()))
	r.Sockets, r.Processes = len(socketsOf(&t, h.runDir)), len(processesOf(&t, h.runDir))
	return r
}

// A failer is a testing.TB outside of a test: it ends the process.
type failer struct{ testing.TB }

func (failer) Helper() {}
func (failer) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}
func (f failer) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

// A hostProc is a host process as its test sees it.
type hostProc struct {
	*exec.Cmd
	t      testing.TB
	runDir string
	write  func(string) error
	out    *bufio.Scanner
}

// startHostProcess starts a host in a process of its own, at the head of a
// process group of its own.
func startHostProcess(t testing.TB, exe string, setup hostSetup, inherit ...*os.File) *hostProc {
	t.Helper()
	setup.Program = program(t).Path()
	if setup.RunDir == "" {
		setup.RunDir = newOptions(t).RunDir
	}
	text, err := json.Marshal(setup)
	if err != nil {
		t.Fatal(err)
	}
	p := &hostProc{Cmd: exec.Command(exe, hostArg, string(text)), t: t, runDir: setup.RunDir}
	p.ExtraFiles = inherit
	p.Stderr = testWriter{t}
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.write = func(line string) error { _, err := fmt.Fprintln(in, line); return err }
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	return p
}

// ownProgram is the test binary.
func ownProgram(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// tell says a line and returns the answer.
func (p *hostProc) tell(line string) hostReply {
	p.t.Helper()
	if err := p.write(line); err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
	return p.reply(line)
}

func (p *hostProc) reply(what string) (r hostReply) {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("%q: the host process said nothing: %v", what, p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		p.t.Fatalf("%q: %v in %q", what, err, p.out.Text())
	}
	return r
}

// must is tell that has to succeed.
func (p *hostProc) must(line string) hostReply {
	p.t.Helper()
	r := p.tell(line)
	if r.Error != "" {
		p.t.Fatalf("%q: %s", line, r.Error)
	}
	return r
}

// terminated waits for the answer to a SIGTERM and for the end of the process.
func (p *hostProc) terminated() hostReply {
	p.t.Helper()
	r := p.reply("SIGTERM")
	if err := p.Wait(); err != nil {
		p.t.Errorf("the host process ended with %v", err)
	}
	return r
}

// nothingLeft waits until of a host process that has ended nothing is there.
func (p *hostProc) nothingLeft(pids ...int) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("processes %v gone", pids), nil, gone(pids))
	until(p.t, "no process has the run directory in its environment", nil, func() bool { return len(processesOf(p.t, p.runDir)) == 0 })
	until(p.t, "run directory empty", nil, empty(p.t, p.runDir))
	until(p.t, "no socket", nil, func() bool { return len(socketsOf(p.t, p.runDir)) == 0 })
}
