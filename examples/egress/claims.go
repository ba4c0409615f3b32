package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// claim is a sentence of the summary and whether it is true, with what belongs to it.
type claim struct {
	ok   bool
	text string
	more []string
}

// goesOnIn is how soon after a kill new requests have to be answered. It is far more than
// it takes, for machines that are busy with other things.
const goesOnIn = 5 * time.Second

// claims judges what was observed. Acts that were not reached have no claim; why they
// were not is the error of the play.
func (s *stage) claims() []claim {
	var out []claim
	f := &s.facts
	if f.asked > 0 {
		out = append(out, claim{ok: f.answered == f.asked, text: fmt.Sprintf("%d of %d requests through each gateway and each kind of proxy were answered", f.answered, f.asked)})
	}
	if f.back > 0 {
		out = append(out, claim{ok: true, text: fmt.Sprintf("the checker found the killed proxy out after %s, and well again %s after its return", seconds(f.found), seconds(f.back))})
	}
	if !f.gatewayBack.IsZero() {
		out = append(out, s.survivedGateway())
	}
	if f.ownersAfter != nil {
		out = append(out, s.survivedHost())
	}
	if f.extraction != nil {
		out = append(out, f.extraction.claim())
	}
	for _, k := range s.kills {
		took, ok := s.load.goesOn(k)
		out = append(out, claim{ok: ok && took <= goesOnIn, text: fmt.Sprintf("after %s was killed, new requests were answered in each upstream within %s", k.what, seconds(took))})
	}
	if s.load != nil {
		out = append(out, s.requests()...)
	}
	return append(out, s.secret())
}

// survivedGateway wants the other gateway to have led requests while one was dead, and
// that one to lead requests again.
func (s *stage) survivedGateway() claim {
	f := &s.facts
	during, _ := s.load.between(f.gatewayDead, f.gatewayBack)
	after, _ := s.load.between(f.gatewayBack, f.ended)
	other, again := 0, 0
	for _, r := range during {
		if r.err == nil && r.gateway == 1 {
			other++
		}
	}
	for _, r := range after {
		if r.err == nil && r.gateway == 0 {
			again++
		}
	}
	return claim{ok: other > 0 && again > 0, text: fmt.Sprintf("a gateway was dead (kill -9) for %s, in which the other led %d requests; it has led %d since", seconds(f.gatewayBack.Sub(f.gatewayDead)), other, again)}
}

// survivedHost wants requests to have been answered without a host, and proxies to
// belong to whom they belonged.
func (s *stage) survivedHost() claim {
	f := &s.facts
	alone, failed := s.load.between(f.hostDead, f.hostBack)
	switch {
	case len(alone) == 0 || failed > 0:
		return claim{ok: false, text: fmt.Sprintf("without a host %d of %d requests failed", failed, len(alone))}
	case !maps.Equal(f.ownersBefore, f.ownersAfter):
		return claim{ok: false, text: fmt.Sprintf("proxies changed hands over the host's restart: %v, then %v", f.ownersBefore, f.ownersAfter)}
	}
	return claim{ok: true, text: fmt.Sprintf("the host was dead (kill -9) for %s, in which %d requests were answered and none failed; each proxy kept its owner, and both gateways were connected %s after",
		seconds(f.hostBack.Sub(f.hostDead)), len(alone), seconds(f.connectedAfter))}
}

func (x *extraction) claim() claim {
	text := fmt.Sprintf("a proxy was extracted once nothing ran through it: refused %d times in %s of downloads, given out %s after their end and %s after its last request; the same key had the same answer, and nobody else has used it since",
		x.refused, seconds(x.waited), seconds(x.given.Sub(x.released)), seconds(x.given.Sub(x.lastUse)))
	switch {
	case x.refused == 0:
		return claim{ok: false, text: "the extraction was not asked for while downloads ran"}
	case x.lastUse.After(x.released):
		return claim{ok: false, text: fmt.Sprintf("the extracted proxy got a request %s after the downloads were let go", x.lastUse.Sub(x.released))}
	case !x.replayed:
		return claim{ok: false, text: "the same key did not have the same answer"}
	case x.direct != x.proxy.target.exit:
		return claim{ok: false, text: fmt.Sprintf("a request through the extracted proxy came from %s, not %s", x.direct, x.proxy.target.exit)}
	case x.later != 0:
		return claim{ok: false, text: fmt.Sprintf("%d requests of others went through the extracted proxy", x.later)}
	}
	return claim{ok: true, text: text}
}

// requests counts what the clients saw. A request that failed is none of our business
// when it was under way at a kill, or began within a second after.
func (s *stage) requests() []claim {
	all := s.load.all()
	byClient, wrong := map[string]int{}, []string{}
	failed, excused := 0, map[string]int{} // by what is told of them
	for _, r := range all {
		byClient[r.client]++
		switch p := s.byExit(r.exit); {
		case r.err == nil && r.client != "git" && (p == nil || p.upstream != r.upstream):
			wrong = append(wrong, fmt.Sprintf("%s for %s came from %q", r.client, r.upstream, r.exit))
		case r.err == nil && r.client == "git" && r.exit != gitCommit:
			wrong = append(wrong, fmt.Sprintf("git read %q", r.exit))
		case r.err != nil && r.unclear(s.kills):
			wrong = append(wrong, "no status: "+r.String())
		case r.err != nil && r.excused(s.kills):
			failed++
			excused[r.String()]++
		case r.err != nil:
			wrong = append(wrong, r.String())
		}
	}
	var parts []string
	for _, c := range s.clients {
		parts = append(parts, fmt.Sprintf("%s %d", c.name, byClient[c.name]))
	}
	text := fmt.Sprintf("failed requests: %d of %d (%s), all under way at a kill or begun within a second after", failed, len(all), strings.Join(parts, ", "))
	if failed == 0 {
		text = fmt.Sprintf("failed requests: 0 of %d (%s)", len(all), strings.Join(parts, ", "))
	}
	if len(s.missing) > 0 {
		text += "; not on this machine: " + strings.Join(s.missing, ", ")
	}
	out := []claim{{ok: len(all) > 0, text: text}}
	for _, why := range slices.Sorted(maps.Keys(excused)) {
		out[0].more = append(out[0].more, fmt.Sprintf("%d x %s", excused[why], why))
	}
	for _, c := range s.clients {
		if byClient[c.name] == 0 {
			wrong = append(wrong, c.name+" sent nothing")
		}
	}
	if len(wrong) > 0 {
		out = append(out, claim{ok: false, text: fmt.Sprintf("%d requests went wrong: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "; "))})
	}
	return out
}

// secret wants the proxies' password in no log.
func (s *stage) secret() claim {
	logs, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		return claim{ok: false, text: err.Error()}
	}
	var where []string
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			return claim{ok: false, text: err.Error()}
		}
		if bytes.Contains(text, []byte(s.password)) {
			where = append(where, filepath.Base(name))
		}
	}
	if len(where) > 0 {
		return claim{ok: false, text: "the proxies' password is in " + strings.Join(where, ", ")}
	}
	return claim{ok: true, text: fmt.Sprintf("the proxies' password is in none of %d logs", len(logs))}
}
