package cli_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/cmd/dona/internal/cli"
)

// leakChecked fails a run that leaves goroutines behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// The scripts run the program itself: this test binary under the name dona.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"dona": func() { os.Exit(cli.Main(context.Background(), os.Args[1:])) },
	})
}
