//go:build !linux

package redistest

import "syscall"

// endsWithUs: where the kernel offers nothing of the kind, a killed test leaves its
// servers behind.
func endsWithUs() *syscall.SysProcAttr { return nil }
