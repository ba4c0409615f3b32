package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func TestChainNamesTheEntry(t *testing.T) {
	l, _ := lines(service, 3)
	for _, tc := range []struct {
		name  string
		lines [][]byte
		want  string
	}{
		{"swapped", [][]byte{l[0], l[2], l[1]}, "entry 2 says it is number 3"},
		{"deleted", [][]byte{l[0], l[2]}, "entry 2 says it is number 3"},
		{"first dropped", [][]byte{l[1]}, "entry 1 says it is number 2"},
		{"repeated", [][]byte{l[0], l[0]}, "entry 2 says it is number 1"},
		{"cut", [][]byte{l[0], []byte("{")}, "entry 2 is not laid out as an entry"},
		{"two lines", [][]byte{append(bytes.Clone(l[0]), '\n')}, "entry 1 is not one line"},
		{"changed", [][]byte{l[0], bytes.Replace(l[1], []byte("fadp"), []byte("none"), 1), l[2]}, "entry 3 does not continue"},
	} {
		c := NewChain(domain, service)
		var err error
		for _, raw := range tc.lines {
			if err = c.Add(raw); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if err := NewChain(domain, "web").Add(l[0]); err == nil || !strings.Contains(err.Error(), "belongs to the chain") {
		t.Errorf("an entry of another chain: %v", err)
	}
	if err := NewChain("other.org", service).Add(l[0]); err == nil || !strings.Contains(err.Error(), "does not continue") {
		t.Errorf("an entry of another trust domain: %v", err)
	}
}

// TestOneWayToWrite: what is JSON and says the same, and is written otherwise, is
// no entry.
func TestOneWayToWrite(t *testing.T) {
	l, _ := lines(service, 4)
	for _, raw := range l {
		if _, err := parseLine(raw); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ name, old, new, want string }{
		{"a space", `,"seq"`, `, "seq"`, "expected"},
		{"another order", `"v":"dona-audit-v1","seq":2`, `"seq":2,"v":"dona-audit-v1"`, "expected"},
		{"another format", `dona-audit-v1`, `dona-audit-v2`, "expected"},
		{"a leading zero", `"seq":2`, `"seq":02`, "no number"},
		{"no number", `"seq":2`, `"seq":""`, "no number"},
		{"a huge number", `"seq":2`, `"seq":18446744073709551616`, "too large"},
		{"a fraction", `"time_ms":1`, `"time_ms":1.5`, "expected"},
		{"an unknown member", `,"detail"`, `,"more":1,"detail"`, "expected"},
		{"detail twice", `"decision":"deny"`, `"decision":"deny","decision":"deny"`, "not in their order"},
		{"detail out of order", `"allowed_regions":"ch-zurich","decision":"deny"`, `"decision":"deny","allowed_regions":"ch-zurich"`, "not in their order"},
		{"an empty detail", `"decision":"deny"`, `"decision":""`, "empty detail"},
		{"detail that is no text", `"decision":"deny"`, `"decision":1`, "no text"},
		{"a trailing comma", `"rule_id":"fadp"}`, `"rule_id":"fadp",}`, "no text"},
		{"evidence without a hash", `"evidence":[]`, `"evidence":[{"kind":"query","sha256":"00","bytes":1}]`, "64 hex digits"},
		{"upper case hash", `"prev":"`, `"prev":"A`, "64 hex digits"},
		{"an unknown escape", `\"端`, `\x端`, "escape"},
		{"a cut escape", `\u0007`, `\u00`, "escape"},
		{"a bare control character", `\u0007`, "\a", "control character"},
		{"no UTF-8", `端`, "\xff", "UTF-8"},
		{"something after it", `"prev"`, `"prev"`, ""},
	} {
		raw := bytes.Replace(l[1], []byte(tc.old), []byte(tc.new), 1)
		if tc.want == "" {
			raw, tc.want = append(raw, ' '), "follows its end"
		} else if bytes.Equal(raw, l[1]) {
			t.Fatalf("%s changes nothing", tc.name)
		}
		if _, err := parseLine(raw); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	with := bytes.Replace(l[1], []byte(`"evidence":[]`), []byte(`"evidence":[{"kind":"query:p99","sha256":"`+strings.Repeat("0f", 32)+`","bytes":12},{"kind":"a","sha256":"`+strings.Repeat("00", 32)+`","bytes":0}]`), 1)
	if _, err := parseLine(with); err != nil {
		t.Errorf("evidence: %v", err)
	}
}

// FuzzLine: what passes is JSON in valid UTF-8 that says what was read, in one
// line; and the parser ends on anything.
func FuzzLine(f *testing.F) {
	l, _ := lines(service, 4)
	for _, raw := range l {
		f.Add(raw)
	}
	f.Add([]byte(`{"v":"dona-audit-v1","seq":1,"time_ms":-1,"service":"\"","kind":"\\","actor":"","detail":{"a":"\\\""},"evidence":[],"prev":"` + strings.Repeat("0", 64) + `"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parseLine(raw)
		if err != nil {
			return
		}
		var want struct {
			Seq           uint64
			Service, Kind string
			Prev          string
			Detail        map[string]string
		}
		if err := json.Unmarshal(raw, &want); err != nil || !utf8.Valid(raw) || bytes.IndexByte(raw, '\n') >= 0 {
			t.Fatalf("%q passes: %v", raw, err)
		}
		if got.seq != want.Seq || got.plain(got.service) != want.Service || got.plain(got.kind) != want.Kind || string(got.prev) != want.Prev {
			t.Fatalf("%q reads as %+v, want %+v", raw, got, want)
		}
		for key, value := range want.Detail {
			if string(AppendText(nil, key)) == `"`+key+`"` && strings.Contains(string(raw), `"`+key+`":`) && got.value(key) != value {
				t.Fatalf("%q: detail %q reads as %q, want %q", raw, key, got.value(key), value)
			}
		}
	})
}

// FuzzReport: a report that parses is written again as the same bytes.
func FuzzReport(f *testing.F) {
	f.Add(honest(3).Encode())
	f.Add(honest(0).Encode())
	older := honest(3)
	older.Older = &Older{1, strings.Repeat("0", 64), "segments/web"}
	f.Add(older.Encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Parse(raw)
		if err == nil && !bytes.Equal(r.Encode(), raw) {
			t.Fatalf("%q is written again as %q", raw, r.Encode())
		}
	})
}

func TestText(t *testing.T) {
	for _, text := range []string{"a\nb\r\tc", `"\`, "\x00\x1f\x7f", "<&>", "无", "\u202e\u2028"} {
		raw := AppendText(nil, text)
		var back string
		if err := json.Unmarshal(raw, &back); err != nil || back != text {
			t.Errorf("%q is written as %s and reads as %q, %v", text, raw, back, err)
		}
	}
}

// TestAddAll: the same as one by one, whatever the number and wherever the fault.
func TestAddAll(t *testing.T) {
	all, hashes := lines(service, 5000)
	for _, n := range []int{0, 1, 63, 64, 200, 2047, 2048, 2049, 5000} {
		c := NewChain(domain, service)
		if good, err := c.AddAll(all[:n]); err != nil || good != n || c.Seq() != uint64(n) || c.Hash() != hashes[n] {
			t.Errorf("of %d lines %d are good, the chain is at %d, %v", n, good, c.Seq(), err)
		}
	}
	for _, bad := range []int{0, 1, 100, 2047, 2048, 4999} {
		changed := append([][]byte{}, all...)
		changed[bad] = bytes.Replace(all[bad], []byte(`"local:dev"`), []byte(`"local:de"v`), 1)
		c := NewChain(domain, service)
		if good, err := c.AddAll(changed); err == nil || good != bad || c.Seq() != uint64(bad) || c.Hash() != hashes[bad] {
			t.Errorf("line %d is bad: %d are good, the chain is at %d, %v", bad+1, good, c.Seq(), err)
		}
	}
}

// BenchmarkChain checks a chain, and beside it hashes the same bytes.
func BenchmarkChain(b *testing.B) {
	// Entries as a host with rules on regions has them most.
	var all [][]byte
	hash := Genesis(domain, service)
	for seq := range uint64(1000) {
		all = append(all, entry(service, seq+1, "call.decision", `"allowed_regions":"eu-central,eu-west","config_version":"1042","count":"3","decision":"allow","endpoint_id":"checkout-7","endpoint_region":"eu-west","rule_id":"gdpr"`, hash))
		hash = sha256.Sum256(all[seq])
	}
	n := 0
	for _, raw := range all {
		n += len(raw)
	}
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(int64(n))
		for b.Loop() {
			if _, err := NewChain(domain, service).AddAll(all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sha256", func(b *testing.B) {
		b.SetBytes(int64(n))
		for b.Loop() {
			for _, raw := range all {
				sha256.Sum256(raw)
			}
		}
	})
}
