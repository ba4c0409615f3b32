//go:build linux

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/plugins/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run is a shell script run as a plugin process.
type run struct {
	*runner.Process
	mu             sync.Mutex
	stdout, stderr []string
	started, ended int
	dir            string
}

func start(t *testing.T, script string) *run {
	t.Helper()
	r := &run{}
	add := func(to *[]string) func([]byte) {
		return func(line []byte) {
			r.mu.Lock()
			defer r.mu.Unlock()
			*to = append(*to, string(line))
		}
	}
	dir := t.TempDir()
	r.dir = dir
	r.Process = runner.New(runner.Config{
		Name: "test", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Dir: dir, SocketDir: dir, Stdout: add(&r.stdout), Stderr: add(&r.stderr),
		Started: func(pgid int) { r.started = pgid }, Ended: func(pgid int) { r.ended = pgid },
	}, []string{"PLUGIN_UNIX_SOCKET_DIR=" + dir})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Kill(context.Background()) })
	return r
}

func (r *run) wait(t *testing.T) {
	t.Helper()
	select {
	case <-r.Done():
	case <-time.After(time.Minute):
		t.Fatal("the process lives")
	}
}

func (r *run) lines() (stdout, stderr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.stdout, "\n"), strings.Join(r.stderr, "\n")
}

const shake = "1|1|unix|/tmp/x/s|grpc|cert"

func TestOnlyTheHandshakePassesOn(t *testing.T) {
	r := start(t, "echo before; echo '"+shake+"'; echo after; echo '"+shake+"'; echo words >&2")
	read, err := io.ReadAll(r.Stdout())
	if err != nil || string(read) != shake+"\n" {
		t.Errorf("go-plugin reads %q, %v", read, err)
	}
	quiet, err := io.ReadAll(r.Stderr())
	if err != nil || len(quiet) != 0 {
		t.Errorf("go-plugin reads %q of stderr, %v", quiet, err)
	}
	r.wait(t)
	stdout, stderr := r.lines()
	if stdout != "before\nafter\n"+shake || stderr != "words" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	if e, ended := r.Exited(); !ended || e.String() != "exit code 0" || e.ByHost {
		t.Errorf("%v %v", e, ended)
	}
	if r.started == 0 || r.started != r.ended {
		t.Errorf("started %d, ended %d", r.started, r.ended)
	}
}

// A child that holds the pipes does not hide the death, and dies along.
func TestChildrenDoNotHideDeath(t *testing.T) {
	r := start(t, "sleep 600 & echo $! >&2; exit 3")
	r.wait(t)
	if e := r.Exit(); e.Code != 3 {
		t.Errorf("exit %v", e)
	}
	if err := r.Wait(t.Context()); err == nil || err.Error() != "exit code 3" {
		t.Errorf("Wait: %v", err)
	}
}

func TestStoppedProcessIsKilled(t *testing.T) {
	r := start(t, "kill -STOP $$; sleep 600")
	state := func() string {
		text, _ := os.ReadFile("/proc/" + r.ID() + "/stat")
		_, rest, _ := strings.Cut(string(text), ") ")
		return rest
	}
	for !strings.HasPrefix(state(), "T") {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it never stopped")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if e := r.Exit(); e.Signal != "killed" || !e.ByHost {
		t.Errorf("exit %v", e)
	}
	if err := r.Kill(ctx); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// However much is written without an end of line, the process is not blocked.
func TestFloodDoesNotBlock(t *testing.T) {
	r := start(t, "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; echo >&2; echo done >&2")
	r.wait(t)
	if _, stderr := r.lines(); !strings.HasSuffix(stderr, "\ndone") || len(stderr) > 2*runner.MaxLineLen {
		t.Errorf("%d bytes of stderr are kept, ending with %q", len(stderr), stderr[max(0, len(stderr)-10):])
	}
}

func TestMissingProgram(t *testing.T) {
	p := runner.New(runner.Config{Name: "none", Path: "/nonexistent/plugin"}, nil)
	var refused *runner.StartError
	if err := p.Start(t.Context()); !errors.As(err, &refused) || !refused.Permanent() || err.Error() != "start plugin none: /nonexistent/plugin cannot be run: no such file or directory" {
		t.Errorf("error %v", err)
	}
	if p.ID() != "" {
		t.Errorf("id %q", p.ID())
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Errorf("Kill: %v", err)
	}
	<-p.Done()
}

// A start beside the end of its host finds its folder gone: the file is not to blame.
func TestFolderIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	p := runner.New(runner.Config{Name: "late", Path: "/bin/sh", Dir: dir}, nil)
	err := p.Start(t.Context())
	var refused *runner.StartError
	if !errors.As(err, &refused) || refused.Permanent() || !strings.Contains(err.Error(), "the folder "+dir+" that it was to run in is not there") {
		t.Errorf("error %v", err)
	}
	<-p.Done()
}

