//go:build linux

package external_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

const kindAnalysis = pluginv1.Kind_KIND_ANALYSIS

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file or directory; make it, or choose another",
		text:                       "is not a directory",
	} {
		if _, err := external.Open(external.Options{Dir: path}); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNewestVersionOfThisPlatformIsFound(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"0.9.0", "1.2.0", "1.10.0-rc.1", "1.10.0", "1.10.0-rc.2", "1.9.9"} {
		script(t, dir, "mine", v, says("mine", kindAnalysis))
	}
	for _, other := range []string{"mine/2.0.0/plan9_mips/mine", "mine/v3.0.0/" + platform + "/mine", "mine/latest/" + platform + "/mine", "mine/01.0.0/" + platform + "/mine"} {
		path := filepath.Join(dir, other)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := open(t, dir).Find(analysisID("mine"))
	path := filepath.Join(dir, "mine", "1.10.0", platform, "mine")
	if err != nil || f.Path != path || f.Source != plugins.SourceFile || len(f.Args) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	f.Program.Close()
	if want := folderDigest(t, filepath.Dir(path)); f.Digest != want {
		t.Errorf("digest %s, want %s", f.Digest, want)
	}
}

// Every way in which somebody else could choose what runs, and every file that
// is none: refused with the path, the reason, and what to do.
func TestRefused(t *testing.T) {
	outside := t.TempDir()
	good := filepath.Join(outside, "good")
	if err := os.WriteFile(good, []byte(says("mine", kindAnalysis)), 0o755); err != nil {
		t.Fatal(err)
	}
	chmod := func(mode os.FileMode, rel string) func(string) error {
		return func(dir string) error { return os.Chmod(filepath.Join(dir, rel), mode) }
	}
	const file = "mine/1.0.0/" + platform + "/mine"
	instead := func(rel string, put func(path string) error) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, rel)
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return put(path)
		}
	}
	link := func(rel, to string) func(string) error {
		return instead(rel, func(path string) error { return os.Symlink(to, path) })
	}
	chown := func(rel string) func(string) error {
		return func(dir string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			return os.Chown(filepath.Join(dir, rel), 12345, -1)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(dir string) error
		path   string // in the error, below dir
		want   string // empty = not refused
	}{
		{"nothing", func(string) error { return nil }, "", ""},
		{"only its owner can read it", chmod(0o700, file), "", ""},
		{"missing", instead(file, func(string) error { return nil }), file, "no such file or directory: put the plugin's file there"},
		{"not for this platform", instead("mine/1.0.0/"+platform, func(string) error { return nil }), "mine", "has no <version>/" + platform + "/mine"},
		{"no such plugin", instead("mine", func(string) error { return nil }), "mine", "has no <version>/" + platform + "/mine"},
		{"a directory", instead(file, func(path string) error { return os.Mkdir(path, 0o755) }), file, "is a directory"},
		{"a pipe", instead(file, func(path string) error { return syscall.Mkfifo(path, 0o755) }), file, "is not a regular file"},
		{"a pipe for its folder", instead("mine/1.0.0", func(path string) error { return syscall.Mkfifo(path, 0o755) }), "mine", "has no <version>"},
		{"a pipe for its name", instead("mine", func(path string) error { return syscall.Mkfifo(path, 0o755) }), "mine", "has no <version>"},
		{"not executable", chmod(0o644, file), file, "is not executable: run chmod +x on it"},
		{"the group can write", chmod(0o775, file), file, "has mode 0775, so that others can change what runs: expected is that only its owner can write; run chmod go-w on it"},
		{"all can write", chmod(0o757, file), file, "has mode 0757"},
		{"all can write the version", chmod(0o777, "mine/1.0.0"), "mine/1.0.0", "has mode 0777"},
		{"all can write the platform", chmod(0o777, "mine/1.0.0/"+platform), "mine/1.0.0/" + platform, "has mode 0777"},
		{"the group can write the name", chmod(0o770, "mine"), "mine", "has mode 0770"},
		{"all can write the directory, sticky", chmod(os.ModeSticky|0o777, "."), "", "has mode 0777"},
		{"setuid", chmod(os.ModeSetuid|0o755, file), file, "is setuid or setgid"},
		{"setgid", chmod(os.ModeSetgid|0o755, file), file, "is setuid or setgid"},
		{"of another user", chown(file), file, "belongs to user 12345"},
		{"folder of another user", chown("mine/1.0.0"), "mine/1.0.0", "belongs to user 12345"},
		{"a link out", link(file, good), file, "is a symbolic link to " + good + ": allowed are relative ones"},
		{"a relative link out", link(file, "../../../../"+filepath.Base(outside)+"/good"), file, "leads out of the plugin directory"},
		{"a folder that is a link out", link("mine/1.0.0/"+platform, outside), "mine/1.0.0/" + platform, "is a symbolic link to"},
		{"a name that is a link out", func(dir string) error {
			if err := os.Rename(filepath.Join(dir, "mine"), filepath.Join(outside, "moved")); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(outside, "moved"), filepath.Join(dir, "mine"))
		}, "mine", "is a symbolic link to"},
		{"a link in circles", link(file, "mine"), file, "more than 16 symbolic links"},
		{"a link to nothing", link(file, "none"), "mine/1.0.0/" + platform + "/none", "no such file"},
		{"a link inside", func(dir string) error {
			if err := os.Rename(filepath.Join(dir, file), filepath.Join(dir, "mine", "build")); err != nil {
				return err
			}
			return os.Symlink("../../build", filepath.Join(dir, file))
		}, "mine/build", "a script runs with its folder, so that it has to be there itself"},
		{"a link inside its folder", func(dir string) error {
			if err := os.Rename(filepath.Join(dir, file), filepath.Join(dir, file+".sh")); err != nil {
				return err
			}
			return os.Symlink("mine.sh", filepath.Join(dir, file))
		}, "", ""},
		{"a link out of its folder beside it", func(dir string) error { return os.Symlink(good, filepath.Join(dir, file+".lib")) },
			"mine/1.0.0/" + platform, "mine.lib is a symbolic link to \"" + good + "\": allowed are those that lead to something in the plugin's folder"},
		{"a file that all can write beside it", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, file+".lib"), nil, 0o644), os.Chmod(filepath.Join(dir, file+".lib"), 0o666))
		}, file + ".lib", "has mode 0666"},
		{"a setuid file beside it", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, file+".lib"), nil, 0o644), os.Chmod(filepath.Join(dir, file+".lib"), os.ModeSetuid|0o755))
		}, file + ".lib", "is setuid or setgid"},
		{"a pipe beside it", func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, file+".pipe"), 0o644) },
			"mine/1.0.0/" + platform, "mine.pipe is not a regular file"},
		{"a link inside to a folder that all can write", func(dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "shared"), 0o755); err != nil {
				return err
			}
			if err := os.Rename(filepath.Join(dir, file), filepath.Join(dir, "shared", "build")); err != nil {
				return err
			}
			if err := os.Symlink("../../../shared/build", filepath.Join(dir, file)); err != nil {
				return err
			}
			return os.Chmod(filepath.Join(dir, "shared"), 0o777)
		}, "shared", "has mode 0777"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(filepath.Dir(outside), "plugins-"+strconv.FormatInt(time.Now().UnixNano(), 36))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			script(t, dir, "mine", "1.0.0", says("mine", kindAnalysis))
			if err := tc.change(dir); err != nil {
				t.Fatal(err)
			}
			d := open(t, dir, analysisID("mine"))
			f, err := d.Find(analysisID("mine"))
			if tc.want == "" {
				if err != nil || f.Digest == "" {
					t.Fatalf("%+v, %v", f, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, tc.path)) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%+v, %v; want %q", f, err, tc.want)
			}
			if f.Path != "" || f.Digest != "" {
				t.Errorf("an error and a file: %+v", f)
			}
			// It is listed all the same, because the configuration names it.
			if ids := list(t, d); !slices.Contains(ids, analysisID("mine")) {
				t.Errorf("listed are %v", ids)
			}
		})
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	d := open(t, t.TempDir())
	for _, name := range []string{"", "..", "../x", "a/b", "A", "-x", strings.Repeat("a", 64), "x\x00"} {
		if _, err := d.Find(analysisID(name)); err == nil || !strings.Contains(err.Error(), "allowed are 1 to 63") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// What files say of themselves decides their kind, unless the configuration
// does; who says nothing is listed as unknown, and Find has the reason.
func TestKinds(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(t.TempDir(), "child")
	script(t, dir, "measures", "1.0.0", says("measures", kindAnalysis))
	script(t, dir, "looks", "1.0.0", says("looks", pluginv1.Kind_KIND_PROBE))
	script(t, dir, "chooses", "1.0.0", says("chooses", pluginv1.Kind_KIND_STRATEGY))
	script(t, dir, "named", "1.0.0", "#!/bin/sh\nexit 1\n")
	script(t, dir, "future", "1.0.0", "#!/bin/sh\necho '{\"name\":\"future\",\"kind\":\"KIND_ANALYSIS\",\"later\":{\"x\":[1]}}'\n")
	unknown := map[string]struct{ text, want string }{
		"fails":    {"#!/bin/sh\necho first >&2\necho 'no licence' >&2\nexit 3\n", "it ended with exit code 3; it said: no licence"},
		"silent":   {"#!/bin/sh\n", "is not a description in JSON"},
		"talks":    {"#!/bin/sh\necho hello\n", "is not a description in JSON"},
		"none":     {says("none", pluginv1.Kind_KIND_UNSPECIFIED), "of kind unspecified: this host runs strategy, analysis and probe"},
		"renamed":  {says("other", kindAnalysis), `it calls itself "other": its file and folder must have its name`},
		"floods":   {"#!/bin/sh\nhead -c 70000 /dev/zero\nsleep 600\n", "writes more than 65536 bytes"},
		"hangs":    {"#!/bin/sh\necho $$ >" + mark + "\nsleep 600 &\necho $! >>" + mark + "\nwait\n", "has not ended within 2s"},
		"plain":    {"echo no first line\n", "exec format error: it is neither a program for linux/"},
		"homeless": {"#!/nonexistent/interpreter\n", `its interpreter "/nonexistent/interpreter" is not there`},
	}
	for name, u := range unknown {
		script(t, dir, name, "1.0.0", u.text)
	}
	for _, ignored := range []string{".hidden", "Upper", "under_score"} {
		script(t, dir, ignored, "1.0.0", says("x", kindAnalysis))
	}
	if err := os.WriteFile(filepath.Join(dir, "readme"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir, plugins.ID{Kind: plugins.KindProbe, Name: "named"})
	want := []plugins.ID{analysisID("future"), analysisID("measures"), {Kind: plugins.KindProbe, Name: "looks"},
		{Kind: plugins.KindProbe, Name: "named"}, {Kind: plugins.KindStrategy, Name: "chooses"}}
	for _, name := range []string{"fails", "floods", "hangs", "homeless", "none", "plain", "renamed", "silent", "talks"} {
		want = append(want, plugins.ID{Kind: plugins.KindUnknown, Name: name})
	}
	// On a busy machine a file may not have answered in time; it is asked again.
	until(t, fmt.Sprint("the list ", want), func() bool {
		got := list(t, d)
		ok := slices.Equal(got, want)
		if !ok {
			t.Log("listed are ", got)
		}
		return ok
	})
	for name, u := range unknown {
		path := filepath.Join(dir, name, "1.0.0", platform, name)
		until(t, name+" to be refused for "+u.want, func() bool {
			_, err := d.Find(plugins.ID{Kind: plugins.KindUnknown, Name: name})
			ok := err != nil && strings.Contains(err.Error(), path) && strings.Contains(err.Error(), u.want) && strings.Contains(err.Error(), "plugins.<kind>."+name)
			if !ok {
				t.Logf("%s: %v", name, err)
			}
			return ok
		})
	}
	if _, err := d.Find(plugins.ID{Kind: plugins.KindUnknown, Name: "looks"}); err == nil || !strings.Contains(err.Error(), "use probe/looks") {
		t.Errorf("a file that said what it is: %v", err)
	}
	// The one that hung is gone, and so is what it started.
	text, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "process "+word+" to end", func() bool { return !alive(pid) })
	}
}

