package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/attest"
)

// attested is what the last act found.
type attested struct {
	entries  uint64
	told     map[string]bool // kinds of entries
	err      error           // of the verification
	changed  uint64          // the entry in which a byte was changed
	found    uint64          // the entry that was named then
	foundErr error
}

// attestation fetches the signed reports of all of the above, verifies them with
// the key that the host wrote at its first start, changes a byte and verifies again.
func (s *stage) attestation(ctx context.Context) error {
	s.story.chapter("5. What happened, signed")
	text, err := os.ReadFile(filepath.Join(s.dir, "data", "attestation.pem"))
	if err != nil {
		return fmt.Errorf("attestation: %w", err)
	}
	key, err := attest.ParseKey(text)
	if err != nil {
		return fmt.Errorf("attestation: attestation.pem %w", err)
	}
	name, nonce := service, rand.Text()
	pages, err := s.reports(ctx, nonce)
	if err != nil {
		return err
	}
	o := attest.Options{Key: key, Service: &name, Nonce: &nonce}
	f := &attested{told: map[string]bool{}}
	s.facts.attested = f
	result, err := attest.Verify(pages, o)
	if err != nil {
		f.err = err
		return fmt.Errorf("the attestation does not verify: %w", err)
	}
	f.entries = result.Entries
	r, err := attest.Parse(pages[0].Report)
	if err != nil {
		return fmt.Errorf("attestation: %w", err)
	}
	for _, raw := range r.Entries {
		e, err := attest.ParseEntry(raw)
		if err != nil {
			return fmt.Errorf("attestation: %w", err)
		}
		f.told[e.Kind] = true
	}
	s.story.tell("the signed report of all this has entries %d to %d; checked without the host: signature, order, every hash", result.FirstSeq, result.LastSeq)

	// A forger of the entry in the middle: one byte, as small as a lie can be.
	at := len(r.Entries) / 2
	f.changed = r.FirstSeq + uint64(at)
	forged := bytes.Clone(pages[0].Report)
	forged[bytes.Index(forged, r.Entries[at])+len(r.Entries[at])/2] ^= 1
	pages[0].Report = forged
	_, f.foundErr = attest.Verify(pages, o)
	var fault *attest.Fault
	if errors.As(f.foundErr, &fault) {
		f.found = fault.Seq
		s.story.tell("one byte of entry %d changed: entry %d is named", f.changed, f.found)
	}
	return nil
}

// reports asks for all there is.
func (s *stage) reports(ctx context.Context, nonce string) (pages []attest.Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	request := &donav1.AttestationRequest{Service: service, Nonce: nonce}
	for {
		reply, err := s.control.GetAttestation(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("attestation: %w", err)
		}
		r, err := attest.Parse(reply.GetReportJson())
		if err != nil {
			return nil, fmt.Errorf("attestation: %w", err)
		}
		name, _ := attest.PageName(len(pages) + 1)
		pages = append(pages, attest.Page{Name: name, Report: reply.GetReportJson(), Signature: reply.GetSignature()})
		if r.NextSeq == 0 {
			return pages, nil
		}
		request.FromSeq = r.NextSeq
	}
}

// proven wants the attestation to verify and to tell of what was seen, and a
// changed byte to be found where it is.
func proven(f *attested) Claim {
	switch {
	case f.err != nil:
		return Claim{false, "the attestation does not verify: " + f.err.Error()}
	case f.entries == 0:
		return Claim{false, "the attestation is empty"}
	}
	for _, kind := range []string{"rollout.start", "rollout.hold", "rollout.promote", "rollout.rollback"} {
		if !f.told[kind] {
			return Claim{false, "the attestation verifies and does not tell of a " + kind}
		}
	}
	switch {
	case f.foundErr == nil:
		return Claim{false, fmt.Sprintf("a byte of entry %d was changed, and it still verifies", f.changed)}
	case f.found != f.changed:
		return Claim{false, fmt.Sprintf("a byte of entry %d was changed, and entry %d is named: %v", f.changed, f.found, f.foundErr)}
	}
	return Claim{true, fmt.Sprintf("the signed attestation of all this verifies without the host (%d entries, the promotion and the rollback among them); one changed byte is caught, and its entry, %d, named",
		f.entries, f.changed)}
}
