package render

import (
	"fmt"
	"strings"

	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// Trace draws how a request was decided, a stage a line.
func (s Style) Trace(t *decide.Trace) []string {
	out := []string{fmt.Sprintf("%s  version %d", s.Bold(Clean(t.Service)), t.Version)}
	for _, stage := range t.Stages {
		out = append(out, fmt.Sprintf("  %-12s %s", Clean(stage.Name), Clean(stage.Result)))
		for _, d := range stage.Detail {
			out = append(out, s.Dim("               "+Clean(d)))
		}
	}
	r := t.Result
	if r.Error != "" {
		kind := r.Kind.String()
		why := strings.TrimPrefix(r.Error, kind+": ") // an error may begin with the word
		return append(out, fmt.Sprintf("  %-12s %s: %s", "decision", s.Bad(kind), Clean(why)))
	}
	by := r.Kind.String()
	if r.Flag != "" {
		by += " " + Clean(r.Flag)
	}
	return append(out, fmt.Sprintf("  %-12s %s  %s %s  (%s)", "decision", s.Good(Clean(r.Variant)), Clean(r.Endpoint.ID), Clean(r.Endpoint.Address), by))
}
