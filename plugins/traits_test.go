//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// What go-plugin would do to its host, one test each; the numbers are those of
// docs/plugin-faults.md.

// A log line with fields of unexpected types ends a host that lets go-plugin
// read it.
func TestG1LogLineBombs(t *testing.T) {
	s := play(t, cast{"bombs": "bombs", "raw": "raw"}, nil)
	s.ready("bombs", "raw")
	s.must("bombs", "bombs")
	s.must("raw", "bombs")
	for _, name := range []string{"bombs", "raw"} {
		until(t, "the last bomb in the log", nil, func() bool {
			for _, line := range s.log.lines(t, name) {
				if line["@message"] == `no text \xff\xfe\x80` {
					return true
				}
			}
			return false
		})
		forged := false
		for _, line := range s.log.lines(t, name) {
			stamp, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", fmt.Sprint(line["@timestamp"]))
			if err != nil || time.Since(stamp).Abs() > time.Hour {
				t.Errorf("time of line %v is not the host's", line)
			}
			if line["@message"] == "forged" {
				forged = true
				if line["@level"] != "error" || line["@module"] != "plugin" || line["kind"] != "analysis" || line["generation"] == nil {
					t.Errorf("a forged line is logged as %v", line)
				}
			}
		}
		if !forged {
			t.Errorf("%s: the forged line is in nobody's log, or in somebody else's", name)
		}
		if p := s.state(name); p.GetGeneration() != 1 || p.GetState() != "ready" {
			t.Errorf("%s: %v", name, p)
		}
	}
	if strings.ContainsAny(s.log.String(), "\x1b\x07") {
		t.Error("a control character reached the log")
	}
}

// A stopped process answers no question and takes no hint.
func TestG2StoppedProcessIsReplaced(t *testing.T) {
	beside(t)
	s := play(t, cast{"stops": "sdk"}, deadlines(300*time.Millisecond, "stops"))
	s.ready("stops")
	first := s.state("stops")
	for i := range 3 {
		began := time.Now()
		if _, err := s.do("stops", "stop"); !errors.Is(err, plugins.ErrDeadline) {
			t.Fatalf("call %d: %v, want ErrDeadline", i, err)
		}
		t.Logf("the caller is back after %v, its deadline is 300ms", time.Since(began))
	}
	missed := time.Now()
	until(t, "the stopped process gone", nil, func() bool { return !alive(int(first.GetPid())) })
	t.Logf("killed %v after the third deadline", time.Since(missed))
	second := s.back("stops", first)
	t.Logf("back %v after the third deadline", time.Since(missed))
	// The next one is still stopped when the host stops.
	if _, err := s.do("stops", "stop"); !errors.Is(err, plugins.ErrDeadline) {
		t.Errorf("%v, want ErrDeadline", err)
	}
	s.end()
	if alive(int(second.GetPid())) {
		t.Error("the stopped process lives")
	}
}

// deadlines sets the deadline of calls of plugins.
func deadlines(d time.Duration, names ...string) func(*plugins.Options) {
	return func(o *plugins.Options) {
		o.Plugins = map[plugins.ID]plugins.PluginConfig{}
		for _, name := range names {
			o.Plugins[idOf(name)] = plugins.PluginConfig{Deadline: d}
		}
	}
}

// Children that hold the pipes hide nothing, and go with their parent.
func TestG3ChildrenThatHoldThePipes(t *testing.T) {
	beside(t)
	s := play(t, cast{"forks": "sdk", "leaves": "raw"}, nil)
	s.ready("forks", "leaves")
	first := s.state("forks")
	began := time.Now()
	if _, err := s.do("forks", "fork-exit"); !errors.Is(err, plugins.ErrAway) {
		t.Fatalf("%v, want ErrAway", err)
	}
	t.Logf("the caller knows of the death after %v", time.Since(began))
	s.back("forks", first)
	if crash := waitEvent(t, s.events, plugins.EventCrash); crash.Exit != "exit code 8" {
		t.Errorf("crash event %+v", crash)
	}
	until(t, "only three processes are there", nil, func() bool { return len(processesOf(t, s.runDir)) == 3 })
	s.must("leaves", "fork")
	s.must("leaves", "fork-setsid")
	if n := len(processesOf(t, s.runDir)); n < 5 {
		t.Errorf("%d processes before the stop, want the children among them", n)
	}
}