// A file is asked once, and again when it has changed.
func TestFilesAreAskedOnce(t *testing.T) {
	dir, count := t.TempDir(), filepath.Join(t.TempDir(), "count")
	text := "#!/bin/sh\necho x >>" + count + "\necho '{\"name\":\"mine\",\"kind\":\"KIND_ANALYSIS\"}'\n"
	path := script(t, dir, "mine", "1.0.0", text)
	d := open(t, dir)
	asked := func() int {
		t.Helper()
		for range 3 {
			list(t, d)
		}
		lines, err := os.ReadFile(count)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(lines), "x")
	}
	if n := asked(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(text, "ANALYSIS", "PROBE", 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	if n := asked(); n != 2 {
		t.Errorf("asked %d times after a change", n)
	}
	if ids := list(t, d); len(ids) != 1 || ids[0].Kind != plugins.KindProbe {
		t.Errorf("listed are %v", ids)
	}
}

// Find reads a file each time, Look only when it has changed.
func TestUnchangedFilesAreNotReadAgain(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("x", 4<<20)
	path := script(t, dir, "mine", "1.0.0", content)
	d := open(t, dir)
	reads := func(how func(plugins.ID) (plugins.File, error)) bool {
		t.Helper()
		before := readBytes(t)
		f, err := how(analysisID("mine"))
		if err != nil {
			t.Fatal(err)
		}
		read := readBytes(t) - before
		if f.Program != nil {
			f.Program.Close()
		}
		if want := folderDigest(t, filepath.Dir(path)); f.Digest != want {
			t.Fatalf("the digest is %s, want %s", f.Digest, want)
		}
		return read >= len(content)
	}
	for range 2 {
		if !reads(d.Look) {
			t.Error("a file that is new or has changed was not read")
		}
		until(t, "the file to settle", func() bool { return !reads(d.Look) })
		if !reads(d.Find) {
			t.Error("Find tells of a file that it did not read")
		}
		content = strings.Repeat("y", len(content)) // in place
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// folderDigest is that of a folder of files, by its definition.
func folderDigest(t testing.TB, folder string) string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%04o %x %s\n", info.Mode().Perm(), sha256.Sum256(text), e.Name())
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(lines.String())))
}

