package runner

import (
	"os"
	"syscall"
)

// socketDirEnv is go-plugin's variable for the directory of the socket. It
// marks a plugin's process and what it started.
const socketDirEnv = "PLUGIN_UNIX_SOCKET_DIR"

func exitOf(state *os.ProcessState, err error) Exit {
	if state == nil {
		return Exit{Code: -1, Signal: "unknown: " + err.Error()}
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Exit{Code: -1, Signal: ws.Signal().String()}
	}
	return Exit{Code: state.ExitCode()}
}

// killGroup kills what is left of a process group.
func killGroup(pgid int) {
	if pgid > 1 {
		_ = syscall.Kill(-pgid, syscall.SIGKILL)
	}
}
