package main

import (
	"fmt"
	"regexp"
	"strings"
)

// comments are those of a .proto file by the full name of what they are about. The
// compiled contract does not carry them.
type comments map[string]string

var (
	opening = regexp.MustCompile(`^(message|enum|service|oneof) (\w+) \{(\})?$`)
	method  = regexp.MustCompile(`^rpc (\w+)\(`)
	member  = regexp.MustCompile(`^(?:repeated |optional )?(?:map<[\w., ]+>|[\w.]+) ?(\w+)? = \d+;$`)
	value   = regexp.MustCompile(`^(\w+) = -?\d+;$`)
)

// readComments reads the comments above and beside the parts of a .proto file that
// is laid out as ours are: one part a line, comments by // alone. A line that it
// does not know is an error, so that nothing is left out silently.
func readComments(text string) (comments, error) {
	all := comments{}
	var pkg string
	var within, above []string // names of what is open; the comment so far
	for i, line := range strings.Split(text, "\n") {
		code, beside, _ := strings.Cut(strings.TrimSpace(line), "//")
		code, beside = strings.TrimSpace(code), strings.TrimSpace(beside)
		note := func(name string) {
			if beside != "" {
				above = append(above, beside)
			}
			all[strings.Join(append(append([]string{pkg}, within...), name), ".")] = strings.Join(above, "\n")
			above = nil
		}
		switch {
		case code == "" && strings.HasPrefix(strings.TrimSpace(line), "//"):
			// Two blanks more than one are a line that goes on.
			above = append(above, strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "//"), " "))
		case code == "": // what stands alone is a heading
			above = nil
		case strings.HasPrefix(code, "package "):
			pkg = strings.TrimSuffix(strings.TrimPrefix(code, "package "), ";")
		case strings.HasPrefix(code, "syntax "), strings.HasPrefix(code, "import "), strings.HasPrefix(code, "reserved "):
			above = nil
		case code == "}":
			if len(within) == 0 {
				return nil, fmt.Errorf("line %d closes what is not open", i+1)
			}
			within, above = within[:len(within)-1], nil
		default:
			var m []string
			if m = opening.FindStringSubmatch(code); m != nil {
				note(m[2])
				if m[3] == "" {
					within = append(within, m[2])
				}
			} else if m = method.FindStringSubmatch(code); m != nil {
				note(m[1])
			} else if m = value.FindStringSubmatch(code); m != nil {
				note(m[1])
			} else if m = member.FindStringSubmatch(code); m != nil {
				note(m[1])
			} else {
				return nil, fmt.Errorf("line %d is %q, which apiref cannot read", i+1, code)
			}
		}
	}
	return all, nil
}
