//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

func init() {
	scriptCommands["interrupt"] = interrupt
	scriptCommands["brokenpipe"] = brokenPipe
}

// program makes a command with the script's own environment, as far as the
// program looks at it.
func program(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := ""
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, args[0])); err == nil {
			path = filepath.Join(dir, args[0])
			break
		}
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "DONA_HOST="+ts.Getenv("DONA_HOST"))
	return cmd
}

func exitCode(ts *testscript.TestScript, err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

// interrupt PATTERN dona ...: run it, send SIGINT when a line of stdout matches,
// and want 130, one line on stderr, and each line of stdout whole.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	cmd := program(ts, args[1:])
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	lines := bufio.NewScanner(stdout)
	seen := false
	for !seen && lines.Scan() {
		seen = pattern.MatchString(lines.Text())
	}
	ts.Check(cmd.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, stdout)
	code := exitCode(ts, cmd.Wait())
	if !seen {
		ts.Fatalf("stdout never matched %q; stderr: %s", args[0], errOut.String())
	}
	if code != 130 || errOut.String() != "dona: interrupted\n" {
		ts.Fatalf("exit code %d, stderr %q; want 130 and one line", code, errOut.String())
	}
}

// brokenpipe dona ...: run it with a stdout that nobody reads, and want 1 and
// silence.
func brokenPipe(ts *testscript.TestScript, _ bool, args []string) {
	read, write, err := os.Pipe()
	ts.Check(err)
	ts.Check(read.Close())
	cmd := program(ts, args)
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = write, &errOut
	err = cmd.Run()
	ts.Check(write.Close())
	if code := exitCode(ts, err); code != 1 || errOut.Len() > 0 {
		ts.Fatalf("exit code %d, stderr %q; want 1 and silence", code, errOut.String())
	}
}
