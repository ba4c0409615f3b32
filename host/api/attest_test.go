package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

// TestAttestation: a stock client gets pages that verify, with the decisions that
// were reported, and is told where to go on.
func TestAttestation(t *testing.T) {
	e := newEdge(t)
	ctx := context.Background()
	for i := range 5 {
		_, err := e.client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: fmt.Sprint("f", i), RolloutPercent: 5, RolloutVariant: "v1"}})
		fatal(t, err)
	}
	_, err := e.client.ReportStats(ctx, &donav1.StatsBatch{ReporterId: "r-1", Sequence: 1, Audits: []*donav1.AuditEvent{
		{Service: "web", Decision: donav1.AuditEvent_DECISION_ALLOW, AllowedRegions: []string{"eu-west"}, EndpointId: "a", EndpointRegion: "eu-west", RuleId: "gdpr", Count: 7, UnixMs: time.Now().UnixMilli()},
		{Service: "web", Decision: donav1.AuditEvent_DECISION_DENY, AllowedRegions: []string{"eu-west"}, RuleId: "gdpr", Count: 2, UnixMs: time.Now().UnixMilli()},
	}})
	fatal(t, err)
	var pages []attest.Page
	var pem []byte
	request := &donav1.AttestationRequest{Service: "web", Nonce: "n-1", MaxEntries: 3}
	for {
		reply, err := e.client.GetAttestation(ctx, request)
		fatal(t, err)
		pages = append(pages, attest.Page{Name: fmt.Sprint("page ", len(pages)+1), Report: reply.ReportJson, Signature: reply.Signature})
		r, err := attest.Parse(reply.ReportJson)
		fatal(t, err)
		pem = reply.SignerPublicKeyPem
		if r.NextSeq == 0 {
			break
		}
		request.FromSeq = r.NextSeq
	}
	key, err := attest.ParseKey(pem)
	fatal(t, err)
	service, nonce := "web", "n-1"
	got, err := attest.Verify(pages, attest.Options{Key: key, Service: &service, Nonce: &nonce})
	fatal(t, err)
	want := []attest.Decisions{{Decision: "allow", Region: "eu-west", AllowedRegions: "eu-west", RuleID: "gdpr", Count: 7},
		{Decision: "deny", AllowedRegions: "eu-west", RuleID: "gdpr", Count: 2}}
	if got.FirstSeq != 1 || got.LastSeq != 8 || got.Pages != 3 || fmt.Sprint(got.Decisions) != fmt.Sprint(want) {
		t.Errorf("%+v", got)
	}
	for _, chain := range []string{"@host", "@pool"} {
		if _, err := e.client.GetAttestation(ctx, &donav1.AttestationRequest{Service: chain}); err != nil {
			t.Errorf("%s: %v", chain, err)
		}
	}
}

// TestAttestationNeedsTheLog: what cannot be proven is not signed.
func TestAttestationNeedsTheLog(t *testing.T) {
	full := &takesNothing{}
	e := newEdge(t, withStore(func(st store.Store) store.Store { full.Store = st; return full }))
	_, err := e.client.SetFlag(context.Background(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: 5, RolloutVariant: "v1"}})
	fatal(t, err)
	full.is = true
	reply, err := e.client.GetAttestation(context.Background(), &donav1.AttestationRequest{Service: "web"})
	if status.Code(err) != codes.Unavailable || reply != nil {
		t.Errorf("%v, %v", reply, err)
	}
}

// takesNothing is a store on a full disk, once it is.
type takesNothing struct {
	store.Store
	is bool
}

func (s *takesNothing) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	if s.is {
		return errors.Join(store.ErrFull)
	}
	return s.Store.Update(ctx, d, fn)
}
