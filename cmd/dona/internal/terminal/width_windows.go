package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// width asks the console and lets it read escape sequences; false = f is none,
// or one that cannot.
func width(f *os.File) (int, bool) {
	handle := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(handle, &mode) != nil {
		return 0, false
	}
	if windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) != nil {
		return 0, false
	}
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(handle, &info) != nil {
		return 0, true
	}
	return int(info.Size.X), true
}
