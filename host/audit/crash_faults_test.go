//go:build faults

package audit_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/attest"
)

const crashDir = "DONA_TEST_AUDIT_DIR"

func onDisk(t *testing.T, dir string) *audit.Attester {
	t.Helper()
	st, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	signer, err := audit.OpenSigner(filepath.Join(dir, "attestation.key"), true)
	if err != nil {
		t.Fatal(err)
	}
	return &audit.Attester{Store: audit.Guard(st), Log: audit.New("example.org"), Signer: signer}
}

// TestCrashChild is the process that dies while it moves entries to segment files.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("is the child of TestCrashPoints")
	}
	a := onDisk(t, dir)
	for range 12 {
		fill(t, a, "web", 1000)
	}
	if err := keeping(t, nil, a, dir, func(o *audit.RetainOptions) { o.MaxEntries = 1000 }).Move(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Fatal("the process outlived its crash point")
}

// TestCrashPoints kills the process around the moment at which entries leave the
// store. Afterwards each is in the store or in a segment file, none is nowhere, and
// the next move goes on.
func TestCrashPoints(t *testing.T) {
	for point, moved := range map[string]uint64{
		"audit.before-trim:1": 0, "audit.after-trim:1": 5000, "audit.before-trim:2": 5000, "audit.after-trim:2": 10_000, "audit.before-trim:3": 10_000,
	} {
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.count=1")
			cmd.Env = append(os.Environ(), crashDir+"="+dir, "DONA_CRASH_POINT="+point)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child was not killed: %v\n%s", err, out)
			}
			a := onDisk(t, dir)
			var o *attest.Older
			if o = older(t, a); o == nil {
				o = &attest.Older{}
			}
			if n, err := check(a.Store, a.Log, "web"); err != nil || n != 12_000 || o.LastSeq != moved {
				t.Fatalf("after the crash the chain ends at %d and begins after %d, want %d; %v", n, o.LastSeq, moved, err)
			}
			r := keeping(t, nil, a, dir, func(o *audit.RetainOptions) { o.MaxEntries = 1000 })
			if err := r.Move(context.Background()); err != nil {
				t.Fatal(err)
			}
			holds(t, a, dir, 3, 12_000-900)
		})
	}
}
