package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
)

// maxMissing bounds the list of what is missing in an entry's detail, in bytes;
// the evidence has it whole.
const maxMissing = 4 << 10

// transitionEntry is the audit entry of a transition, with what it rests on.
func transitionEntry(s *scene, d Decision, next *statev1.Rollout, actor string) audit.Entry {
	version := next.GetWeightsVersion()
	detail := map[string]string{
		"id":           d.Next.ID,
		"step":         strconv.Itoa(d.Next.Step),
		"percent":      fmt.Sprint(d.Next.Percent()),
		"from_percent": fmt.Sprint(s.state.Percent()),
		"requests":     fmt.Sprint(s.evidence.Counts.Requests),
		"errors":       fmt.Sprint(s.evidence.Counts.Errors),
		"cause":        d.Cause,
		"reason":       d.Next.Reason,
		"missing":      clip(listMissing(d.Missing), maxMissing),
	}
	if version != 0 {
		detail["config_version"] = strconv.FormatUint(version, 10)
	}
	if d.Event == Promote || d.Event == Stepped && s.state.inStep() {
		detail["verified"] = strconv.FormatBool(d.Verified)
	}
	if c := d.Decisive; c != nil {
		detail["check"], detail["bound"] = c.Name, c.Bound
		switch {
		case c.HasValue:
			detail["value"] = number(c.Value)
		case c.Result.Took.HasValue:
			detail["value"] = number(c.Result.Took.Value)
		}
	}
	return audit.Entry{Kind: "rollout." + string(d.Event), Actor: actor, Detail: detail, Evidence: evidenceOf(s, d)}
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// The evidence of a transition, as JSON: the counts of the step that it left,
// each check's verdict, and who measured it.
type (
	evidenceJSON struct {
		Rollout       string      `json:"rollout"`
		Step          int         `json:"step"`
		ConfigVersion uint64      `json:"config_version"`
		DwellMS       int64       `json:"dwell_ms"`
		Canary        countJSON   `json:"canary"`
		Stable        countJSON   `json:"stable"`
		Checks        []checkJSON `json:"checks"`
	}
	countJSON struct {
		Variant  string `json:"variant"`
		Requests uint64 `json:"requests"`
		Errors   uint64 `json:"errors"`
	}
	checkJSON struct {
		Name      string `json:"name"`
		Verdict   string `json:"verdict"`
		Value     string `json:"value,omitempty"`
		Bound     string `json:"bound"`
		Detail    string `json:"detail"`
		Provider  string `json:"provider"`
		Version   string `json:"plugin_version,omitempty"`
		Digest    string `json:"plugin_digest,omitempty"`
		BeganMS   int64  `json:"began_ms,omitempty"`
		AnswerSHA string `json:"answer_sha256,omitempty"`
	}
)

// evidenceOf lists what a transition out of a step rests on: one summary, and
// each provider's raw answer.
func evidenceOf(s *scene, d Decision) []audit.Evidence {
	if !s.state.inStep() {
		return nil
	}
	sum := evidenceJSON{
		Rollout: s.state.ID, Step: s.state.Step, ConfigVersion: s.record.GetWeightsVersion(), DwellMS: d.Next.Dwell.Milliseconds(),
		Canary: countJSON{s.state.Plan.Canary, s.counts.GetCanary().GetRequests(), s.counts.GetCanary().GetErrors()},
		Stable: countJSON{s.state.Plan.Stable, s.counts.GetStable().GetRequests(), s.counts.GetStable().GetErrors()},
		Checks: []checkJSON{},
	}
	if d.NewStep {
		sum.DwellMS = s.state.Dwell.Milliseconds()
	}
	var raw []audit.Evidence
	for _, c := range d.Checks {
		took := c.Result.Took
		j := checkJSON{Name: c.Name, Verdict: c.Verdict.String(), Bound: c.Bound, Detail: c.Detail, Provider: c.Provider,
			Version: took.Version, Digest: took.Digest, BeganMS: toMS(c.Result.Began)}
		if c.HasValue {
			j.Value = number(c.Value)
		} else if took.HasValue {
			j.Value = number(took.Value)
		}
		if n := len(took.Evidence); n > 0 && n <= audit.MaxEvidence {
			hash := sha256.Sum256(took.Evidence)
			j.AnswerSHA = hex.EncodeToString(hash[:])
			raw = append(raw, audit.Evidence{Kind: "query:" + c.Name, Data: took.Evidence})
		}
		sum.Checks = append(sum.Checks, j)
	}
	data, err := json.Marshal(sum)
	if err != nil { // strings and integers always marshal
		panic("rollout: evidence does not marshal: " + err.Error())
	}
	return append([]audit.Evidence{{Kind: "checks", Data: data}}, raw...)
}
