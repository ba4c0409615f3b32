package plugintest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Run runs all checks against a target, each as a subtest of its own name. A
// failure says what was seen and what to do.
func Run(t *testing.T, target Target) {
	t.Helper()
	report, err := Test(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	report.Tell(t)
}

// Tell fails a test where the report does, each check as a subtest of its own name.
// Run does it; it is for those who run several targets at once.
func (r *Report) Tell(t *testing.T) {
	t.Helper()
	for _, x := range r.Results {
		t.Run(x.Check, func(t *testing.T) {
			switch x.Status {
			case Failed:
				t.Errorf("promise: %s\nseen: %s\ndo: %s", x.Promise, x.Problem, x.Do)
			case Skipped:
				t.Skip(x.Problem)
			}
		})
	}
	lines := r.Lines()
	t.Log(lines[len(lines)-1])
}

// Build builds the Go program in a folder with the go command on the PATH, into a
// directory that goes with the test, and returns its file. It is built without cgo,
// as a plugin should be.
func Build(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", folder, err, out)
	}
	return path
}
