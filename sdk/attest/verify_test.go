package attest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// TestVector checks the published report, which another hand has made.
func TestVector(t *testing.T) {
	read := func(name string) []byte {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	raw := read("report.json")
	key, err := ParseKey(read("public.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !key.Equal(public) || !bytes.Equal(EncodeKey(key), read("public.pem")) {
		t.Error("the published key is not that of the seed 0 to 31, or is written otherwise")
	}
	got := verify(t, Options{Key: key}, Page{"report.json", raw, read("report.sig")})
	if got.TrustDomain != domain || got.Service != service || got.FirstSeq != 1 || got.LastSeq != 3 || got.Entries != 3 || got.Nonce != "n-1" || got.Gaps != 0 {
		t.Errorf("%+v", got)
	}
	want := []Decisions{{"allow", "eu-west", "eu-central,eu-west", "", 1}, {"deny", "", "ch-zurich", "", 1}}
	if fmt.Sprint(got.Decisions) != fmt.Sprint(want) {
		t.Errorf("decisions %v, want %v", got.Decisions, want)
	}
	if genesis := Genesis(domain, service); hex.EncodeToString(genesis[:]) != "ccdf8ac08decf4e8353fd09252d7b6671628858592d3aae9f5b8309b5e748934" {
		t.Errorf("genesis is %x", genesis)
	}
	r, err := Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Encode(), raw) {
		t.Errorf("the report is laid out as\n%s\nwant\n%s", r.Encode(), raw)
	}
}

// TestEveryChangedByte changes each byte of a report of 100 entries, by itself:
// each change is found, and where it lies in an entry that entry is named.
func TestEveryChangedByte(t *testing.T) {
	t.Parallel()
	p := sign(honest(100))
	verify(t, Options{}, p)
	// in[i] is the entry that byte i lies in, 0 for none.
	in := make([]uint64, len(p.Report))
	begin := bytes.Index(p.Report, []byte(entriesBegin)) + len(entriesBegin)
	for i, seq := begin, uint64(1); seq <= 100; seq++ {
		end := i + bytes.IndexByte(p.Report[i:], '\n')
		for at := i; at < end && !(at == end-1 && p.Report[at] == ','); at++ {
			in[at] = seq
		}
		i = end + 1
	}
	changes := []func(b byte) byte{
		func(b byte) byte { return b ^ 0x01 },
		func(b byte) byte { return b ^ 0x80 },
		func(b byte) byte { return b ^ 0x0a }, // a line break becomes a NUL
		func(byte) byte { return '\n' },
		func(byte) byte { return '"' },
	}
	check := func(at int, change byte) error {
		b := bytes.Clone(p.Report)
		b[at] = change
		_, err := Verify([]Page{{p.Name, b, p.Signature}}, Options{Key: public})
		var f *Fault
		switch {
		case !errors.As(err, &f):
			return fmt.Errorf("byte %d, changed to %q, passes: %w", at, change, err)
		case in[at] != 0 && f.Seq != in[at]:
			return fmt.Errorf("byte %d in entry %d, changed to %q: entry %d is named: %w", at, in[at], change, f.Seq, err)
		case len(err.Error()) > 1024:
			return fmt.Errorf("byte %d: %d bytes of explanation", at, len(err.Error()))
		}
		return nil
	}
	stride := 1
	if raceEnabled {
		stride = 7
	}
	var wg sync.WaitGroup
	var tested [2]int
	failures := make(chan error, 2)
	for w := range 2 {
		wg.Go(func() {
			for at := w * stride; at < len(p.Report); at += 2 * stride {
				for i, c := range changes {
					if i > 0 && at/2%5 != i {
						continue // the first change at each byte, the others in turn
					}
					if b := c(p.Report[at]); b != p.Report[at] {
						tested[w]++
						if err := check(at, b); err != nil {
							failures <- err
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	t.Logf("%d changes of %d bytes", tested[0]+tested[1], len(p.Report))
	for at := range p.Signature {
		sig := bytes.Clone(p.Signature)
		sig[at] ^= 1
		if _, err := Verify([]Page{{p.Name, p.Report, sig}}, Options{Key: public}); err == nil {
			t.Errorf("byte %d of the signature changed, and it passes", at)
		}
	}
	for _, b := range [][]byte{p.Report[:len(p.Report)-1], append(bytes.Clone(p.Report), '\n'), p.Report[1:], nil} {
		if _, err := Verify([]Page{{p.Name, b, p.Signature}}, Options{Key: public}); err == nil {
			t.Error("a byte more or less passes")
		}
	}
}

// TestTampering signs every forgery with the true key: what shows is the log's own
// doing, not the signature's.
func TestTampering(t *testing.T) {
	all, hashes := lines(service, 12)
	other, otherHashes := lines("web", 12)
	for _, tc := range []struct {
		name string
		do   func(r *Report)
		seq  uint64
		want string
	}{
		{"changed", func(r *Report) { r.Entries[4] = bytes.Replace(r.Entries[4], []byte("f5"), []byte("f6"), 1) }, 5, "was changed"},
		{"the last changed", func(r *Report) {
			r.Entries[11] = bytes.Replace(r.Entries[11], []byte("gdpr"), []byte("none"), 1)
		}, 12, "hashes to"},
		{"swapped", func(r *Report) { r.Entries[4], r.Entries[5] = r.Entries[5], r.Entries[4] }, 5, "says it is number 6"},
		{"deleted", func(r *Report) {
			r.Entries = append(r.Entries[:4:4], r.Entries[5:]...)
			r.LastSeq--
		}, 5, "says it is number 6"},
		{"deleted and not told", func(r *Report) { r.Entries = append(r.Entries[:4:4], r.Entries[5:]...) }, 0, "do not go with 11 entries"},
		{"inserted", func(r *Report) {
			r.Entries = append(r.Entries[:5:5], r.Entries[4:]...)
			r.LastSeq++
		}, 6, "says it is number 5"},
		{"the first dropped", func(r *Report) { r.Entries = r.Entries[1:] }, 0, "do not go with"},
		{"the first dropped and told as such", func(r *Report) {
			r.Entries, r.FirstSeq = r.Entries[1:], 2
			r.FirstPrev = r.LastHash
		}, 0, "first_prev"},
		{"another beginning", func(r *Report) { r.FirstPrev = r.LastHash }, 0, "the chain begins with"},
		{"another trust domain", func(r *Report) { r.TrustDomain = "other.org" }, 0, "the chain begins with"},
		{"an entry of another chain", func(r *Report) { r.Entries[4] = other[4] }, 5, `belongs to the chain "web"`},
		{"another chain's entries", func(r *Report) {
			r.Entries = other
			r.FirstPrev = hex.EncodeToString(otherHashes[0][:])
		}, 0, "the chain begins with"},
		{"count", func(r *Report) { r.Gaps++ }, 0, "gaps is 7, the entries tell of 6"},
		{"head before the last", func(r *Report) { r.Head = Head{11, hex.EncodeToString(hashes[11][:])} }, 0, "before the last entry"},
		{"head of another hash", func(r *Report) { r.Head.Hash = r.FirstPrev }, 0, "the head is entry 12 with hash"},
		{"last_hash", func(r *Report) { r.LastHash = r.FirstPrev }, 0, "last_hash is"},
		{"cut tail", func(r *Report) { r.Head = Head{13, r.LastHash} }, 0, "the tail is cut"},
		{"next_seq before the end", func(r *Report) { r.NextSeq = 13 }, 0, "next_seq is 13"},
		{"a hole before the next page", func(r *Report) { r.NextSeq, r.Head.Seq = 14, 20 }, 0, "next_seq is 14"},
		{"another signer's name", func(r *Report) { r.KeyID = "sha256:00" }, 0, "the signer is said to be"},
		{"the first dropped, with all its numbers", func(r *Report) {
			r.Entries, r.FirstSeq, r.FirstPrev = r.Entries[1:], 2, hex.EncodeToString(hashes[1][:])
		}, 1, "is missing: asked was from the beginning"},
		{"all dropped", func(r *Report) {
			r.Entries, r.FirstSeq, r.LastSeq, r.FirstPrev, r.LastHash, r.Gaps = nil, 0, 0, "", "", 0
		}, 1, "is missing: asked was from the beginning"},
		{"the first dropped after those that moved", func(r *Report) {
			r.Entries, r.FirstSeq, r.FirstPrev = r.Entries[4:], 5, hex.EncodeToString(hashes[4][:])
			r.Gaps -= 2
			r.Older = &Older{LastSeq: 3, LastHash: hex.EncodeToString(hashes[3][:]), Segments: "segments/checkout"}
		}, 4, "is missing: asked was from the beginning"},
		{"an empty report that is none", func(r *Report) { r.Entries, r.Gaps = nil, 0 }, 0, "there is no entry"},
	} {
		r := report(all, hashes, 1, 12)
		r.Entries = append([][]byte{}, r.Entries...)
		tc.do(r)
		_, err := Verify([]Page{sign(r)}, Options{Key: public})
		var f *Fault
		if !errors.As(err, &f) || f.Seq != tc.seq || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want entry %d and %q", tc.name, err, tc.seq, tc.want)
		}
	}
	// Whoever asked from an entry, or a time, on has a report that begins later, and says so.
	got := verify(t, Options{AllowGap: true}, sign(report(all, hashes, 2, 12)))
	if got.FirstSeq != 2 || !strings.Contains(strings.Join(got.NotProvable, "\n"), "before entry 2") {
		t.Errorf("%+v", got)
	}
	later := report(all, hashes, 2, 12)
	later.FromUnix = 1
	got = verify(t, Options{}, sign(later))
	if got.FirstSeq != 2 || !strings.Contains(strings.Join(got.NotProvable, "\n"), "before entry 2") {
		t.Errorf("%+v", got)
	}
}

func TestKeyAndQuestion(t *testing.T) {
	p := sign(honest(5))
	seed := bytes.Repeat([]byte{7}, 32)
	foreign := ed25519.NewKeyFromSeed(seed)
	web, checkout, nonce, old := "web", service, "n-1", "n-0"
	for _, tc := range []struct {
		name string
		p    Page
		o    Options
		want string
	}{
		{"another key than the pinned", p, Options{Key: foreign.Public().(ed25519.PublicKey)}, "it names the signer"},
		{"a signature by another key", Page{p.Name, p.Report, ed25519.Sign(foreign, p.Report)}, Options{Key: public}, "the signature does not fit"},
		{"no signature", Page{p.Name, p.Report, nil}, Options{Key: public}, "the signature does not fit"},
		{"another service", p, Options{Key: public, Service: &web}, `about "checkout", asked was for "web"`},
		{"another nonce", p, Options{Key: public, Nonce: &old}, "an answer to another question"},
		{"as asked", p, Options{Key: public, Service: &checkout, Nonce: &nonce}, ""},
	} {
		_, err := Verify([]Page{tc.p}, tc.o)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestResidency(t *testing.T) {
	for _, tc := range []struct {
		detail string
		want   string // of the fault, or of what is not provable
		fault  bool
	}{
		{`"allowed_regions":"eu-west","decision":"allow","endpoint_region":"us-east"`, `region "us-east", outside the regions allowed, eu-west`, true},
		{`"allowed_regions":"eu-west","decision":"allow","endpoint_region":"eu"`, "outside", true},
		{`"allowed_regions":"eu-west,eu","decision":"allow","endpoint_region":"eu-west,eu"`, "outside", true},
		{`"allowed_regions":"eu-west","decision":"allow"`, "outside", true},
		{`"allowed_regions":"eu-west","decision":"maybe"`, "neither allow nor deny", true},
		{`"allowed_regions":"eu-west","count":"-1","decision":"deny"`, "no number", true},
		{`"allowed_regions":"eu-west","count":"18446744073709551616","decision":"deny"`, "no number", true},
		{`"count":"4","decision":"allow","endpoint_region":"us-east"`, "where 4 calls was allowed to go", false},
		{`"allowed_regions":"eu-west","decision":"\u0061llow","endpoint_region":"eu\u002dwest"`, "", false},
	} {
		hash := Genesis(domain, service)
		raw := entry(service, 1, "call.decision", tc.detail, hash)
		r := report([][]byte{raw}, [][32]byte{hash, {}}, 1, 1)
		r.LastHash = hashOf(raw)
		r.Head.Hash = r.LastHash
		got, err := Verify([]Page{sign(r)}, Options{Key: public})
		var f *Fault
		switch {
		case tc.fault && (!errors.As(err, &f) || f.Seq != 1 || !strings.Contains(f.Cause, tc.want)):
			t.Errorf("%s: %v, want %q of entry 1", tc.detail, err, tc.want)
		case !tc.fault && err != nil:
			t.Errorf("%s: %v", tc.detail, err)
		case !tc.fault && !strings.Contains(strings.Join(got.NotProvable, "\n"), tc.want):
			t.Errorf("%s: %q, want %q", tc.detail, got.NotProvable, tc.want)
		}
	}
	got := verify(t, Options{}, sign(honest(100)))
	want := []Decisions{{"allow", "eu-west", "eu-central,eu-west", "gdpr", 75}, {"deny", "", "ch-zurich", "fadp", 25}}
	if fmt.Sprint(got.Decisions) != fmt.Sprint(want) || got.Gaps != 50 {
		t.Errorf("decisions %v, want %v; %d gaps, want 50", got.Decisions, want, got.Gaps)
	}
}

func TestPages(t *testing.T) {
	all, hashes := lines(service, 10)
	page := func(first, last uint64) *Report { return report(all, hashes, first, last) }
	got := verify(t, Options{}, sign(page(1, 4)), sign(page(5, 8)), sign(page(9, 10)))
	if got.FirstSeq != 1 || got.LastSeq != 10 || got.Entries != 10 || got.Pages != 3 || got.Gaps != 4 {
		t.Errorf("%+v", got)
	}
	with := func(r *Report, do func(r *Report)) *Report { do(r); return r }
	for _, tc := range []struct {
		name  string
		pages []*Report
		seq   uint64
		want  string
	}{
		{"none", nil, 0, "there is no report"},
		{"the last is missing", []*Report{page(1, 4), page(5, 8)}, 9, "there is no further report"},
		{"one is missing", []*Report{page(1, 4), page(9, 10)}, 9, "go on at 5"},
		{"in another order", []*Report{page(5, 8), page(1, 4)}, 1, "go on at 9"},
		{"one too many", []*Report{page(1, 10), page(5, 10)}, 5, "a page too many"},
		{"another nonce", []*Report{page(1, 8), with(page(9, 10), func(r *Report) { r.Nonce = "n-2" })}, 9, "nonce"},
		{"another chain", []*Report{page(1, 8), with(page(9, 10), func(r *Report) { r.Service = "web" })}, 9, "chain"},
		{"a page of another history", []*Report{page(1, 8), with(page(9, 10), func(r *Report) { r.FirstPrev = r.LastHash })}, 9, "does not continue"},
		{"a head that falls", []*Report{with(page(1, 8), func(r *Report) { r.Head.Seq = 11 }), page(9, 10)}, 9, "the page before had 11"},
	} {
		var pages []Page
		for _, r := range tc.pages {
			pages = append(pages, sign(r))
		}
		_, err := Verify(pages, Options{Key: public})
		var f *Fault
		if !errors.As(err, &f) || f.Seq != tc.seq || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want entry %d and %q", tc.name, err, tc.seq, tc.want)
		}
	}
	empty := verify(t, Options{}, sign(with(page(0, 0), func(r *Report) { r.FromUnix = 1 })))
	if empty.Entries != 0 || !strings.Contains(strings.Join(empty.NotProvable, "\n"), "there is none in the range") {
		t.Errorf("%+v", empty)
	}
	older := with(page(5, 10), func(r *Report) { r.Older = &Older{4, hex.EncodeToString(hashes[4][:]), "segments/checkout"} })
	got = verify(t, Options{}, sign(older))
	if got.Older == nil || !strings.Contains(strings.Join(got.NotProvable, "\n"), "up to entry 4: it moved to segment files, segments/checkout") {
		t.Errorf("%+v", got)
	}
	older.Older.LastHash = older.LastHash
	if _, err := Verify([]Page{sign(older)}, Options{Key: public}); err == nil || !strings.Contains(err.Error(), "first_prev is") {
		t.Errorf("an older part that the first entry does not continue: %v", err)
	}
}

func TestSeen(t *testing.T) {
	all, hashes := lines(service, 20)
	upTo := func(n uint64) *Report { return report(all[:n], hashes[:n+1], 1, n) }
	from := func(first, last uint64) *Report { return report(all[:last], hashes[:last+1], first, last) }
	seen := verify(t, Options{}, sign(upTo(10))).Now
	if seen.Seq != 10 || seen.Hash != hex.EncodeToString(hashes[10][:]) {
		t.Fatalf("%+v", seen)
	}
	// Another history that begins alike and differs from entry 8 on.
	forked, forkedHashes := append([][]byte{}, all[:7]...), append([][32]byte{}, hashes[:8]...)
	for seq := uint64(8); seq <= 20; seq++ {
		forked = append(forked, entry(service, seq, "flag.set", `"flag":"g"`, forkedHashes[seq-1]))
		forkedHashes = append(forkedHashes, [32]byte(must(hex.DecodeString(hashOf(forked[seq-1])))))
	}
	fork := func(first, last uint64) *Report {
		r := report(forked[:last], forkedHashes[:last+1], first, last)
		r.Gaps = 0
		for seq := first; seq <= min(last, 7); seq++ {
			if seq%4 == 3 {
				r.Gaps += 2
			}
		}
		return r
	}
	later := func(r *Report) *Report { r.IssuedMS, r.Nonce = seen.IssuedMS+1, "n-2"; return r }
	for _, tc := range []struct {
		name string
		r    *Report
		gap  bool
		want string // of the error; else of what was checked or is not provable
		bad  bool
	}{
		{"the same again", upTo(10), false, "it continues entry 10", false},
		{"a longer one", later(upTo(20)), false, "it continues entry 10", false},
		{"what came after", later(from(11, 20)), false, "it continues entry 10", false},
		{"it overlaps", later(from(9, 20)), false, "it continues entry 10", false},
		{"a gap", later(from(12, 20)), false, "fetch with --from-seq 11", true},
		{"a gap that is accepted", later(from(12, 20)), true, "entries 11 to 11", false},
		{"a cut tail", later(upTo(9)), false, "the tail was cut", true},
		{"an older report", upTo(9), false, "an older report played again", true},
		{"rewritten to the same length", later(fork(1, 10)), false, "history was rewritten", true},
		{"rewritten and longer", later(fork(1, 20)), false, "history was rewritten", true},
		{"rewritten, only what came after", later(fork(11, 20)), false, "history was rewritten", true},
		{"rewritten, beyond a gap", later(fork(12, 20)), false, "is missing", true},
	} {
		got, err := Verify([]Page{sign(tc.r)}, Options{Key: public, Seen: &seen, AllowGap: tc.gap})
		if tc.bad {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if text := strings.Join(append(got.Checked, got.NotProvable...), "\n"); !strings.Contains(text, tc.want) {
			t.Errorf("%s: %s\nwant %q", tc.name, text, tc.want)
		}
		if got.Now.Seq < seen.Seq {
			t.Errorf("%s: the memory falls to %d", tc.name, got.Now.Seq)
		}
	}
	// A look back shows nothing of what was seen, and makes nothing be forgotten.
	back := later(from(1, 20))
	back.Entries, back.LastSeq, back.ToUnix, back.NextSeq = back.Entries[:5], 5, 1, 0
	back.LastHash, back.Gaps = hex.EncodeToString(hashes[5][:]), 2
	got := verify(t, Options{Seen: &seen}, sign(back))
	if got.Now != seen || !strings.Contains(strings.Join(got.NotProvable, "\n"), "still continues entry 10") {
		t.Errorf("%+v", got)
	}
}
