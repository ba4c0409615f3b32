package spawn_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/spawn"
)

// asChild has the test's own binary be a child: until its stdin ends, or for ever.
const asChild = "SPAWN_AS_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(asChild) {
	case "polite":
		_, _ = io.Copy(os.Stdout, os.Stdin)
		os.Exit(0)
	case "deaf":
		<-time.After(time.Hour)
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, s *spawn.Spawner, how string) *spawn.Child {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Start(how, os.Args[0], nil, []string{asChild + "=" + how}, log)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChildren(t *testing.T) {
	s := spawn.New(os.Environ())
	defer s.Close()
	killed := start(t, s, "deaf")
	if dead, _ := killed.Ended(); dead || !spawn.Alive(killed.PID()) {
		t.Error("a child is dead before it was killed")
	}
	killed.Kill()
	killed.Kill() // once more harms nobody
	if dead, how := killed.Ended(); !dead || !strings.Contains(how, "killed") {
		t.Errorf("after the kill: %v, %s", dead, how)
	}
	start(t, s, "polite")
	if left := s.StopAll(30 * time.Second); len(left) != 0 {
		t.Errorf("had to be killed: %v", left)
	}
	start(t, s, "deaf").Kill()
	last := start(t, s, "deaf")
	s.KillAll()
	if spawn.Alive(last.PID()) {
		t.Error("a child outlived KillAll")
	}
	if _, err := s.Start("none", filepath.Join(t.TempDir(), "none"), nil, nil, nopCloser{&bytes.Buffer{}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestEnviron(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "s") // short, as a run directory has to be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	got := spawn.Environ([]string{"PATH=/bin", "DONA_HOST=elsewhere:1", "PROXY_POOL_WORKER_ID=w", "OTEL_EXPORTER_OTLP_ENDPOINT=x"}, dir)
	if want := []string{"PATH=/bin", "TMPDIR=" + filepath.Join(dir, "t")}; !slices.Equal(got, want) {
		t.Errorf("the children's environment is %q, want %q", got, want)
	}
}
