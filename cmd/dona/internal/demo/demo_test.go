package demo_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/cmd/dona/internal/demo"
)

// programs builds what the demo runs, side by side, and returns dona.
func programs(t *testing.T) string {
	if testing.Short() {
		t.Skip("runs the demo with real processes for half a minute")
	}
	if runtime.GOOS != "linux" {
		t.Skip("looks for processes left behind in /proc")
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "github.com/dodona-project/dodona/cmd/dona", "github.com/dodona-project/dodona/cmd/dona-host")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "dona")
}

// command makes the demo with a temporary directory of its own.
func command(t *testing.T, program string, args ...string) (cmd *exec.Cmd, temp string) {
	// Short: paths of sockets have little room.
	temp, err := os.MkdirTemp("/tmp", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	cmd = exec.Command(program, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "DEMO_MARK="+temp)
	return cmd, temp
}

// nothingLeft waits until no process of the demo lives and wants its temporary
// directory empty.
func nothingLeft(t *testing.T, program, temp string) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; {
		left := processesOf(filepath.Dir(program), "DEMO_MARK="+temp)
		if len(left) == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Errorf("processes left: %v", left)
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	entries, err := os.ReadDir(temp)
	if err != nil || len(entries) != 0 {
		t.Errorf("left in the temporary directory: %v %v", entries, err)
	}
}

// processesOf finds processes that run a program of dir or carry the mark.
func processesOf(dir, mark string) (found []string) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range entries {
		exe, _ := os.Readlink(filepath.Join(p, "exe"))
		environ, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.HasPrefix(exe, dir+"/") || bytes.Contains(environ, []byte(mark)) {
			command, _ := os.ReadFile(filepath.Join(p, "cmdline"))
			found = append(found, filepath.Base(p)+" "+string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// TestDemo plays it with --json, so that what was seen is on stdout and the story
// on stderr; TestInterruptEndsTheDemo reads the story where it is without.
func TestDemo(t *testing.T) {
	program := programs(t)
	cmd, temp := command(t, program, "--json")
	var story bytes.Buffer
	cmd.Stderr = &story
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("dona demo: %v\n%s\n%s", err, out, story.Bytes())
	}
	for _, word := range []string{"PROMOTED", "ROLLED_BACK", "HOLDING", "failed requests: 0 of ", "the signed attestation of all this verifies", "one changed byte is caught", "every process has ended"} {
		if !bytes.Contains(story.Bytes(), []byte(word)) {
			t.Errorf("the demo does not say %q:\n%s", word, story.Bytes())
		}
	}
	if bytes.Contains(story.Bytes(), []byte("\x1b")) {
		t.Errorf("escape sequences in a pipe:\n%q", story.Bytes())
	}
	var report demo.Report
	if err := json.Unmarshal(out, &report); err != nil || bytes.Count(out, []byte("\n")) != 1 {
		t.Fatalf("stdout is not one object: %v\n%s", err, out)
	}
	if !report.OK || report.Seconds <= 0 || report.Logs != "" || len(report.Seen) < 5 ||
		slices.ContainsFunc(report.Seen, func(c demo.Claim) bool { return !c.OK || !strings.Contains(story.String(), c.Text) }) {
		t.Errorf("the report is %+v\n%s", report, story.Bytes())
	}
	nothingLeft(t, program, temp)
}

func TestInterruptEndsTheDemo(t *testing.T) {
	program := programs(t)
	cmd, temp := command(t, program)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// In the middle: host, variants and plugins run.
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), "PROGRESSING step 1/3") {
	}
	if len(processesOf(filepath.Dir(program), "DEMO_MARK="+temp)) < 4 {
		t.Errorf("nothing runs in the middle of the demo; the search for what it leaves is blind")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("interrupted: %v, want exit code 130", err)
	}
	if got := errOut.String(); got != "dona: interrupted\n" {
		t.Errorf("stderr is %q", got)
	}
	nothingLeft(t, program, temp)
}
