//go:build linux

package external_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/external"
	"github.com/dodona-project/dodona/plugins/lock"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// openPinned is a directory as production has it: what is not pinned does not run.
func openPinned(t testing.TB, dir string, named ...plugins.ID) *external.Dir {
	t.Helper()
	d, err := external.Open(external.Options{Dir: dir, Named: named, Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: testWriter{t}})})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pin writes that a version of a plugin is to run, with the digest that its file has.
func pin(t testing.TB, dir, name, version string) (digest string) {
	t.Helper()
	d := openPinned(t, dir)
	defer func() { must(t, d.Close()) }()
	done, err := d.Pin(t.Context(), plugins.RunAlone, external.PinRequest{Name: name, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	return done[0].Platforms[platform]
}

// write puts a lock with one entry there, without a look at the file.
func write(t testing.TB, dir string, entries ...lock.Entry) {
	t.Helper()
	l := new(lock.Lock)
	for _, e := range entries {
		l = l.With(e)
	}
	if err := lock.Write(filepath.Join(dir, lock.Name), l); err != nil {
		t.Fatal(err)
	}
}

func newPinnedHost(t *testing.T, dir string, settings map[plugins.ID]plugins.PluginConfig) *host {
	t.Helper()
	named := []plugins.ID{}
	for id, c := range settings {
		if id.Name != "analysis-mine" && id.Name != "analysis-other" || c.OverrideBuiltin {
			named = append(named, id)
		}
	}
	return newHostOver(t, dir, settings, openPinned(t, dir, named...))
}

// Everything for which a pinned plugin is rejected says what was expected, what is
// there and what to do, while the host and its other plugins go on.
func TestPinnedIsRejected(t *testing.T) {
	wrong := "sha256:" + strings.Repeat("ab", 32)
	const name = "analysis-bad"
	rel := filepath.Join(name, "1.0.0", platform, name)
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, dir, digest string)
		want   []string
	}{
		{"unpinned", func(t *testing.T, dir, _ string) { write(t, dir) }, []string{name + " is not in ", "does not run", "dona plugin lock " + name}},
		{"no lock", func(t *testing.T, dir, _ string) { must(t, os.Remove(filepath.Join(dir, lock.Name))) }, []string{name + " is not in "}},
		{"wrong digest", func(t *testing.T, dir, _ string) {
			write(t, dir, lock.Entry{Name: name, Version: "1.0.0", Kind: "analysis", Platforms: map[string]string{platform: wrong}})
		}, []string{"has the digest sha256:", "expected " + wrong, "plugins.lock pins for 1.0.0", "dona plugin lock " + name}},
		{"changed file", func(t *testing.T, dir, digest string) { stamp(t, filepath.Join(dir, rel), name, "1.0.0", "x") },
			[]string{"has the digest sha256:", "expected DIGEST"}},
		{"the file is writable by all", func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Join(dir, rel), 0o777)) },
			[]string{rel + " has mode 0777", "expected is that only its owner can write", "chmod go-w"}},
		{"a parent is writable by the group", func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Join(dir, name), 0o775)) },
			[]string{name + " has mode 0775", "chmod go-w"}},
		{"the directory is writable by all", func(t *testing.T, dir, _ string) { must(t, os.Chmod(dir, 0o777)) }, []string{" has mode 0777", "chmod go-w"}},
		{"the lock is writable by the group", func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Join(dir, lock.Name), 0o660)) },
			[]string{"plugins.lock has mode 0660", "chmod go-w"}},
		{"a link out", func(t *testing.T, dir, _ string) {
			out := filepath.Join(t.TempDir(), "out")
			must(t, os.Rename(filepath.Join(dir, rel), out))
			must(t, os.Symlink(out, filepath.Join(dir, rel)))
		}, []string{"is a symbolic link to ", "allowed are relative ones that stay within", "put the file itself there"}},
		{"a link for the lock", func(t *testing.T, dir, _ string) {
			out := filepath.Join(t.TempDir(), "out")
			must(t, os.Rename(filepath.Join(dir, lock.Name), out))
			must(t, os.Symlink(out, filepath.Join(dir, lock.Name)))
		}, []string{"plugins.lock is not a regular file"}},
		{"setuid", func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Join(dir, rel), os.ModeSetuid|0o755)) },
			[]string{rel + " is setuid or setgid", "chmod ug-s"}},
		{"missing", func(t *testing.T, dir, _ string) { must(t, os.Remove(filepath.Join(dir, rel))) }, []string{rel + ": no such file or directory: put the plugin's file there"}},
		{"another kind", func(t *testing.T, dir, digest string) {
			write(t, dir, lock.Entry{Name: name, Version: "1.0.0", Kind: "probe", Platforms: map[string]string{platform: digest}})
		}, []string{"has kind probe in ", "expected analysis"}},
		{"another platform", func(t *testing.T, dir, digest string) {
			write(t, dir, lock.Entry{Name: name, Version: "1.0.0", Kind: "analysis", Platforms: map[string]string{"plan9_mips": digest}})
		}, []string{"is pinned in", "but not for " + platform}},
		{"a broken lock", func(t *testing.T, dir, _ string) {
			must(t, os.WriteFile(filepath.Join(dir, lock.Name), []byte("- name: x\n"), 0o600))
		}, []string{"plugins.lock:1:3: version is missing"}},
		{"another version inside", func(t *testing.T, dir, _ string) {
			path := filepath.Join(dir, rel)
			stamp(t, path, name, "0.9.9", "")
			write(t, dir, lock.Entry{Name: name, Version: "1.0.0", Kind: "analysis", Platforms: map[string]string{platform: fileDigest(t, path)}})
		}, []string{"calls itself version 0.9.9: expected 1.0.0, the version that is pinned"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			install(t, dir, name, "1.0.0")
			digest := pin(t, dir, name, "1.0.0")
			good, err := os.ReadFile(filepath.Join(dir, lock.Name))
			must(t, err)
			tc.change(t, dir, digest)
			h := newPinnedHost(t, dir, map[plugins.ID]plugins.PluginConfig{analysisID(name): {Required: true}})
			until(t, "it to be rejected", func() bool { return h.status(plugins.KindAnalysis, name).GetState() == "rejected" })
			s := h.status(plugins.KindAnalysis, name)
			for _, want := range tc.want {
				if want = strings.ReplaceAll(want, "DIGEST", digest); !strings.Contains(s.GetReason(), want) {
					t.Errorf("the reason is %q: want %q", s.GetReason(), want)
				}
			}
			if m := h.Missing(); !slices.Contains(m, analysisID(name)) {
				t.Errorf("missing are %v", m)
			}
			if ev := h.event(plugins.EventReject, name); ev.Reason != s.GetReason() {
				t.Errorf("the event says %q, the status %q", ev.Reason, s.GetReason())
			}
			h.await(plugins.KindAnalysis, "analysis-mine") // the host runs on
			// Cured, it comes by itself.
			must(t, os.RemoveAll(filepath.Join(dir, lock.Name)))
			must(t, os.RemoveAll(filepath.Join(dir, name)))
			must(t, os.Chmod(dir, 0o755))
			install(t, dir, name, "1.0.0")
			must(t, os.WriteFile(filepath.Join(dir, lock.Name), good, 0o600))
			until(t, "it to come back", func() bool { return h.Ready(plugins.KindAnalysis, name) })
		})
	}
}

