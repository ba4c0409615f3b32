//go:build linux

package external_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
)

// introduces writes a file that says what it is, and does nothing else.
func introduces(t testing.TB, path, name string) string {
	t.Helper()
	text := fmt.Sprintf("#!/bin/sh\necho '{\"name\":%q,\"version\":\"1.0.0\",\"kind\":\"KIND_PROBE\"}' # %s\n", name, path)
	must(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}

// entriesOf are the names in a folder, hidden ones too.
func entriesOf(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// What one of many says that it has pinned, is pinned afterwards.
func TestManyInstallAndPinAtOnce(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	const many = 8
	var all sync.WaitGroup
	for i := range many {
		name := fmt.Sprintf("p%d", i)
		file := introduces(t, filepath.Join(from, name), name)
		all.Go(func() {
			d := openPinned(t, dir) // as another process has it
			if _, err := d.Install(t.Context(), plugins.RunAlone, file, false); err != nil {
				t.Error(err)
				return
			}
			if _, err := d.Pin(t.Context(), plugins.RunAlone, external.PinRequest{Name: name}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	checked, unpinned, err := openPinned(t, dir).Verify()
	if err != nil || len(checked) != many || len(unpinned) != 0 {
		t.Errorf("pinned are %d, not pinned %v, %v", len(checked), unpinned, err)
	}
	for _, c := range checked {
		if c.Problem != "" {
			t.Error(c.Problem)
		}
	}
	if names := entriesOf(t, dir); len(names) != many+1 {
		t.Errorf("there are %v", names)
	}
}

// Many replace one version: it is there all the time, as one of them has it.
func TestReplacedAllTheTime(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	d := openPinned(t, dir)
	files := []string{introduces(t, filepath.Join(from, "one"), "p"), introduces(t, filepath.Join(from, "two"), "p")}
	done, err := d.Install(t.Context(), plugins.RunAlone, files[0], false)
	must(t, err)
	stop, missing := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				missing <- n
				return
			default:
			}
			if _, err := os.Stat(done.Path); err != nil {
				n++
			}
		}
	}()
	var all sync.WaitGroup
	for _, file := range files {
		all.Go(func() {
			for range 10 {
				if _, err := d.Install(t.Context(), plugins.RunAlone, file, true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	close(stop)
	if n := <-missing; n > 0 {
		t.Errorf("it was not there %d times", n)
	}
	if names := entriesOf(t, dir); len(names) != 1 {
		t.Errorf("there are %v", names)
	}
}

// What an install that was killed has left is removed by the next one, and what one
// that goes on has is not.
func TestLeftoversAreRemoved(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, ".install-1", "new"), 0o755))
	slow := filepath.Join(from, "slow")
	mark := filepath.Join(from, "runs")
	must(t, os.WriteFile(slow, []byte("#!/bin/sh\ntouch "+mark+"\nexec sleep 600\n"), 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := openPinned(t, dir).Install(ctx, plugins.RunAlone, slow, false)
		ended <- err
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it was not asked what it is")
		}
	}
	if _, err := openPinned(t, dir).Install(t.Context(), plugins.RunAlone, introduces(t, filepath.Join(from, "p"), "p"), false); err != nil {
		t.Error(err)
	}
	if names := entriesOf(t, dir); len(names) != 2 || names[0] == ".install-1" {
		t.Errorf("there are %v", names)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it is installed")
	}
	if names := entriesOf(t, dir); len(names) != 1 || names[0] != "p" {
		t.Errorf("there are %v", names)
	}
}

// Whoever waits for the directory too long is told, and nothing is changed.
func TestTheDirectoryIsHeld(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	d := openPinned(t, dir)
	_, err := d.Install(t.Context(), plugins.RunAlone, introduces(t, filepath.Join(from, "p"), "p"), false)
	must(t, err)
	held, err := os.Open(dir)
	must(t, err)
	must(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Pin(ctx, plugins.RunAlone); err == nil || !strings.Contains(err.Error(), "is being changed by somebody else") {
		t.Errorf("pinned: %v", err)
	}
	must(t, held.Close())
	if _, err := d.Pin(t.Context(), plugins.RunAlone); err != nil {
		t.Error(err)
	}
}

// The errors name the file that was given, not the copy that is gone.
func TestInstallErrorsNameTheFile(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	text, folder := filepath.Join(from, "text"), filepath.Join(from, "folder")
	must(t, os.WriteFile(text, []byte("hello\n"), 0o644))
	must(t, os.MkdirAll(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), nil, 0o644))
	scripts := filepath.Join(from, "scripts")
	must(t, os.MkdirAll(scripts, 0o755))
	must(t, os.WriteFile(filepath.Join(scripts, "scripts"), []byte("hello\n"), 0o644))
	for file, want := range map[string]string{
		text:    text + " is not installed: " + text + " is not executable: run chmod +x on it",
		folder:  folder + " is a folder without a script folder in it: name the plugin's file, or the folder of its script",
		scripts: scripts + " is not installed: " + scripts + "/scripts is not executable: run chmod +x on it",
	} {
		if _, err := openPinned(t, dir).Install(t.Context(), plugins.RunAlone, file, false); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if names := entriesOf(t, dir); len(names) != 0 {
		t.Errorf("there are %v", names)
	}
}
