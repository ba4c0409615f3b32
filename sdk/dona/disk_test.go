package dona_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/internal/cache"
)

// TestDiskChild is the process of its own in tests of the snapshots on disk: it
// says each version that it decides by, whether that is stale, and how long after
// the client was made the first decision was; or why there is none. It ends when its
// stdin does.
func TestDiskChild(t *testing.T) {
	dir, host, _ := strings.Cut(os.Getenv("DONA_DISK_CHILD"), " ")
	if host == "" {
		t.Skip("for other tests")
	}
	began := time.Now()
	c, err := dona.Dial(t.Context(), host, dona.WithCacheDir(dir), dona.WithReportInterval(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	svc := c.Service("checkout")
	last := ""
	for ctx.Err() == nil {
		changed := svc.Changed()
		p, err := svc.Pick(ctx, dona.Request{Unit: "user-2"})
		now := fmt.Sprintf("version %d stale %v", p.Decision.ConfigVersion, p.Decision.Stale)
		p.Cancel()
		if errors.Is(err, dona.ErrNoData) {
			now = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if now != last {
			fmt.Println(now, "after", time.Since(began))
			last = now
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond): // a first decision may be there without a change
		case <-ctx.Done():
		}
	}
}

// child is a process that decides with a folder of snapshots.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  chan string
}

func startChild(t *testing.T, dir, host string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestDiskChild$", "-test.v"), said: make(chan string, 10_000)}
	c.cmd.Env = append(os.Environ(), "DONA_DISK_CHILD="+dir+" "+host)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = in
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), " after ") {
				c.said <- lines.Text()
			}
		}
	}()
	t.Cleanup(c.end)
	return c
}

// hears waits until the child says something with text in it.
func (c *child) hears(t *testing.T, text string) string {
	t.Helper()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for {
		select {
		case line, open := <-c.said:
			if !open {
				t.Fatalf("the process ended without %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-late.C:
			t.Fatalf("the process did not say %q", text)
		}
	}
}

// kill ends a process that would wait for a host when it closes its client.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	c.end()
}

func (c *child) end() {
	_ = c.stdin.Close()
	for range c.said {
	}
	_ = c.cmd.Wait()
}

// large is a snapshot of so many endpoints.
func large(version uint64, endpoints int) *donav1.ConfigSnapshot {
	s := checkout(version)
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprintf("e%05d", i), Address: fmt.Sprintf("10.1.%d.%d:80", i/250, i%250), Variant: "v1", Region: "eu-central-1", LbWeight: 100})
	}
	return s
}

// TestProcessesShareSnapshots (N9): processes that write one folder keep the newest
// version in it, each starts from it while no host is there, and says that it is
// stale.
func TestProcessesShareSnapshots(t *testing.T) {
	const processes, last = 4, 40
	dir := filepath.Join(t.TempDir(), "cache")
	h := startHost(t)
	h.publish(large(1, 2000))
	var all []*child
	for range processes {
		all = append(all, startChild(t, dir, h.address))
	}
	for _, c := range all {
		c.hears(t, "version 1 stale false")
	}
	for version := uint64(2); version <= last; version++ {
		h.publish(large(version, 2000))
	}
	for n, c := range all {
		c.hears(t, fmt.Sprintf("version %d stale false", last))
		if n%2 == 0 {
			_ = c.cmd.Process.Kill() // in the middle of a write, perhaps
		}
		c.end()
	}
	kept, err := (&cache.Dir{Path: dir}).Load("checkout")
	if err != nil || kept.Snapshot.Version() != last {
		t.Fatalf("kept %v, %v: want version %d", kept, err, last)
	}
	h.stop()

	var slowest time.Duration
	for range 3 {
		all = nil
		for range processes {
			all = append(all, startChild(t, dir, h.address))
		}
		for _, c := range all {
			line := c.hears(t, " after ")
			for strings.Contains(line, "no data") && !strings.Contains(line, "file") { // before the file was read
				line = c.hears(t, " after ")
			}
			took, err := time.ParseDuration(line[strings.LastIndexByte(line, ' ')+1:])
			if err != nil || !strings.HasPrefix(line, fmt.Sprintf("version %d stale true", last)) {
				t.Fatalf("from disk: %q", line)
			}
			slowest = max(slowest, took)
			c.kill()
		}
	}
	t.Logf("first decision from disk after %v at most", slowest)
	if slowest > 10*time.Second { // 200 ms is the goal; the rest is for a busy machine
		t.Errorf("the first decision from disk took %v", slowest)
	}

	// What is damaged is ignored, and why is said.
	file := filepath.Join(dir, "checkout")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for reason, damage := range map[string]func() error{
		"damaged":           func() error { return os.WriteFile(file, b[:len(b)/2], 0o600) },
		"of a format":       func() error { return os.WriteFile(file, []byte("dona-snapshot-file 2\nwhatever"), 0o600) },
		"allowed are":       func() error { return os.Truncate(file, 100<<20) },
		"only a plain file": func() error { return errors.Join(os.Rename(file, file+"-"), os.Symlink(file+"-", file)) },
		"of service":        func() error { return errors.Join(os.Remove(file), keepForeign(file)) },
		"others may write":  func() error { return errors.Join(os.WriteFile(file, b, 0o600), os.Chmod(file, 0o666)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		c := startChild(t, dir, h.address)
		c.hears(t, reason)
		c.kill()
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// keepForeign writes the snapshot of another service.
func keepForeign(file string) error {
	b, err := cache.Encode(sealed(&donav1.ConfigSnapshot{Service: "billing", Version: 1}), time.Now())
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
