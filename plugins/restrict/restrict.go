// Package restrict starts a program with less than its user may do: no new
// privileges, lower priority, limits, and where the kernel has Landlock, a view of
// the file system in which little can be read and next to nothing written.
//
// These hold for a process from a moment on and for all that it starts, so that they
// have to be laid on between its start and its program. That is what a process of
// the host's own program does, with [Arg] as its first argument: [Main] lays them on
// itself and becomes the program. Package runner starts it so (see
// plugins.Dispatch).
//
// It is a wall against mistakes and against programs that are taken over; who may
// be the host's user is decided elsewhere. Networks are open to the program.
package restrict

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Arg is the hidden first argument with which a program restricts itself and becomes
// another.
const Arg = "__dona-restrict"

// Refused is the exit code of a process that could not become the program and never
// will, after a line on stderr that says why.
const Refused = 126

// Nice is how much lower than the host's the priority is.
const Nice = 10

// Rules are what a program may do, and how it is started.
type Rules struct {
	Parent       int      `json:"parent"`                  // process id of the host: without it the program is not started
	Path         string   `json:"path"`                    // to execute
	Image        int      `json:"image,omitempty"`         // descriptor that Path leads to in the host, 0 = none; here it is ImageFD
	Write        []string `json:"write,omitempty"`         // folders in which everything is allowed but to run what is there
	Run          []string `json:"run,omitempty"`           // folders in which files are read and run
	Files        uint64   `json:"files,omitempty"`         // most open descriptors; 0 = as the host
	AddressSpace uint64   `json:"address_space,omitempty"` // most bytes that are mapped; 0 = as the host
}

// ImageFD is where Main expects the image's descriptor.
const ImageFD = 4

// Args are the arguments of a process that becomes a program with the arguments
// argv, its own name first.
func (r Rules) Args(argv []string) []string {
	text, err := json.Marshal(r)
	if err != nil { // numbers and strings always marshal
		panic("restrict: " + err.Error())
	}
	return append([]string{argv[0], Arg, string(text)}, argv...)
}

// Main is the process: it never returns.
func Main() {
	err := become(os.Args[2:], os.Environ())
	fmt.Fprintf(os.Stderr, "the plugin cannot be started restricted: %v\n", err)
	for _, passing := range []error{syscall.ENOMEM, syscall.EAGAIN, syscall.ETXTBSY} {
		if errors.Is(err, passing) {
			os.Exit(1)
		}
	}
	os.Exit(Refused)
}

func become(args, env []string) error {
	var r Rules
	if len(args) < 2 {
		return fmt.Errorf("%s is for the host itself", Arg)
	}
	if err := json.Unmarshal([]byte(args[0]), &r); err != nil {
		return fmt.Errorf("the rules are not JSON: %w", err)
	}
	return r.become(args[1:], env)
}
