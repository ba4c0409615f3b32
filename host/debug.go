package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"
)

// newDebug serves Go's profiles on a unix socket that only this user may open: they
// tell of everything that is in memory. Its directory must not be open to others, who
// could put a socket of theirs in its place.
func newDebug(path string) (*http.Server, net.Listener, error) {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, nil, fmt.Errorf("debug.socket: %w", err)
	}
	if mode := dir.Mode().Perm(); mode&0o022 != 0 {
		return nil, nil, fmt.Errorf("debug.socket: the directory of %s has mode %04o, others than its owner must not be able to write to it", path, mode)
	}
	if was, err := os.Lstat(path); err == nil && was.Mode()&fs.ModeSocket != 0 { // of a host that was killed
		_ = os.Remove(path)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("debug.socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("debug.socket: %w", err), listener.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10}, listener, nil
}
