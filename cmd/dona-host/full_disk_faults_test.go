//go:build faults && linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestFullDisk (A1): on a disk that is really full, control actions and
// attestations are refused in time, with the reason audit; decisions, streams and
// registrations go on; and all works again once there is space, without a restart.
func TestFullDisk(t *testing.T) {
	p := newProcess(t)
	disk := filepath.Dir(p.dir)
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=40m,mode=0700"); err != nil {
		t.Skipf("a disk of its own cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		p.kill()
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p.start()
	tr := begin(p, load{endpoints: 3, watchers: 2})
	tr.settled("every client to see every endpoint", 6)
	tr.decide(p)
	client := donav1.NewControlPlaneClient(p.dial())
	set := func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: flagNumber(i)})
		return err
	}
	if err := set(1); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(disk, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1 << 20, 4096, 1} {
		for block := make([]byte, n); err == nil; {
			_, err = f.Write(block)
		}
		err = nil
	}
	_ = f.Close()
	// The store's file has room for a while.
	var refused error
	for i := 2; refused == nil && i < 20_000; i++ {
		began := time.Now()
		if refused = set(i % 50); refused != nil {
			t.Logf("refused after %d more flags, in %v: %v", i-2, time.Since(began).Round(time.Millisecond), refused)
		}
	}
	audit := func(what string, err error) {
		t.Helper()
		for _, d := range status.Convert(err).Details() {
			if i, ok := d.(*errdetails.ErrorInfo); ok && i.Reason == "audit" && status.Code(err) == codes.Unavailable {
				return
			}
		}
		t.Errorf("%s on a full disk: %v", what, err)
	}
	audit("SetFlag", refused)
	_, err = client.GetAttestation(context.Background(), &donav1.AttestationRequest{Service: "web"})
	audit("GetAttestation", err)
	before := tr.decisions.Load()
	until(t, "decisions to go on", func() bool { return tr.decisions.Load() > before+100 })
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	// Always a write, while a flag that is as it was is none.
	until(t, "the host to attest again", func() bool {
		_, err := client.GetAttestation(context.Background(), &donav1.AttestationRequest{Service: "web"})
		return err == nil
	})
	if err := set(60); err != nil { // a new one
		t.Errorf("a flag once there is space: %v", err)
	}
	tr.end()
	p.kill()
	tr.holds(p)
}