// What is not pinned is listed, with the reason, and never run, not even to ask it
// what it is.
func TestUnpinnedIsNotEvenAsked(t *testing.T) {
	dir, mark := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	script(t, dir, "mine", "1.0.0", "#!/bin/sh\ntouch "+mark+"\n")
	stamp(t, place(t, dir, "analysis-new", "1.0.0"), "analysis-new", "1.0.0", "mark="+mark)
	h := newPinnedHost(t, dir, nil)
	until(t, "both to be listed", func() bool {
		ids := h.listed()
		return slices.Contains(ids, "unknown/mine") && slices.Contains(ids, "unknown/analysis-new")
	})
	if s := h.status(plugins.KindUnknown, "mine"); s.GetState() != "rejected" || !strings.Contains(s.GetReason(), "dona plugin lock mine") {
		t.Errorf("status %v", s)
	}
	if err := h.Ensure(plugins.KindAnalysis, "analysis-new"); !errors.Is(err, plugins.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Error("a file that nobody pinned was run")
	}
	// Pinned, it is there, without a restart.
	pin(t, dir, "analysis-new", "")
	until(t, "it to be known", func() bool { return h.Ensure(plugins.KindAnalysis, "analysis-new") == nil })
	h.await(plugins.KindAnalysis, "analysis-new")
	if ids := h.listed(); slices.Contains(ids, "unknown/analysis-new") {
		t.Errorf("listed are %v", ids)
	}
}

// swapping is a catalog whose file somebody replaces as soon as it was verified.
type swapping struct {
	plugins.Catalog
	after func()
}

func (s swapping) Find(id plugins.ID) (plugins.File, error) {
	f, err := s.Catalog.Find(id)
	s.after()
	return f, err
}