// What is said of a start is of the time of that start, also when its folder goes later.
func TestFolderGoesLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "there")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p := runner.New(runner.Config{Name: "missing", Path: filepath.Join(dir, "..", "nobody"), Dir: dir}, nil)
	err := p.Start(t.Context())
	if rm := os.Remove(dir); rm != nil {
		t.Fatal(rm)
	}
	var refused *runner.StartError
	if !errors.As(err, &refused) || !refused.Permanent() || strings.Contains(err.Error(), "to run in") {
		t.Errorf("error %v", err)
	}
	<-p.Done()
}

// What the system says when it does not run a file, and what it means.
func TestFilesThatCannotBeRun(t *testing.T) {
	dir := t.TempDir()
	elf := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...) // a program of no machine
	for name, tc := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"text":     {"echo hello\n", 0o755, "exec format error: it is neither a program for " + runtime.GOOS + "/" + runtime.GOARCH + " nor a script that begins with #!"},
		"foreign":  {string(elf), 0o755, "exec format error"},
		"script":   {"#!/nonexistent/sh -e\necho\n", 0o755, `its interpreter "/nonexistent/sh" is not there`},
		"data":     {"#!/bin/sh\n", 0o644, "permission denied: it must be an executable file"},
		"a folder": {"", 0, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			err := os.WriteFile(path, []byte(tc.content), tc.mode)
			if name == "a folder" {
				err = errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
			}
			if err != nil {
				t.Fatal(err)
			}
			p := runner.New(runner.Config{Name: "bad", Path: path, Dir: dir}, nil)
			err = p.Start(t.Context())
			var refused *runner.StartError
			if !errors.As(err, &refused) || !refused.Permanent() || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			<-p.Done()
		})
	}
	if (&runner.StartError{Err: syscall.ENOMEM}).Permanent() || (&runner.StartError{Err: syscall.ETXTBSY}).Permanent() {
		t.Error("what passes is no reason to give up")
	}
}

