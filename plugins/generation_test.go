package plugins

import (
	"errors"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/plugins/runner"
)

// A process that never was has not failed to print anything: the reason is why
// there is none.
func TestStartWithoutAProcessSaysWhy(t *testing.T) {
	g := new(generation)
	g.process.Store(runner.New(runner.Config{Name: "analysis/x"}, nil))
	err := g.versionError(t.Context(), errors.New("start plugin analysis/x: pipe2: too many open files"))
	if err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("%v", err)
	}
}