// What is printed before the handshake is no handshake, and why a start fails is
// in the plugin's own words.
func TestG6WordsBeforeTheHandshake(t *testing.T) {
	s := play(t, cast{"banner": "banner", "words": "words"}, func(o *plugins.Options) { o.Limits.QuarantineAt = 2 })
	s.ready("banner")
	s.must("banner", "")
	if err := s.Ensure(plugins.KindAnalysis, "words"); err != nil {
		t.Fatal(err)
	}
	p := s.until("words", "quarantined", func(p *donav1.PluginStatus) bool { return p.GetState() == "quarantined" })
	for _, w := range []string{"exit code 3", "configuration file missing"} {
		if !strings.Contains(p.GetReason(), w) {
			t.Errorf("reason %q, want %q in it", p.GetReason(), w)
		}
	}
}

// A line that is too long for go-plugin's reader would block its writer for ever.
func TestG7LongLinesOnStdout(t *testing.T) {
	s := play(t, cast{"before": "lines-before", "sdk": "sdk", "raw": "raw"}, nil)
	s.ready("before", "sdk", "raw")
	for _, name := range []string{"before", "sdk", "raw"} {
		for range 3 {
			s.must(name, "lines")
		}
		if p := s.state(name); p.GetGeneration() != 1 {
			t.Errorf("%s: generation %d, want 1", name, p.GetGeneration())
		}
	}
}

// Each attempt has its own error; the one before does not hide it.
func TestG9EveryAttemptSaysItsOwn(t *testing.T) {
	counter := filepath.Join(t.TempDir(), "count")
	s := play(t, cast{"crash": "crash"}, func(o *plugins.Options) {
		o.Limits.QuarantineAt = 4
		o.Plugins = map[plugins.ID]plugins.PluginConfig{idOf("crash"): {Env: map[string]string{"COUNT": counter}}}
	})
	if err := s.Ensure(plugins.KindAnalysis, "crash"); err != nil {
		t.Fatal(err)
	}
	p := s.until("crash", "quarantined", func(p *donav1.PluginStatus) bool { return p.GetState() == "quarantined" })
	if !strings.Contains(p.GetReason(), "attempt 4 failed") {
		t.Errorf("reason %q, want that of the fourth attempt", p.GetReason())
	}
	var said []string
	until(t, "four failures in the log", nil, func() bool {
		said = nil
		for _, line := range s.log.lines(t, "crash") {
			if line["@message"] == "plugin is away" || line["@message"] == "plugin is quarantined until it is reset" {
				said = append(said, fmt.Sprint(line["reason"]))
			}
		}
		return len(said) >= 4
	})
	if len(said) != 4 {
		t.Fatalf("%d failures are in the log, want 4: %q", len(said), said)
	}
	for i, reason := range said {
		if !strings.Contains(reason, fmt.Sprintf("attempt %d failed", i+1)) {
			t.Errorf("failure %d is told as %q", i+1, reason)
		}
	}
}

// A panic in a call is that call's error with the SDK, and the end of the process
// without. The caller reads the panic's words in both cases.
func TestG11Panics(t *testing.T) {
	s := play(t, everyCast(), func(o *plugins.Options) { o.Limits.QuarantineAt = 1000 })
	s.ready(everyKind...)
	for _, tc := range []struct {
		name, deed, words string
		survives          bool
	}{
		{"sdk", "panic", "panic: deliberate", true},
		{"sdk", "panic-goroutine", "panic: deliberate, elsewhere", false},
		{"raw", "panic", "panic: deliberate", false},
		{"builtin", "panic", "panic: deliberate", true},
		{"builtin", "panic-goroutine", "panic: deliberate, elsewhere", false},
	} {
		for try := 0; ; try++ {
			before := s.state(tc.name)
			began := time.Now()
			_, err := s.do(tc.name, tc.deed)
			t.Logf("%s %s: after %v: %v", tc.name, tc.deed, time.Since(began), err)
			if !tc.survives {
				s.back(tc.name, before)
				t.Logf("back %v after the call began", time.Since(began))
			} else if p := s.state(tc.name); p.GetExits() != 0 {
				t.Errorf("%s: %d exits, want none", tc.name, p.GetExits())
			}
			s.must(tc.name, "")
			if err != nil && strings.Contains(err.Error(), tc.words) {
				break
			}
			// The caller does not wait long for the words; on a busy machine they
			// may be late.
			if !errors.Is(err, plugins.ErrAway) || try == 4 {
				t.Errorf("%s %s: %v, want %q in it", tc.name, tc.deed, err, tc.words)
				break
			}
		}
	}
	stack := false
	for _, line := range s.log.lines(t, "sdk") {
		stack = stack || line["@message"] == "panic in a call" && strings.Contains(fmt.Sprint(line["stack"]), "deeds.go")
	}
	if !stack {
		t.Error("the log has no stack of the panic")
	}
}

