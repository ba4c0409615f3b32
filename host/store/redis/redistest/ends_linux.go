package redistest

import "syscall"

// endsWithUs has a server end when the test's process does, however that ends.
func endsWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