// readBytes is how much this process has read so far.
func readBytes(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A plugin that was known and is broken now is shown under its own kind.
func TestBrokenLater(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "mine", "1.0.0", says("mine", kindAnalysis))
	d := open(t, dir)
	for _, mode := range []os.FileMode{0o755, 0o777, 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if ids := list(t, d); !slices.Equal(ids, []plugins.ID{analysisID("mine")}) {
			t.Errorf("with mode %#o listed are %v", mode, ids)
		}
		if _, err := d.Find(analysisID("mine")); (err == nil) != (mode == 0o755) {
			t.Errorf("with mode %#o: %v", mode, err)
		}
	}
}

func TestTooManyEntries(t *testing.T) {
	dir := t.TempDir()
	for i := range external.MaxNames + 10 {
		if err := os.MkdirAll(filepath.Join(dir, "p"+strconv.Itoa(i), "1.0.0", platform), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(list(t, open(t, dir))); n != external.MaxNames {
		t.Errorf("%d listed, want %d", n, external.MaxNames)
	}
}

// A plugin has the name of its folder, also when its file is a link to another.
func TestALinkInsideIsAsked(t *testing.T) {
	dir := t.TempDir()
	path := install(t, dir, "mine", "1.0.0")
	if err := os.Rename(path, filepath.Join(dir, "mine", "build")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../build", path); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir)
	until(t, "the plugin to be listed", func() bool { return slices.Equal(list(t, d), []plugins.ID{analysisID("mine")}) })
}

func TestNewestOfManyVersions(t *testing.T) {
	dir := t.TempDir()
	for i := range external.MaxVersions + 10 {
		if err := os.MkdirAll(filepath.Join(dir, "mine", "1."+strconv.Itoa(i)+".0", platform), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	newest := "1." + strconv.Itoa(external.MaxVersions+9) + ".0"
	script(t, dir, "mine", newest, says("mine", kindAnalysis))
	f, err := open(t, dir).Find(analysisID("mine"))
	if err != nil || !strings.Contains(f.Path, "/"+newest+"/") {
		t.Errorf("%+v, %v", f, err)
	}
}

// What is no plugin takes no plugin's place, however much of it there is.
func TestManyOtherFilesAreInTheWayOfNobody(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 * external.MaxNames {
		if err := os.WriteFile(filepath.Join(dir, "a"+strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(dir, "b"+strconv.Itoa(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(t, dir, "mine", "1.0.0", says("mine", kindAnalysis))
	d := open(t, dir)
	until(t, "the plugin to be listed", func() bool { return slices.Equal(list(t, d), []plugins.ID{analysisID("mine")}) })
}

// Files that never say what they are keep nobody else from being asked, and a
// host that is made asks nobody.
func TestFilesThatHangHoldNobodyUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 10 {
		script(t, dir, "hangs-"+strconv.Itoa(i), "1.0.0", "#!/bin/sh\nexec sleep 600\n")
	}
	script(t, dir, "mine", "1.0.0", says("mine", kindAnalysis))
	d := open(t, dir)
	if ids := d.List(t.Context(), nil); len(ids) != 0 {
		t.Errorf("without asking listed are %v", ids)
	}
	until(t, "all to be asked", func() bool {
		began := time.Now()
		ids := list(t, d)
		for _, id := range ids {
			if _, err := d.Find(id); id.Kind == plugins.KindUnknown && err == nil {
				t.Errorf("%v: no reason", id)
			}
		}
		t.Logf("%d listed after %v", len(ids), time.Since(began))
		return len(ids) == 11 && slices.Contains(ids, analysisID("mine"))
	})
}

func TestEndOfTheHostEndsTheAsking(t *testing.T) {
	dir := t.TempDir()
	pid := filepath.Join(t.TempDir(), "pid")
	script(t, dir, "hangs", "1.0.0", "#!/bin/sh\necho $$ >"+pid+"\nexec sleep 600\n")
	h := newHost(t, dir, nil)
	var text []byte
	until(t, "the file to be asked", func() bool { h.List(); text, _ = os.ReadFile(pid); return len(text) > 1 })
	h.Stop(t.Context())
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if alive(n) {
		t.Errorf("process %d lives", n)
	}
}

// A file that is asked what it is has nothing of the host's, and leaves nothing.
func TestFilesAreAskedBehindWalls(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DONA_TEST_SECRET", "do-not-tell")
	mark := filepath.Join(t.TempDir(), "home")
	script(t, dir, "private", "1.0.0", "#!/bin/sh\n[ -n \"$DONA_TEST_SECRET\" ] && exit 9\n[ \"$PWD\" = \"$HOME\" ] || exit 8\ntouch here || exit 7\npwd >"+mark+"\n"+
		strings.TrimPrefix(says("private", kindAnalysis), "#!/bin/sh\n"))
	h := newHost(t, dir, nil)
	until(t, "it to be listed", func() bool { return slices.Contains(h.listed(), "analysis/private") })
	home, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(home), "/run/") {
		t.Errorf("it was asked in %q, which is not in the run directory", home)
	}
	if _, err := os.Stat(strings.TrimSpace(string(home))); !os.IsNotExist(err) {
		t.Errorf("its directory %s stays: %v", home, err)
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(60 * time.Second)
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited 60 s for %s", what)
		}
	}
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}