// Messages are bounded alike in both directions: more than gRPC's 4 MiB reach a
// plugin, more than what an answer may have never reach the host.
func TestG12SizesOfMessages(t *testing.T) {
	s := play(t, cast{"sdk": "sdk", "raw": "raw"}, nil)
	s.ready("sdk", "raw")
	for _, name := range []string{"sdk", "raw"} {
		if name == "sdk" { // the raw one has gRPC's own limit
			req := ask("")
			req.State = make([]byte, 15<<20)
			if _, err := s.analysis.Evaluate(t.Context(), name, req); err != nil {
				t.Errorf("a request of 15 MiB: %v", err)
			}
			req.State = make([]byte, 17<<20)
			if _, err := s.analysis.Evaluate(t.Context(), name, req); err == nil {
				t.Error("a request of 17 MiB was sent")
			}
		}
		for _, size := range []string{"17", "64", "512"} {
			began := time.Now()
			_, err := s.do(name, "large "+size)
			if err == nil || errors.Is(err, plugins.ErrDeadline) {
				t.Errorf("%s: an answer of %s MiB: %v", name, size, err)
			}
			t.Logf("%s: %s MiB: after %v: %v", name, size, time.Since(began), err)
		}
		s.must(name, "")
	}
}

// Sockets are in the host's own directory, which nobody else can enter.
func TestG13SocketsArePrivate(t *testing.T) {
	s := play(t, cast{"sdk": "sdk", "raw": "raw"}, nil)
	s.ready("sdk", "raw")
	sockets := socketsOf(t, s.runDir)
	if len(sockets) < 3 {
		t.Fatalf("sockets in the run directory: %q, want one per plugin", sockets)
	}
	for _, socket := range sockets {
		for dir := filepath.Dir(socket); strings.HasPrefix(dir, s.runDir); dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("directory %s of a socket has mode %v, %v", dir, info.Mode(), err)
			}
		}
	}
}

// The host's environment stays with the host.
func TestG15EnvironmentIsExactly(t *testing.T) {
	t.Setenv("DONA_TEST_SECRET", "do-not-tell")
	t.Setenv("PLUGIN_MIN_PORT", "1")
	s := play(t, cast{"sdk": "sdk", "raw": "raw"}, func(o *plugins.Options) {
		o.Plugins = map[plugins.ID]plugins.PluginConfig{
			idOf("raw"): {Env: map[string]string{"API_TOKEN": "given-on-purpose", "PATH": "/only/this"}},
		}
	})
	s.ready("sdk", "raw")
	allowed := map[string]bool{"PATH": true, "HOME": true, "TMPDIR": true, "LANG": true, "TZ": true, "GOMEMLIMIT": true, "GOMAXPROCS": true,
		"DONA_PLUGIN": true, "DONA_PLUGIN_LIFELINE": true, "DONA_PLUGIN_LOG_LEVEL": true,
		"PLUGIN_MIN_PORT": true, "PLUGIN_MAX_PORT": true, "PLUGIN_PROTOCOL_VERSIONS": true, "PLUGIN_CLIENT_CERT": true, "PLUGIN_UNIX_SOCKET_DIR": true}
	for _, name := range []string{"sdk", "raw"} {
		env := map[string]string{}
		text := string(s.must(name, "env").Evidence)
		for _, pair := range strings.Split(text, "\x00") {
			k, v, _ := strings.Cut(pair, "=")
			env[k] = v
		}
		for k := range env {
			if !allowed[k] && !(name == "raw" && k == "API_TOKEN") {
				t.Errorf("%s: %s is set", name, k)
			}
		}
		if env["TMPDIR"] == "" || env["TMPDIR"] != env["HOME"] || !strings.HasPrefix(env["TMPDIR"], s.runDir) {
			t.Errorf("%s: HOME %q, TMPDIR %q: want one in the run directory", name, env["HOME"], env["TMPDIR"])
		}
		if strings.Contains(text, "do-not-tell") || env["PLUGIN_MIN_PORT"] == "1" {
			t.Errorf("%s: the host's environment reached the plugin", name)
		}
		if name == "raw" && (env["API_TOKEN"] != "given-on-purpose" || env["PATH"] != "/only/this") {
			t.Errorf("what is declared did not reach the plugin: %v", env)
		}
	}
}

