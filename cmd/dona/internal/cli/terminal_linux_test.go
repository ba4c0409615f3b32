package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func init() { scriptCommands["terminal"] = onTerminal }

// terminal FILE NAME=VALUE dona ...: run it with a terminal of 60 columns as its
// stdout, and keep what the terminal got in FILE.
func onTerminal(ts *testscript.TestScript, _ bool, args []string) {
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	ts.Check(err)
	defer control.Close()
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	ts.Check(err)
	ts.Check(unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0))
	ts.Check(unix.IoctlSetWinsize(int(control.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60}))
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	ts.Check(err)

	cmd := program(ts, args[2:])
	cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=", args[1])
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = side, &errOut
	ts.Check(cmd.Start())
	ts.Check(side.Close())
	var got bytes.Buffer
	_, _ = io.Copy(&got, control) // ends with an error when the last writer is gone
	if code := exitCode(ts, cmd.Wait()); code != 0 {
		ts.Fatalf("exit code %d: %s", code, errOut.String())
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), got.Bytes(), 0o600))
}
