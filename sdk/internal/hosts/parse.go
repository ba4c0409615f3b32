package hosts

import (
	"fmt"
	"strings"

	"github.com/dodona-project/dodona/sdk/internal/name"
)

// Most is how many hosts a target may name.
const Most = 16

// Parse returns the addresses that a target names, host:port separated by commas, each
// once, in its order. The error says what is allowed and reads on after the name of
// whatever holds the target.
func Parse(target string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(target, ",") {
		part = strings.TrimSpace(part)
		if name.Address(part) != nil {
			return nil, fmt.Errorf("is %.80q: allowed is host:port, or several separated by commas", target)
		}
		if !seen[part] {
			seen[part] = true
			out = append(out, part)
		}
	}
	if len(out) > Most {
		return nil, fmt.Errorf("names %d hosts: allowed are at most %d", len(out), Most)
	}
	return out, nil
}
