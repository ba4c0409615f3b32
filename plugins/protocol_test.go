package plugins

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/sdk/plugin"
)

// A host understands the wire major before its own, and says of an older one which
// side to upgrade. The hosts here are of the future; their plugin is of today.
func TestHostsUnderstandTheVersionBefore(t *testing.T) {
	if got := protocolsFrom(1); !slices.Equal(got, []int{1}) {
		t.Errorf("the first host speaks %v", got)
	}
	for newest, want := range map[int]string{1: "", 2: "", 3: "plugin speaks plugin protocol 1, the host 3 and 2: upgrade the plugin"} {
		run, err := os.MkdirTemp("", "x")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(run) }()
		// A process of this test binary, which knows the plugin by its name.
		h, err := New(Options{RunDir: filepath.Join(run, "run"), Builtins: []*plugin.Plugin{plugin.Analysis("env", "0.1.0", nil)}})
		if err != nil {
			t.Fatal(err)
		}
		h.protocols = protocolsFrom(newest)
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err = h.Await(ctx, KindAnalysis, "env")
		cancel()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a host of version %d: %v, want %q", newest, err, want)
		}
		h.Stop(context.Background())
	}
}
