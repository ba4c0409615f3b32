//go:build !linux

package restrict

import (
	"fmt"
	"os"
	"syscall"
)

// become lowers the priority and executes the program: there is no more to lay on.
func (r Rules) become(argv, env []string) error {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, os.Getpid(), Nice); err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("limit core files: %w", err)
	}
	if os.Getppid() != r.Parent {
		return fmt.Errorf("the host is gone")
	}
	if err := syscall.Exec(r.Path, argv, env); err != nil {
		return fmt.Errorf("run %s: %w", r.Path, err)
	}
	return nil
}

// LandlockVersion is 0: Landlock is Linux's.
func LandlockVersion() int { return 0 }
