package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/sdk/attest"
)

// vectorLines returns the entries of the published report, byte for byte.
func vectorLines(t *testing.T) [][]byte {
	t.Helper()
	report, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := bytes.Cut(report, []byte("\"entries\":[\n"))
	if !ok {
		t.Fatal("testdata/report.json has no entries")
	}
	var lines [][]byte
	for _, line := range bytes.Split(bytes.TrimSuffix(rest, []byte("\n]}\n")), []byte("\n")) {
		lines = append(lines, bytes.TrimSuffix(line, []byte(",")))
	}
	return lines
}

func TestVector(t *testing.T) {
	want := []string{
		"90ee784367456f83fa201c1de3d7bdf4eef03558645c4c545d26d1b0f6b30461",
		"0eedab5728e560b60ccd32d0819cabef0ae7e258faf53cd55a1458ebb373ba21",
		"bfc2df4a3614c791267154f5eb95ad4959a87d940af2a68b6f0e166510582d83",
	}
	genesis := New("example.org").Genesis("checkout")
	if got := hex.EncodeToString(genesis[:]); got != "ccdf8ac08decf4e8353fd09252d7b6671628858592d3aae9f5b8309b5e748934" {
		t.Fatalf("genesis is %s", got)
	}
	v := attest.NewChain("example.org", "checkout")
	lines := vectorLines(t)
	if len(lines) != len(want) {
		t.Fatalf("the report has %d entries, want %d", len(lines), len(want))
	}
	for i, raw := range lines {
		if err := v.Add(raw); err != nil {
			t.Fatal(err)
		}
		if h := v.Hash(); hex.EncodeToString(h[:]) != want[i] {
			t.Errorf("entry %d hashes to %x, want %s", i+1, h, want[i])
		}
		// What was written by another hand is what encode writes.
		var e struct {
			Seq     uint64            `json:"seq"`
			TimeMS  int64             `json:"time_ms"`
			Service string            `json:"service"`
			Kind    string            `json:"kind"`
			Actor   string            `json:"actor"`
			Detail  map[string]string `json:"detail"`
			Prev    string            `json:"prev"`
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		prev, _ := hex.DecodeString(e.Prev)
		got, err := encode(line{seq: e.Seq, timeMS: e.TimeMS, chain: e.Service, prev: [32]byte(prev),
			entry: Entry{Kind: e.Kind, Actor: e.Actor, Detail: e.Detail}})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, raw) {
			t.Errorf("entry %d encodes to\n%s\nwant\n%s", i+1, got, raw)
		}
	}
}

func TestEncode(t *testing.T) {
	encoded := func(text string) string {
		t.Helper()
		b, err := encode(line{seq: 1, chain: "web", entry: Entry{Kind: "rollout.abort", Actor: "local:dev", Detail: map[string]string{"reason": text, "id": ""}}})
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ Detail map[string]string }
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if _, there := e.Detail["id"]; there {
			t.Errorf("an empty value is in %s", b)
		}
		return e.Detail["reason"]
	}
	for _, text := range []string{"a\nb\r\tc", `"\`, "\x00\x1f\x7f", "  <&>", "无", "\u202e"} {
		if got := encoded(text); got != text {
			t.Errorf("%q came back as %q", text, got)
		}
	}
}

func FuzzEncodeIsJSON(f *testing.F) {
	f.Add("a", "b")
	f.Add("\x00\"\\", "\u2028")
	f.Fuzz(func(t *testing.T, actor, reason string) {
		e := Entry{Kind: "rollout.abort", Actor: actor, Detail: map[string]string{"reason": reason}}
		if check("web", e) != nil {
			return
		}
		b, err := encode(line{seq: 1, chain: "web", entry: e, prev: New("d").Genesis("web")})
		if err != nil {
			return
		}
		if err := attest.NewChain("d", "web").Add(b); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		var back struct {
			Actor  string
			Detail map[string]string
		}
		if err := json.Unmarshal(b, &back); err != nil || back.Actor != actor || back.Detail["reason"] != reason {
			t.Fatalf("%q, %q came back as %+v, %v", actor, reason, back, err)
		}
	})
}

func TestRefused(t *testing.T) {
	ok := Entry{Kind: "flag.set", Actor: "local:dev", Detail: map[string]string{"flag": "f"}}
	if err := check("web", ok); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Entry) (chain string){
		"unknown kind":     func(e *Entry) string { e.Kind = "flag.sett"; return "web" },
		"unknown key":      func(e *Entry) string { e.Detail = map[string]string{"token": "x"}; return "web" },
		"invalid UTF-8":    func(e *Entry) string { e.Detail = map[string]string{"flag": "\xff"}; return "web" },
		"no actor":         func(e *Entry) string { e.Actor = ""; return "web" },
		"a foreign chain":  func(e *Entry) string { return "@other" },
		"evidence too big": func(e *Entry) string { e.Evidence = []Evidence{{"query:x", make([]byte, MaxEvidence+1)}}; return "web" },
	} {
		e := ok
		chain := change(&e)
		if err := check(chain, e); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", name, err)
		}
	}
	e := Entry{Kind: "rollout.abort", Actor: "local:dev", Detail: map[string]string{"reason": strings.Repeat("x", MaxLine)}}
	if _, err := encode(line{chain: "web", entry: e}); !errors.Is(err, ErrRefused) {
		t.Errorf("a line of more than %d bytes: %v", MaxLine, err)
	}
}