// A file that is swapped between its check and its start: the bytes that were put
// there are run 0 times of 100 with the tag faults, and of fewer without.
func TestSwappedBytesNeverRun(t *testing.T) {
	t.Parallel()
	const name = "analysis-swapped"
	for _, kind := range []string{"program", "script"} {
		t.Run(kind, func(t *testing.T) {
			dir, mark := t.TempDir(), filepath.Join(t.TempDir(), "ran")
			path := place(t, dir, name, "1.0.0")
			good, evil, next := filepath.Join(dir, "Good"), filepath.Join(dir, "Evil"), filepath.Join(dir, "Next")
			if kind == "program" {
				stamp(t, good, name, "1.0.0", "")
				stamp(t, evil, name, "1.0.0", "mark="+mark)
			} else {
				must(t, os.WriteFile(good, []byte(says(name, kindAnalysis)), 0o755))
				must(t, os.WriteFile(evil, []byte(strings.Replace(says(name, kindAnalysis), "\n", "\ntouch "+mark+"\n", 1)), 0o755))
			}
			put := func(from string) {
				t.Helper()
				must(t, os.Link(from, next))
				must(t, os.Rename(next, path))
				_ = os.Remove(next) // a rename to the same file leaves it
			}
			put(good)
			digest := pin(t, dir, name, "1.0.0")
			var honest atomic.Bool
			h := newHostOver(t, dir, nil, swapping{openPinned(t, dir), func() {
				if !honest.Load() {
					put(evil)
				}
			}})
			until(t, "the plugin to be known", func() bool { return h.Ensure(plugins.KindAnalysis, name) == nil })
			until(t, "the first start to end", func() bool {
				s := h.status(plugins.KindAnalysis, name).GetState()
				return s == "ready" || s == "rejected"
			})
			started := 0
			for range swaps {
				put(good)
				switch err := h.Reload(t.Context(), plugins.KindAnalysis, name); {
				case err == nil:
					started++
				case !strings.Contains(err.Error(), digest): // which was expected
					t.Fatalf("%v", err)
				}
				if ran, err := os.ReadFile(mark); err == nil {
					t.Fatalf("swapped bytes ran: %s", ran)
				}
			}
			t.Logf("started %d times of %d, swapped bytes ran 0 times", started, swaps)
			// A program runs from the copy that was verified; a script's folder is verified
			// again while it is copied.
			if kind == "program" && started < swaps/2 || kind == "script" && started > 0 {
				t.Errorf("it started %d times of %d", started, swaps)
			}
			// The same bytes do run when they are what is pinned: the mark works.
			honest.Store(true)
			put(evil)
			pin(t, dir, name, "1.0.0")
			must(t, os.Remove(mark)) // of who asked it what it is
			until(t, "the other bytes to run when they are pinned", func() bool {
				_ = h.Reload(t.Context(), plugins.KindAnalysis, name)
				_, err := os.Stat(mark)
				return err == nil
			})
		})
	}
}

// While somebody swaps the file all the time, each start is of the pinned bytes or
// none.
func TestSwappingAllTheTime(t *testing.T) {
	t.Parallel()
	dir, mark := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	const name = "analysis-swapped"
	path := install(t, dir, name, "1.0.0")
	pin(t, dir, name, "1.0.0")
	good, evil := path+".good", path+".evil"
	must(t, os.Link(path, good))
	stamp(t, evil, name, "1.0.0", "mark="+mark)
	h := newPinnedHost(t, dir, nil)
	until(t, "the plugin to be known", func() bool { return h.Ensure(plugins.KindAnalysis, name) == nil })
	h.await(plugins.KindAnalysis, name)
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			from := []string{evil, good}[i%2]
			next := path + ".next"
			_ = os.Remove(next)
			_ = os.Link(from, next)
			_ = os.Rename(next, path)
		}
	})
	started := 0
	const tries = 30
	for range tries {
		switch err := h.Reload(t.Context(), plugins.KindAnalysis, name); {
		case err == nil:
			started++
		case !strings.Contains(err.Error(), "has the digest") && !strings.Contains(err.Error(), "was replaced while") && !strings.Contains(err.Error(), "no such file"):
			t.Errorf("%v", err)
		}
	}
	close(stop)
	swapper.Wait()
	t.Logf("started %d times of %d", started, tries)
	if ran, err := os.ReadFile(mark); err == nil {
		t.Fatalf("swapped bytes ran: %s", ran)
	}
}

