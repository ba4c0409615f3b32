package plugintest

import (
	"fmt"
	"strings"
)

// usage is what a plugin has; what is not known is 0.
type usage struct {
	files int
	loops int // goroutines in this process, threads of another
	bytes int64
}

// over says of what there is more than before and than may be, empty for nothing.
func (u usage) over(before usage, files, loops int, bytes int64) string {
	var words []string
	if n := u.files - before.files; n > files {
		words = append(words, fmt.Sprintf("%d open files", n))
	}
	if n := u.loops - before.loops; n > loops {
		words = append(words, fmt.Sprintf("%d goroutines or threads", n))
	}
	if n := u.bytes - before.bytes; n > bytes {
		words = append(words, fmt.Sprintf("%d MiB of memory", n>>20))
	}
	return strings.Join(words, ", ")
}

func (s *session) usage() (usage, error) {
	if s.process == nil {
		return usage{loops: goroutines()}, nil
	}
	return usageOf(s.process.PID())
}
