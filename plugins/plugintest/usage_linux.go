package plugintest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// usageOf reads what a process has (proc(5)).
func usageOf(pid int) (usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	open, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return usage{}, fmt.Errorf("count the files of the plugin: %w", err)
	}
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return usage{}, fmt.Errorf("count the threads of the plugin: %w", err)
	}
	text, err := os.ReadFile(dir + "/status")
	if err != nil {
		return usage{}, fmt.Errorf("read the memory of the plugin: %w", err)
	}
	u := usage{files: len(open), loops: len(tasks)}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return usage{}, fmt.Errorf("read the memory of the plugin: %w", err)
			}
			u.bytes = kib << 10
		}
	}
	return u, nil
}
