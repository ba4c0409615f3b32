package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// try does what a query asks for, "<verb> <argument>", and says what came of it: "done"
// and more, or the error.
func try(query string) string {
	verb, arg, _ := strings.Cut(query, " ")
	var err error
	more := ""
	switch verb {
	case "write":
		err = os.WriteFile(arg, []byte("written"), 0o600)
	case "write-own":
		err = os.WriteFile(filepath.Join(os.Getenv("TMPDIR"), "own"), []byte("written"), 0o600)
	case "read":
		_, err = os.ReadFile(arg)
	case "run":
		var out []byte
		out, err = exec.Command("/bin/sh", "-c", arg).CombinedOutput()
		more = strings.TrimSpace(string(out))
	case "run-own": // a program that it makes itself
		path := filepath.Join(os.Getenv("TMPDIR"), "own.sh")
		if err = os.WriteFile(path, []byte("#!/bin/sh\necho ran\n"), 0o700); err == nil {
			err = exec.Command(path).Run()
		}
	case "signal":
		pid, _ := strconv.Atoi(arg)
		err = syscall.Kill(pid, 0)
	case "status":
		more, err = status(arg)
	case "nice":
		var n int
		n, err = syscall.Getpriority(syscall.PRIO_PROCESS, 0)
		more = strconv.Itoa(20 - n)
	case "comm":
		var text []byte
		text, err = os.ReadFile("/proc/self/comm")
		more = strings.TrimSpace(string(text))
	case "pid":
		more = strconv.Itoa(os.Getpid())
	default:
		err = fmt.Errorf("no such deed")
	}
	if err != nil {
		return strings.TrimSpace(err.Error() + " " + more)
	}
	return strings.TrimSpace("done " + more)
}

// status is a line of what the kernel says of this process.
func status(key string) (string, error) {
	text, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value), err
		}
	}
	return "", err
}
