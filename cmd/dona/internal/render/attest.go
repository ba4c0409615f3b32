package render

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dodona-project/dodona/sdk/attest"
)

// Attestation draws what a verified attestation shows and what it does not.
func (s Style) Attestation(r *attest.Result) []string {
	what := "no entry"
	if r.Entries > 0 {
		what = fmt.Sprintf("entries %d to %d", r.FirstSeq, r.LastSeq)
	}
	out := []string{
		fmt.Sprintf("%s: %s of %s in %s, %s, issued %s", s.Good("verified"), what, Clean(r.Service), Clean(r.TrustDomain),
			count(r.Pages, "report"), time.UnixMilli(r.IssuedMS).UTC().Format(time.RFC3339)),
		"", s.Bold("checked"),
	}
	for _, c := range r.Checked {
		out = append(out, "  "+Clean(c))
	}
	if len(r.Decisions) > 0 {
		t := table{indent: "  ", right: columns(0)}
		t.add("CALLS", "DECISION", "REGION", "ALLOWED", "RULE")
		for _, d := range r.Decisions {
			t.add(strconv.FormatUint(d.Count, 10), Clean(d.Decision), dash(d.Region), dash(d.AllowedRegions), dash(d.RuleID))
		}
		out = append(append(out, "", s.Bold("decisions")), t.lines(s)...)
	}
	out = append(out, "", s.Bold("not provable"))
	for _, n := range r.NotProvable {
		out = append(out, "  "+Clean(n))
	}
	return out
}

// Segments draws what verified segment files hold.
func (s Style) Segments(chains []attest.Segments) (out []string) {
	for _, c := range chains {
		out = append(out, fmt.Sprintf("%s: entries %d to %d of %s, %s, last hash %s", s.Good("verified"), c.FirstSeq, c.LastSeq, Clean(c.Chain), count(c.Files, "file"), c.LastHash))
		switch {
		case c.FirstSeq > 1:
			out = append(out, fmt.Sprintf("  not provable: what happened before entry %d, whose files are not here", c.FirstSeq))
		case !c.Genesis:
			out = append(out, "  not provable: that entry 1 begins the chain; that needs --trust-domain")
		}
	}
	return append(out, "  not provable by files alone: who wrote them; compare the last hash with a signed report's")
}
