package demo

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/spawn/spawntest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { spawntest.Clean(); os.Exit(code) }))
}
