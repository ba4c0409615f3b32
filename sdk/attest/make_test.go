package attest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
)

const (
	domain  = "example.org"
	service = "checkout"
)

var (
	signer = ed25519.NewKeyFromSeed(func() (seed []byte) {
		for i := range byte(32) {
			seed = append(seed, i)
		}
		return seed
	}())
	public = signer.Public().(ed25519.PublicKey)
)

// entry lays out one entry with its own hand, so that the parser is held against
// the words of the format and not against its own code.
func entry(chain string, seq uint64, kind, detail string, prev [32]byte) []byte {
	return fmt.Appendf(nil, `{"v":"dona-audit-v1","seq":%d,"time_ms":%d,"service":"%s","kind":"%s","actor":"local:dev","detail":{%s},"evidence":[],"prev":"%x"}`,
		seq, 1767225600000+seq*1000, chain, kind, detail, prev)
}

// detail of the n-th entry: every kind that verification looks into.
func detail(n uint64) (kind, members string) {
	switch n % 4 {
	case 0:
		return "call.decision", `"allowed_regions":"eu-central,eu-west","count":"3","decision":"allow","endpoint_region":"eu-west","rule_id":"gdpr"`
	case 1:
		return "flag.set", fmt.Sprintf(`"flag":"f%d","rollout_percent":"5"`, n)
	case 2:
		return "call.decision", `"allowed_regions":"ch-zurich","decision":"deny","note":"无可用 \"端点\"\u0007 <&>","rule_id":"fadp"`
	}
	return "stats.gap", `"missing":"2","reporter_id":"r-1"`
}

// lines is a chain of n entries and the hash of each, the genesis first.
func lines(chain string, n uint64) (out [][]byte, hashes [][32]byte) {
	hashes = append(hashes, Genesis(domain, chain))
	for seq := uint64(1); seq <= n; seq++ {
		kind, members := detail(seq)
		out = append(out, entry(chain, seq, kind, members, hashes[seq-1]))
		hashes = append(hashes, sha256.Sum256(out[seq-1]))
	}
	return out, hashes
}

// report is what an honest host says of entries first to last of those lines.
func report(all [][]byte, hashes [][32]byte, first, last uint64) *Report {
	r := &Report{
		TrustDomain: domain, Service: service, Nonce: "n-1", IssuedMS: 1767226000000 + int64(len(all))*1000, KeyID: KeyID(public),
		Head: Head{Seq: uint64(len(all)), Hash: hex.EncodeToString(hashes[len(all)][:])},
	}
	if last == 0 {
		return r
	}
	r.FirstSeq, r.LastSeq, r.Entries = first, last, all[first-1:last]
	r.FirstPrev, r.LastHash = hex.EncodeToString(hashes[first-1][:]), hex.EncodeToString(hashes[last][:])
	for seq := first; seq <= last; seq++ {
		if kind, _ := detail(seq); kind == "stats.gap" {
			r.Gaps += 2
		}
	}
	if last < uint64(len(all)) {
		r.NextSeq = last + 1
	}
	return r
}

func sign(r *Report) Page {
	b := r.Encode()
	return Page{Name: "report.json", Report: b, Signature: ed25519.Sign(signer, b)}
}

func honest(n uint64) *Report {
	all, hashes := lines(service, n)
	return report(all, hashes, 1, n)
}

func verify(t *testing.T, o Options, pages ...Page) *Result {
	t.Helper()
	if o.Key == nil {
		o.Key = public
	}
	r, err := Verify(pages, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
