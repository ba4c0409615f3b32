package cli_test

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dodona-project/dodona/cmd/dona/internal/demo"
	"github.com/dodona-project/dodona/host/loopback"
)

// startHost builds the host program and runs it on its own data and ports until
// the test ends. It returns its addresses, the second where tokens are taken, and its
// data directory.
func startHost(t *testing.T) (addresses []string, dataDir string) {
	dir := t.TempDir()
	program := filepath.Join(dir, "dona-host")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "github.com/dodona-project/dodona/cmd/dona-host")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of the host: %v\n%s", err, out)
	}
	addresses = freeAddresses(t, 3)
	var log bytes.Buffer
	dataDir = filepath.Join(dir, "data")
	host := exec.Command(program, "--dev", "--data-dir", dataDir,
		"--grpc-listen", addresses[0], "--bootstrap-listen", addresses[1], "--http-listen", addresses[2])
	host.Stdout, host.Stderr = &log, &log
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = host.Process.Signal(syscall.SIGTERM)
		if err := host.Wait(); err != nil || t.Failed() {
			t.Logf("the host ended: %v\n%s", err, log.String())
		}
	})
	return addresses, dataDir
}

// freeAddresses returns addresses for programs to listen on.
func freeAddresses(t *testing.T, n int) []string {
	addresses := make([]string, n)
	for i := range addresses {
		var err error
		if addresses[i], err = loopback.Free(); err != nil {
			t.Fatal(err)
		}
	}
	return addresses
}

// TestAgainstTheHost runs testdata/host against the real program, with a real
// endpoint that registers through the SDK. Besides the usual commands the
// scripts have, beside the variable DATA with the host's data directory,
//
//	eventually PATTERN dona ...   repeat until stdout matches
//	serve SERVICE VARIANT REGION  an endpoint, until the script ends
//	token VARIABLE                the token in the JSON that the last command wrote
func TestAgainstTheHost(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the host and runs it")
	}
	t.Parallel()
	addresses, dataDir := startHost(t)
	address := addresses[0]
	stdin, hold := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- demo.Serve(context.Background(), demo.Variant{
			Target: address, Service: "checkout", Name: "v1", Endpoints: 1, Region: "eu-west",
		}, stdin)
	}()
	t.Cleanup(func() {
		_ = hold.Close()
		if err := <-served; err != nil {
			t.Errorf("the endpoint: %v", err)
		}
	})
	t.Run("scripts", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir:                 "testdata/host",
			RequireExplicitExec: true,
			Deadline:            time.Now().Add(scriptTime),
			Setup: func(env *testscript.Env) error {
				env.Setenv("GORACE", "atexit_sleep_ms=10")
				env.Setenv("DONA_HOST", address)
				env.Setenv("DONA_BOOTSTRAP", addresses[1])
				env.Setenv("DATA", dataDir)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"code": wantCode, "validjson": validJSON, "interrupt": scriptCommands["interrupt"], "eventually": eventually, "serve": serve, "token": takeToken,
			},
		})
	})
}

func takeToken(ts *testscript.TestScript, _ bool, args []string) {
	m := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("there is no token in %s", ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], m[1])
}

func serve(ts *testscript.TestScript, _ bool, args []string) {
	stdin, hold := io.Pipe()
	served := make(chan error, 1)
	target := ts.Getenv("DONA_HOST")
	go func() {
		served <- demo.Serve(context.Background(), demo.Variant{
			Target: target, Service: args[0], Name: args[1], Endpoints: 1, Region: args[2],
		}, stdin)
	}()
	ts.Defer(func() {
		_ = hold.Close()
		if err := <-served; err != nil {
			ts.Logf("the endpoint: %v", err)
		}
	})
}

func eventually(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	for limit := time.Now().Add(scriptTime / 2); ; {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(limit) {
			ts.Fatalf("stdout never matched %q", args[0])
		}
	}
}
