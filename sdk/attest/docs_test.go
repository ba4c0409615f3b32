package attest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedCheck runs the very commands of docs/attestation.md, on what is
// honest and on what is not.
func TestDocumentedCheck(t *testing.T) {
	for _, tool := range []string{"openssl", "sed", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the page needs %s", tool)
		}
	}
	page, err := os.ReadFile("../../docs/attestation.md")
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(page, -1) {
		script.Write(block[1])
	}
	for _, tool := range []string{"openssl ", "sed ", "sha256sum"} {
		if !strings.Contains(script.String(), tool) {
			t.Fatalf("the page's commands have no %s:\n%s", tool, script.String())
		}
	}
	run := func(p Page, key ed25519.PublicKey) (string, error) {
		dir := t.TempDir()
		for name, data := range map[string][]byte{"report.json": p.Report, "report.sig": p.Signature, "public.pem": EncodeKey(key)} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-eu", "-c", script.String())
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	vector := Page{Name: "report.json"}
	for file, to := range map[string]*[]byte{"report.json": &vector.Report, "report.sig": &vector.Signature} {
		if *to, err = os.ReadFile("testdata/" + file); err != nil {
			t.Fatal(err)
		}
	}
	all, hashes := lines(service, 8)
	since := func(r *Report) *Report { r.FromUnix = 1; return r } // asked for from a time on
	for name, p := range map[string]Page{
		"the published report": vector, "all": sign(report(all, hashes, 1, 8)),
		"a page in the middle": sign(since(report(all, hashes, 3, 6))), "one entry": sign(since(report(all, hashes, 8, 8))),
	} {
		if out, err := run(p, public); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	foreign := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	good := sign(report(all, hashes, 1, 8))
	flipped := bytes.Clone(good.Report)
	flipped[len(flipped)/2] ^= 1
	for name, p := range map[string]Page{
		"a byte changed": {good.Name, flipped, good.Signature}, "another key": {good.Name, good.Report, ed25519.Sign(foreign, good.Report)},
		"a byte more": {good.Name, append(bytes.Clone(good.Report), '\n'), good.Signature}, "no signature": {good.Name, good.Report, nil},
	} {
		if out, err := run(p, public); err == nil {
			t.Errorf("%s passes:\n%s", name, out)
		}
	}
	// With the signature right, so that what follows has to find it.
	other, _ := lines("web", 8)
	for name, do := range map[string]func(r *Report){
		"changed":           func(r *Report) { r.Entries[0] = bytes.Replace(r.Entries[0], []byte("f1"), []byte("f2"), 1) },
		"the last changed":  func(r *Report) { r.Entries[7] = bytes.Replace(r.Entries[7], []byte("gdpr"), []byte("none"), 1) },
		"swapped":           func(r *Report) { r.Entries[3], r.Entries[4] = r.Entries[4], r.Entries[3] },
		"deleted":           func(r *Report) { r.Entries = append(r.Entries[:3:3], r.Entries[4:]...) },
		"the last dropped":  func(r *Report) { r.Entries = r.Entries[:7] },
		"the first dropped": func(r *Report) { r.Entries = r.Entries[1:] },
		"the first dropped, with all its numbers": func(r *Report) {
			r.Entries, r.FirstSeq, r.FirstPrev = r.Entries[1:], 2, hex.EncodeToString(hashes[1][:])
		},
		"inserted":          func(r *Report) { r.Entries = append(r.Entries[:4:4], r.Entries[3:]...) },
		"another chain's":   func(r *Report) { r.Entries[4] = other[4] },
		"another beginning": func(r *Report) { r.TrustDomain = "other.org" },
		"another last hash": func(r *Report) { r.LastHash = r.FirstPrev },
		"another head":      func(r *Report) { r.Head.Hash = r.FirstPrev },
		"a head before it":  func(r *Report) { r.Head.Seq = 7 },
	} {
		r := report(all, hashes, 1, 8)
		r.Entries = append([][]byte{}, r.Entries...)
		do(r)
		p := sign(r)
		if out, err := run(p, public); err == nil {
			t.Errorf("%s passes:\n%s", name, out)
		}
		if _, err := Verify([]Page{p}, Options{Key: public}); err == nil {
			t.Errorf("%s passes Verify", name)
		}
	}
	hash := Genesis(domain, service)
	raw := entry(service, 1, "call.decision", `"allowed_regions":"eu-central,eu-west","decision":"allow","endpoint_region":"us-east"`, hash)
	r := report([][]byte{raw}, [][32]byte{hash, {}}, 1, 1)
	r.LastHash = hashOf(raw)
	r.Head.Hash = r.LastHash
	if out, err := run(sign(r), public); err == nil || !strings.Contains(out, "a call was allowed to ,us-east,") {
		t.Errorf("a call outside its regions: %v\n%s", err, out)
	}
}
