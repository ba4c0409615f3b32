package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// played is a stage after a play in which all went well; its requests began every 100 ms.
func played(t *testing.T, out *bytes.Buffer) *stage {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "stage")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-time.Minute)
	after := func(d time.Duration) time.Time { return began.Add(d) }
	s := &stage{dir: dir, password: "a-secret", story: newStory(out), load: &load{}}
	for i, u := range upstreams {
		s.proxies = append(s.proxies, &proxy{name: u + "-1", upstream: u, target: &target{exit: "203.0.113." + string(rune('1'+i))}})
	}
	s.clients = []client{{name: "Go"}, {name: "curl"}, {name: "git"}}
	for n := range 200 {
		p := s.proxies[n%len(s.proxies)]
		r := sent{
			client: s.clients[n/3%3].name, upstream: p.upstream, gateway: n / 3 % 2, exit: p.target.exit,
			began: after(time.Duration(n) * 100 * time.Millisecond), ended: after(time.Duration(n)*100*time.Millisecond + 50*time.Millisecond),
		}
		if r.client == "git" {
			r.exit = gitCommit
		}
		s.load.sent = append(s.load.sent, r)
	}
	s.kills = []kill{{"proxy-1", after(2 * time.Second), false}, {"gateway-1", after(5 * time.Second), true}, {"the host", after(10 * time.Second), false}}
	owners := map[string]string{"http-1": "gateway-1"}
	s.facts = facts{
		asked: 12, answered: 12, found: time.Second, back: time.Second, gatewayDead: after(5 * time.Second), gatewayBack: after(7 * time.Second),
		hostDead: after(10 * time.Second), hostBack: after(12 * time.Second), ownersBefore: owners, ownersAfter: map[string]string{"http-1": "gateway-1"},
		connectedAfter: time.Second, ended: after(20 * time.Second),
		extraction: &extraction{
			refused: 9, waited: 3 * time.Second, released: after(16 * time.Second), given: after(17 * time.Second), proxy: s.proxies[2], lastUse: after(15 * time.Second),
			replayed: true, direct: s.proxies[2].target.exit,
		},
	}
	return s
}

// Each sentence of the summary can be false, and then it says so and fails.
func TestClaims(t *testing.T) {
	fail := errors.New("connection reset")
	// failing has the nth request fail.
	failing := func(n int, err error, client string, secure bool) func(*stage) {
		return func(s *stage) {
			r := &s.load.sent[n]
			r.err, r.client, r.secure = err, client, secure
		}
	}
	for _, c := range []struct {
		name string
		do   func(*stage)
		want string // empty = all is well
	}{
		{"all is well", func(*stage) {}, ""},
		{"a status in the second after a proxy's kill", failing(21, statusError{502, "gone"}, "Go", false), ""},
		{"a tunnel is cut", failing(21, fail, "Go", true), ""},
		{"its gateway is killed", failing(51, fail, "Go", false), ""},
		{"some are not answered", func(s *stage) { s.facts.answered-- }, "11 of 12 requests"},
		{"the other gateway leads none", func(s *stage) {
			for i := range s.load.sent {
				s.load.sent[i].gateway = 0
			}
		}, "the other led 0 requests"},
		{"the gateway leads none any more", func(s *stage) {
			for i := range s.load.sent {
				s.load.sent[i].gateway = 1
			}
		}, "it has led 0 since"},
		{"one fails without a host", failing(110, statusError{503, "no"}, "Go", false), "without a host 1 of 20 requests failed"},
		{"a proxy changes hands", func(s *stage) { s.facts.ownersAfter["http-1"] = "gateway-2" }, "proxies changed hands"},
		{"nothing was refused", func(s *stage) { s.facts.extraction.refused = 0 }, "was not asked for while downloads ran"},
		{"used after the release", func(s *stage) { s.facts.extraction.lastUse = s.facts.extraction.given }, "got a request 1s after"},
		{"another answer", func(s *stage) { s.facts.extraction.replayed = false }, "the same key did not have"},
		{"another address", func(s *stage) { s.facts.extraction.direct = "203.0.113.9" }, "came from 203.0.113.9, not 203.0.113.3"},
		{"used by others", func(s *stage) { s.facts.extraction.later = 2 }, "2 requests of others"},
		{"nothing goes on", func(s *stage) { s.load.sent = s.load.sent[:100] }, "after the host was killed, new requests"},
		{"it goes on late", func(s *stage) {
			for i := 100; i < 155; i++ {
				s.load.sent[i].upstream, s.load.sent[i].exit = "http", s.proxies[0].target.exit
				s.load.sent[i].client = "Go"
			}
		}, "after the host was killed, new requests were answered in each upstream within 5."},
		{"one fails later", failing(33, statusError{502, "gone"}, "Go", false), "1 requests went wrong"},
		{"no status where there was a gateway", failing(21, fail, "Go", false), "no status"},
		{"by another upstream", func(s *stage) { s.load.sent[0].exit = s.proxies[1].target.exit }, `came from "203.0.113.2"`},
		{"git reads something else", func(s *stage) { s.load.sent[6].exit = "HEAD" }, `git read "HEAD"`},
		{"a client that sends nothing", func(s *stage) { s.clients = append(s.clients, client{name: "node"}) }, "node sent nothing"},
		{"a secret in a log", func(s *stage) {
			_ = os.WriteFile(filepath.Join(s.dir, "gateway-1.log"), []byte("password=a-secret"), 0o600)
		}, "the proxies' password is in gateway-1.log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			s := played(t, &out)
			c.do(s)
			err := s.judge(nil, nil)
			said := strings.Join(strings.Fields(out.String()), " ")
			switch {
			case c.want == "":
				if err != nil || strings.Contains(said, "FAILED") {
					t.Errorf("%v\n%s", err, out.String())
				}
			case err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(said, "FAILED"):
				t.Errorf("it ends with %v, want %q\n%s", err, c.want, out.String())
			}
			for _, line := range strings.Split(out.String(), "\n") {
				if len(line) > width && strings.Contains(strings.TrimSpace(line[9:]), " ") {
					t.Errorf("a line of %d columns: %s", len(line), line)
				}
			}
		})
	}
}
