//go:build linux

package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openTrue(t *testing.T) *os.File {
	t.Helper()
	path, err := exec.LookPath("true")
	must(t, err)
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A sealed copy has the file's bytes, runs, and takes no change, not even by who has
// made it.
func TestSealed(t *testing.T) {
	f := openTrue(t)
	sealed, digest, err := Seal(f, "name")
	must(t, err)
	defer func() { _ = sealed.Close() }()
	if want, err := Sum(f); err != nil || digest != want {
		t.Errorf("digest %s, want %s: %v", digest, want, err)
	}
	if fd := sealed.Fd(); fd < least {
		t.Errorf("descriptor %d", fd)
	}
	flags, err := unix.FcntlInt(sealed.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("it is inherited: flags %#x, %v", flags, err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", sealed.Fd())
	if out, err := exec.Command(path).CombinedOutput(); err != nil {
		t.Errorf("it does not run: %v %s", err, out)
	}
	if _, err := sealed.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it was written to")
	}
	again, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		if _, err := again.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("written to by another descriptor: %v", err)
		}
		if err := again.Truncate(0); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncated: %v", err)
		}
		_ = again.Close()
	}
	for _, seal := range []int{unix.F_SEAL_SEAL, unix.F_SEAL_WRITE, unix.F_SEAL_GROW, unix.F_SEAL_SHRINK} {
		if have, err := unix.FcntlInt(sealed.Fd(), unix.F_GET_SEALS, 0); err != nil || have&seal == 0 {
			t.Errorf("seals %#x, want %#x: %v", have, seal, err)
		}
	}
}

// Programs are started all the time while copies are made: a copy is busy for a moment
// at most.
func TestSealedWhileOthersStart(t *testing.T) {
	f := openTrue(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	}()
	for range 50 {
		sealed, _, err := Seal(f, "name")
		must(t, err)
		run := func(path string) {
			t.Helper()
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				err := exec.Command(path).Run()
				if err == nil {
					return
				}
				if !errors.Is(err, unix.ETXTBSY) || time.Now().After(end) {
					t.Fatal(err)
				}
			}
		}
		run(fmt.Sprintf("/proc/self/fd/%d", sealed.Fd()))
		_ = sealed.Close()
		path := filepath.Join(t.TempDir(), "copy")
		_, err = CopyFile(f, path)
		must(t, err)
		run(path)
	}
	close(stop)
	<-done
}

// folder makes a script's folder.
func folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "folder")
	must(t, os.MkdirAll(filepath.Join(dir, "lib", "deep"), 0o755))
	for name, mode := range map[string]os.FileMode{"run": 0o755, "lib/a": 0o644, "lib/deep/b": 0o600, "z": 0o444} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("content of "+name), mode))
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	must(t, os.Symlink("deep/../a", filepath.Join(dir, "lib", "link")))
	return dir
}

func anything(string, fs.FileInfo) error { return nil }

func TestTree(t *testing.T) {
	dir := folder(t)
	var lines strings.Builder
	for _, l := range []struct{ mode, content, path string }{
		{"0644", "content of lib/a", "lib/a"}, {"0600", "content of lib/deep/b", "lib/deep/b"}, {"link", "deep/../a", "lib/link"},
		{"0755", "content of run", "run"}, {"0444", "content of z", "z"},
	} {
		fmt.Fprintf(&lines, "%s %x %s\n", l.mode, sha256.Sum256([]byte(l.content)), l.path)
	}
	want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(lines.String())))
	got, err := SumTree(dir, anything)
	if err != nil || got != want {
		t.Fatalf("%s, %v: want %s, of\n%s", got, err, want, lines.String())
	}
	to := filepath.Join(t.TempDir(), "copy")
	if got, err := CopyTree(dir, to, anything); err != nil || got != want {
		t.Fatalf("the copy has %s, %v", got, err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "lib", "link")); err != nil || string(text) != "content of lib/a" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, filepath.WalkDir(to, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err == nil && (info.Mode().Perm()&0o277 != 0 || e.IsDir() && info.Mode().Perm() != 0o500) {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return err
	}))
	must(t, Remove(to))
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// Everything in a folder that could change what runs changes its digest.
func TestTreeChanges(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"content":  func(dir string) error { return os.WriteFile(filepath.Join(dir, "lib/deep/b"), []byte("x"), 0o600) },
		"mode":     func(dir string) error { return os.Chmod(filepath.Join(dir, "lib/a"), 0o755) },
		"name":     func(dir string) error { return os.Rename(filepath.Join(dir, "z"), filepath.Join(dir, "y")) },
		"place":    func(dir string) error { return os.Rename(filepath.Join(dir, "z"), filepath.Join(dir, "lib", "z")) },
		"new file": func(dir string) error { return os.WriteFile(filepath.Join(dir, ".hidden"), nil, 0o644) },
		"less":     func(dir string) error { return os.Remove(filepath.Join(dir, "z")) },
		"link":     func(dir string) error { return relink(filepath.Join(dir, "lib", "link"), "deep/b") },
		"link's file": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "lib/link")), os.WriteFile(filepath.Join(dir, "lib/link"), []byte("content of lib/a"), 0o644))
		},
	} {
		dir := folder(t)
		before, err := SumTree(dir, anything)
		must(t, err)
		must(t, change(dir))
		if after, err := SumTree(dir, anything); err != nil || after == before {
			t.Errorf("%s: %s, %v", name, after, err)
		}
	}
}