// A new version that is pinned while 50 callers ask takes over without one failed
// call, and so does the old one when it is pinned again. Nobody asks for a reload.
func TestLockChangesWhileItServes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const name = "analysis-live"
	for _, v := range []string{"1.0.0", "1.1.0", "2.0.0"} {
		install(t, dir, name, v)
	}
	pin(t, dir, name, "1.0.0")
	h := newPinnedHost(t, dir, nil)
	until(t, "the plugin to be known", func() bool { return h.Ensure(plugins.KindAnalysis, name) == nil })
	h.await(plugins.KindAnalysis, name)
	facade := analysis.New(h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers sync.WaitGroup
	var calls, failed atomic.Int64
	for range 50 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := facade.Evaluate(context.WithoutCancel(ctx), name, &pluginv1.EvaluateRequest{Service: "shop", Query: &donav1.AnalysisQuery{Name: "q"}}); err != nil {
					failed.Add(1)
					t.Log(err)
				}
				calls.Add(1)
				time.Sleep(10 * time.Millisecond) // a pace, not a wait
			}
		})
	}
	for _, v := range []string{"1.1.0", "2.0.0", "1.0.0", "2.0.0"} {
		began := time.Now()
		digest := pin(t, dir, name, v)
		until(t, "version "+v+" to serve", func() bool { return h.version(name) == v })
		t.Logf("%s serves after %v", v, time.Since(began))
		if s := h.status(plugins.KindAnalysis, name); s.GetDigest() != digest || s.GetVersion() != v {
			t.Errorf("status %v", s)
		}
	}
	// What is pinned and cannot serve changes nothing, and is told.
	stamp(t, place(t, dir, name, "3.0.0"), name, "2.9.9", "")
	write(t, dir, lock.Entry{Name: name, Version: "3.0.0", Kind: "analysis", Platforms: map[string]string{platform: fileDigest(t, place(t, dir, name, "3.0.0"))}})
	until(t, "the failed reload to be told", func() bool {
		s := h.status(plugins.KindAnalysis, name)
		return s.GetState() == "ready" && strings.Contains(s.GetReason(), "stays") && strings.Contains(s.GetReason(), "calls itself version 2.9.9")
	})
	must(t, os.WriteFile(filepath.Join(dir, lock.Name), []byte("- {\n"), 0o600))
	until(t, "the broken lock to be told", func() bool {
		s := h.status(plugins.KindAnalysis, name)
		return s.GetState() == "ready" && strings.Contains(s.GetReason(), "at its next start it would be refused: ") && strings.Contains(s.GetReason(), "is not YAML")
	})
	cancel()
	callers.Wait()
	t.Logf("%d calls", calls.Load())
	if failed.Load() != 0 || calls.Load() == 0 {
		t.Errorf("%d of %d calls failed", failed.Load(), calls.Load())
	}
	if v := h.version(name); v != "2.0.0" {
		t.Errorf("it is %s", v)
	}
}

// Where unpinned plugins run, a file that was replaced takes over by itself.
func TestFileChangesWhileItServes(t *testing.T) {
	t.Parallel()
	h := newHost(t, t.TempDir(), nil)
	path := install(t, h.dir, "analysis-dev", "1.0.0")
	until(t, "the plugin to be known", func() bool { return h.Ensure(plugins.KindAnalysis, "analysis-dev") == nil })
	h.await(plugins.KindAnalysis, "analysis-dev")
	stamp(t, path, "analysis-dev", "1.0.1", "")
	until(t, "the new file to serve", func() bool { return h.version("analysis-dev") == "1.0.1" })
}

// One copy per digest, however often it is started, and none is left at the end.
func TestCopiesAreSharedAndLetGo(t *testing.T) {
	dir := t.TempDir()
	install(t, dir, "analysis-copy", "1.0.0")
	install(t, dir, "analysis-copy", "2.0.0")
	pin(t, dir, "analysis-copy", "1.0.0")
	before := copies(t)
	d := openPinned(t, dir)
	place := func(dir string) plugins.Program {
		t.Helper()
		f, err := d.Find(analysisID("analysis-copy"))
		must(t, err)
		if _, err := f.Program.Place(dir); err != nil {
			t.Fatal(err)
		}
		return f.Program
	}
	one, two := place(t.TempDir()), place(t.TempDir())
	if n := copies(t) - before; n != 1 {
		t.Errorf("%d copies of one digest", n)
	}
	one.Close()
	one.Close()
	two.Close()
	if n := copies(t) - before; n != 1 {
		t.Errorf("%d copies for the next start", n)
	}
	pin(t, dir, "analysis-copy", "2.0.0")
	three := place(t.TempDir())
	if n := copies(t) - before; n != 1 {
		t.Errorf("%d copies after an upgrade", n)
	}
	three.Close()
	must(t, d.Close())
	if n := copies(t) - before; n != 0 {
		t.Errorf("%d copies at the end", n)
	}
}

// copies counts the descriptors of sealed memory.
func copies(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "/memfd:") {
			n++
		}
	}
	return n
}

func fileDigest(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(text))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
