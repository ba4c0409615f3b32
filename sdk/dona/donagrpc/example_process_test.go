package donagrpc_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

// The example's programs, processes of their own: two variants, and a client that
// follows a flag, also when a variant leaves.
func TestExampleProcess(t *testing.T) {
	h := donatest.Start(t)
	name := filepath.Join(t.TempDir(), "grpc-service")
	if out, err := exec.Command("go", "build", "-o", name, "github.com/dodona-project/dodona/examples/grpc-service").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	serve := func(variant string) (leave func()) {
		cmd := exec.Command(name, "-host", h.Address, "-variant", variant, "-grace", "200ms")
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		left := false
		leave = func() {
			if left {
				return
			}
			left = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", variant, err, &log)
			}
		}
		t.Cleanup(leave)
		return leave
	}
	endpoints := func(n int) func() bool {
		return func() bool { return len(h.Status(t, "greeter").GetConfig().GetEndpoints()) == n }
	}
	serve("v1")
	leave := serve("v2")
	donatest.Until(t, "both variants are registered", endpoints(2))
	call := func(want string) {
		t.Helper()
		out, err := exec.Command(name, "-host", h.Address, "-call", "200").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%v, %s: want %s", err, out, want)
		}
	}
	if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Flag: "greet-anew", Service: "greeter", RolloutPercent: 100, RolloutVariant: "v2"}}); err != nil {
		t.Fatal(err)
	}
	call("answered map[v2:200] failed 0")
	leave()
	donatest.Until(t, "v2 is gone", endpoints(1))
	call("answered map[v1:200] failed 0")
}