func TestOutput(t *testing.T) {
	const most = 1000
	for _, tc := range []struct {
		name, script string
		wait         time.Duration
		stdout       int // bytes
		err, last    string
		code         int
	}{
		{"quick", "echo hello", time.Minute, 6, "", "", 0},
		{"nothing", "echo first >&2; echo; echo 'no such thing' >&2; echo >&2; exit 3", time.Minute, 1, "", "no such thing", 3},
		{"at the limit", "head -c 1000 /dev/zero", time.Minute, most, "", "", 0},
		{"one more", "head -c 1001 /dev/zero; sleep 600", time.Minute, most + 1, "more than 1000 bytes", "", -1},
		{"endless", "cat /dev/zero", time.Minute, most + 1, "more than 1000 bytes", "", -1},
		{"silent", "sleep 600", 50 * time.Millisecond, 0, "deadline exceeded", "", -1},
		{"a child that holds stdout", "sleep 600 & echo $!", time.Minute, -1, "", "", 0},
		{"a child of its own session", "setsid sleep 600 & sleep 0.2; echo $!", time.Minute, -1, "", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tc.wait)
			defer cancel()
			dir := t.TempDir()
			got, err := runner.Output(ctx, runner.Config{
				Name: "once", Path: "/bin/sh", Args: []string{"-c", tc.script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, SocketDir: dir,
			}, most)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || got.LastLine != tc.last || got.Exit.Code != tc.code {
				t.Fatalf("%d bytes, last %q, exit %v, error %v", len(got.Stdout), got.LastLine, got.Exit, err)
			}
			if tc.stdout >= 0 {
				if len(got.Stdout) != tc.stdout {
					t.Errorf("%d bytes of stdout, want %d", len(got.Stdout), tc.stdout)
				}
				return
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(got.Stdout)))
			if err != nil {
				t.Fatal(err)
			}
			for late := time.Now().Add(time.Minute); ; {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				if _, rest, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(rest, "Z") {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("process %d lives", pid)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	p := runner.New(runner.Config{Name: "x", SocketDir: "/run/dona/s"}, nil)
	for _, tc := range []struct {
		network, address string
		ok               bool
	}{
		{"unix", "/run/dona/s/plugin1", true},
		{"unix", "/run/dona/s/../t/plugin1", false},
		{"unix", "/run/dona/s/deeper/plugin1", false},
		{"unix", "/var/run/docker.sock", false},
		{"unix", "plugin1", false},
		{"tcp", "127.0.0.1:80", false},
	} {
		if _, _, err := p.PluginToHost(tc.network, tc.address); (err == nil) != tc.ok {
			t.Errorf("%s %s: %v", tc.network, tc.address, err)
		}
	}
}

// The kernel kills a child when the thread that started it ends. Here threads are
// made to end all the time, and the one that started the child must not be among
// them as long as the child lives.
func TestG5ChildOutlivesEveryOtherThread(t *testing.T) {
	stop := make(chan struct{})
	var churn sync.WaitGroup
	defer churn.Wait()
	defer close(stop)
	for range 2 * runtime.GOMAXPROCS(0) { // keep every processor busy, so that goroutines change threads
		churn.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	var starter int
	r := &run{}
	dir := t.TempDir()
	r.Process = runner.New(runner.Config{
		Name: "test", Path: "/bin/sleep", Args: []string{"600"}, Dir: dir, SocketDir: dir,
		Stdout: func([]byte) {}, Stderr: func([]byte) {},
		Started: func(int) {
			starter = unix.Gettid()
			// Whoever is not bound to this thread leaves it now, and it ends.
			for range 50 {
				endThreads()
				if !threadLives(starter) {
					return
				}
			}
		},
	}, nil)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Kill(context.Background()) }()
	for range 20 {
		endThreads()
	}
	if !threadLives(starter) {
		t.Error("the thread that started the child has ended")
	}
	select {
	case <-r.Done():
		t.Errorf("the child has ended: %v", r.Exit())
	default:
	}
}

// endThreads ends several threads: one whose goroutine ends locked ends too.
func endThreads() {
	var ended sync.WaitGroup
	for range 8 {
		ended.Add(1)
		go func() {
			runtime.LockOSThread()
			ended.Done()
		}()
	}
	ended.Wait()
	runtime.Gosched()
}

func threadLives(tid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
	return err == nil
}

// Children that fork on and on while they are looked for are found all the same.
func TestStraysThatForkAreFound(t *testing.T) {
	for range 20 {
		// Each generation starts the next in a session of its own, and leaves.
		r := start(t, `setsid sh -c 'setsid sh -c "setsid sleep 600 & sleep 600 & setsid sleep 601" & setsid sleep 602 & exit 0' & exit 3`)
		r.wait(t)
		dir := r.dir
		for _, path := range environs(t) {
			if env, err := os.ReadFile(path); err == nil && strings.Contains(string(env), "="+dir+"\x00") {
				line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
				t.Errorf("%s is left: %q", path, line)
			}
		}
	}
}

// A process that executes a program has no environment yet that could be read.
func TestStraysThatExecuteAreFound(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		again, number := filepath.Join(dir, "again"), filepath.Join(dir, "pid")
		script := "#!/bin/sh\n[ -s " + number + " ] || echo $$ >" + number + "\nexec " + again + "\n"
		if err := os.WriteFile(again, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		r := start(t, "setsid "+again+" & while [ ! -s "+number+" ]; do :; done; exit 3")
		r.wait(t)
		text, err := os.ReadFile(number)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		// It was killed before the end was told; a busy machine takes a while to let it die.
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil || strings.Contains(string(stat), ") Z ") {
				break
			}
			if time.Now().After(end) {
				t.Errorf("it is left: %s", stat)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
		}
	}
}

func environs(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func FuzzHandshake(f *testing.F) {
	for _, s := range []string{shake, "", "|||||", "1|1|unix||grpc", "a|b|c|d|e", "1|1|tcp|127.0.0.1:1|grpc", "-1|1|unix|x|grpc"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := runner.ParseHandshake(line); ok && (s.Core < 0 || s.Version < 0 || s.Network == "" || s.Address == "") {
			t.Fatalf("%q is read as %+v", line, s)
		}
	})
}