// Another process of the same user can open the socket, and call nothing.
func TestG16StrangersCannotCall(t *testing.T) {
	s := play(t, cast{"sdk": "sdk", "raw": "raw"}, nil)
	s.ready("sdk", "raw")
	intrude := func(socket string) []string {
		out, err := exec.Command(program(t).Path(), "intrude", socket).CombinedOutput()
		tries := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err != nil || len(tries) != 3 {
			t.Fatalf("%v, %d tries: %s", err, len(tries), out)
		}
		return tries
	}
	sockets := map[string]bool{}
	for _, socket := range socketsOf(t, s.runDir) {
		sockets[socket] = true // an accepted connection has the same path
	}
	if len(sockets) != 3 {
		t.Errorf("%d sockets, want one per plugin", len(sockets))
	}
	for socket := range sockets {
		for _, try := range intrude(socket) {
			if !strings.Contains(try, ": refused: ") {
				t.Errorf("a stranger was answered: %s", try)
			}
		}
	}
	s.must("sdk", "")
	s.must("raw", "")

	// The same stranger is answered where nobody asks for a certificate.
	open := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", open)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginv1.RegisterLifecycleServer(server, openToAll{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	if tries := intrude(open); tries[0] != "plaintext: answered: open" {
		t.Errorf("the stranger cannot call at all: %q", tries)
	}
}

type openToAll struct {
	pluginv1.UnimplementedLifecycleServer
}

func (openToAll) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeReply, error) {
	return &pluginv1.DescribeReply{Name: "open"}, nil
}

// What is printed through os.Stdout after Serve is part of the log, and nobody
// who reads it slowly can block the plugin.
func TestG19StdoutAfterServe(t *testing.T) {
	s := play(t, cast{"sdk": "sdk", "raw": "raw"}, nil)
	s.ready("sdk", "raw")
	for _, name := range []string{"sdk", "raw"} {
		s.must(name, "stdout 8")
		until(t, name+": what it printed is in the log", nil, func() bool {
			for _, line := range s.log.lines(t, name) {
				if line["@message"] == "printed after Serve" {
					return true
				}
			}
			return false
		})
		s.must(name, "")
	}
	if n := gauge(t, s.metrics, "dona_plugin_log_lines_dropped_total"); n == 0 {
		t.Error("16 MiB of lines went to the log, none was dropped")
	}
}

// A process per plugin is affordable: many start side by side, and a call costs
// little.
func TestG20ManyPluginsStartSideBySide(t *testing.T) {
	const many = 20
	c := cast{}
	for i := range many {
		c[fmt.Sprint("p", i)] = "sdk"
	}
	s := play(t, c, nil)
	began := time.Now()
	var starts sync.WaitGroup
	for name := range c {
		starts.Go(func() {
			if err := s.Await(context.Background(), plugins.KindAnalysis, name); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	t.Logf("%d plugins started in %v", many, time.Since(began))
	var pss int
	for name := range c {
		pss += kib(t, fmt.Sprintf("/proc/%d/smaps_rollup", s.state(name).GetPid()), "Pss:")
	}
	t.Logf("%d KiB of memory of its own each", pss/many)
	if most := 64 << 10; pss/many > most {
		t.Errorf("a plugin takes %d KiB: allowed are %d", pss/many, most)
	}
	var times []time.Duration
	for range 200 {
		began := time.Now()
		s.must("p0", "")
		times = append(times, time.Since(began))
	}
	t.Logf("a call takes %v (p50), %v (p99)", quantile(times, 0.5), quantile(times, 0.99))
}

// kib reads a line "<name> <n> kB" of a file of /proc.
func kib(t testing.TB, file, name string) (n int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatalf("%s of %s: %v", name, file, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}
