//go:build unix && !linux

package plugin

import "golang.org/x/sys/unix"

// dupOver makes to a copy of from.
func dupOver(from, to int) error { return unix.Dup2(from, to) }
