package prometheus_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/builtin/analysis/internal/fetch"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fetch.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
