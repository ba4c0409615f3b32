package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/spawn/spawntest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { spawntest.Clean(); os.Exit(code) }))
}

func build(t *testing.T) string {
	return spawntest.Build(t, "examples/egress", "cmd/dona-host", "cmd/proxy-gateway", "cmd/proxy-checker")
}

// Curl, git, Node.js and Go's client go on through each kind of upstream proxy while a
// proxy, a gateway and the host are killed: what began a second after a kill, or later,
// was answered. The program judges it; it is not to say so without having seen it, and to
// leave nothing behind.
func TestEgress(t *testing.T) {
	dir := build(t)
	cmd := spawntest.Command(t, filepath.Join(dir, "egress"), "-bin", dir)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("it took %v\n%s", time.Since(began), out)
	if err != nil {
		t.Errorf("ends with %v", err)
	}
	want := []string{
		"12 of 12 requests", "the checker found the killed proxy out", "the other led", "the host was dead", "a proxy was extracted once nothing ran through it", "failed requests: ",
		"after proxy-1 was killed, new requests", "after gateway-1 was killed, new requests", "after the host was killed, new requests", "password is in none of 14 logs", "every process has ended",
	}
	said := strings.Join(strings.Fields(string(out)), " ") // its lines are wrapped
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	for _, c := range []string{"Go", "curl", "git", "node"} {
		if _, err := exec.LookPath(c); (c == "Go" || err == nil) && !strings.Contains(said, " "+c+" ") && !strings.Contains(said, "("+c+" ") {
			t.Errorf("%s is here and sent nothing", c)
		}
	}
	cmd.NothingLeft(t)
}

func TestInterruptEndsIt(t *testing.T) {
	t.Parallel()
	dir := build(t)
	cmd := spawntest.Command(t, filepath.Join(dir, "egress"), "-bin", dir)
	cmd.Interrupted(t, "A gateway is killed", 14, exitInterrupted, "egress: interrupted")
}

// What did not happen is told, with exit code 1 and the logs.
func TestWhatDoesNotHappenIsTold(t *testing.T) {
	t.Parallel()
	dir := build(t)
	broken := "#!/bin/sh\necho no gateway today >&2\nexit 3\n"
	gateway := filepath.Join(dir, "proxy-gateway")
	if err := os.Remove(gateway); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gateway, []byte(broken), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := spawntest.Command(t, filepath.Join(dir, "egress"), "-bin", dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed {
		t.Errorf("ends with %v, want exit code %d\n%s", err, exitFailed, out)
	}
	if said := strings.Join(strings.Fields(string(out)), " "); !strings.Contains(said, "FAILED") || !strings.Contains(said, "no gateway today") || !bytes.Contains(out, []byte("The logs are in "+cmd.Temp)) {
		t.Errorf("it says\n%s", out)
	}
	cmd.NoProcess(t)
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-help"}, exitOK, "-bin"},
		{[]string{"-nonsense"}, exitUsage, "nonsense"},
		{[]string{"start"}, exitUsage, `unexpected argument "start"`},
		{[]string{"-bin", t.TempDir()}, exitUsage, "make build"},
		{[]string{proxyMode, "no settings"}, exitFailed, "proxy: "},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
			t.Errorf("%v: ends with %d and %q, want %d and %q", c.args, code, errs.String(), c.code, c.want)
		}
	}
}