func relink(path, to string) error { return errors.Join(os.Remove(path), os.Symlink(to, path)) }

func TestTreeIsRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, nil, 0o644))
	for name, tc := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"link out":           {func(dir string) error { return os.Symlink(outside, filepath.Join(dir, "out")) }, "out is a symbolic link to"},
		"link out, relative": {func(dir string) error { return os.Symlink("../../x", filepath.Join(dir, "out")) }, "out is a symbolic link to"},
		"link out by a link": {func(dir string) error {
			// By words it stays inside, by where the links lead it does not.
			return errors.Join(os.Symlink("../..", filepath.Join(dir, "lib", "deep", "up")), os.Symlink("lib/deep/up/../../"+filepath.Base(filepath.Dir(outside)), filepath.Join(dir, "out")))
		}, "out is a symbolic link to"},
		"link to nothing": {func(dir string) error { return os.Symlink("nothing", filepath.Join(dir, "out")) }, "allowed are those that lead to something"},
		"pipe":            {func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600) }, "pipe is not a regular file"},
		"line break":      {func(dir string) error { return os.WriteFile(filepath.Join(dir, "a\nb"), nil, 0o600) }, "without control characters"},
		"no text":         {func(dir string) error { return os.WriteFile(filepath.Join(dir, "a\xff"), nil, 0o600) }, "it has to be text"},
		"checked":         {func(dir string) error { return os.WriteFile(filepath.Join(dir, "bad"), nil, 0o600) }, "bad is bad"},
	} {
		dir := folder(t)
		must(t, tc.change(dir))
		check := func(path string, _ fs.FileInfo) error {
			if path == "bad" {
				return errors.New("bad is bad")
			}
			return nil
		}
		if sum, err := SumTree(dir, check); err == nil || sum != "" || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, sum, err, tc.want)
		}
		to := filepath.Join(t.TempDir(), "copy")
		if _, err := CopyTree(dir, to, check); err == nil {
			t.Errorf("%s: it was copied", name)
		}
	}
}

// What is copied can be removed by who is not root, though nobody may write there.
func TestRemoveWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			t.Skip("root removes everything, and there is no setpriv to be somebody else")
		}
		self, err := os.Executable()
		must(t, err)
		dir, err := os.MkdirTemp("/tmp", "dona-image-*")
		must(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		must(t, os.Chmod(dir, 0o755))
		must(t, os.Chown(dir, 65534, 65534))
		text, err := os.ReadFile(self)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "test"), text, 0o755))
		cmd := exec.Command(setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", filepath.Join(dir, "test"), "-test.run", "^TestRemoveWithoutRoot$")
		cmd.Env, cmd.Dir = []string{"TMPDIR=" + dir, "PATH=/usr/bin:/bin"}, dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	to := filepath.Join(t.TempDir(), "copy")
	_, err := CopyTree(folder(t), to, anything)
	must(t, err)
	if err := os.RemoveAll(to); err == nil {
		t.Error("it was removed as it is: this test shows nothing")
	}
	must(t, Remove(to))
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	must(t, Remove(to)) // of nothing
}
