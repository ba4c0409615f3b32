package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/dodona-project/dodona/host/store"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// A check finds what is there and what does not hold.
func TestCheckStore(t *testing.T) {
	e := newEdge(t)
	_, err := e.client.SetFlag(ctx(t), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
	fatal(t, err)
	r, err := e.admin.CheckStore(ctx(t), &donav1.CheckStoreRequest{})
	if err != nil || r.Services != 1 || r.Records < 2 || len(r.Problems) > 0 || len(r.Chains) != 1 || r.Chains[0].Chain != "web" || r.Chains[0].Entries != 1 {
		t.Errorf("a good store: %v, %v", r, err)
	}
	fatal(t, e.store.Update(ctx(t), store.Hard, func(tx store.Tx) error {
		if err := tx.Put("svc/web/flag/f", []byte("not a record")); err != nil {
			return err
		}
		if err := tx.IndexPut("svc/web/flag", "g", 0); err != nil { // an index is a hint: no problem
			return err
		}
		_, err := tx.Append("audit/web", []byte("{}"))
		return err
	}))
	r, err = e.admin.CheckStore(ctx(t), &donav1.CheckStoreRequest{})
	if err != nil || len(r.Problems) != 2 || len(r.Chains) != 0 ||
		!strings.Contains(r.Problems[0], "svc/web/flag/f does not parse") || !strings.Contains(r.Problems[1], "chain web: entry 2") {
		t.Errorf("a damaged one: %v, %v", r, err)
	}
}

// A backup comes in pieces, with the digest of all at its end.
func TestBackupStore(t *testing.T) {
	e := newEdge(t)
	stream, err := e.admin.BackupStore(ctx(t), &donav1.BackupStoreRequest{})
	fatal(t, err)
	var got []byte
	digest := ""
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		fatal(t, err)
		if digest != "" || len(chunk.Data) == 0 == (chunk.Digest == "") {
			t.Fatalf("a chunk of %d bytes with the digest %q after %q", len(chunk.Data), chunk.Digest, digest)
		}
		got, digest = append(got, chunk.Data...), chunk.Digest
	}
	sum := sha256.Sum256(backupOfATest)
	if !bytes.Equal(got, backupOfATest) || digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("%d bytes with the digest %s", len(got), digest)
	}
}

// What a host has alone is never adopted.
func TestAdoptEmbedded(t *testing.T) {
	e := newEdge(t)
	_, err := e.admin.AdoptStore(ctx(t), &donav1.AdoptStoreRequest{Reason: "because"})
	refused(t, "an embedded store", err, codes.FailedPrecondition, "")
	_, err = e.admin.AdoptStore(ctx(t), &donav1.AdoptStoreRequest{Reason: " \t"})
	refused(t, "no reason", err, codes.InvalidArgument, "reason")
	_, err = e.admin.AdoptStore(ctx(t), &donav1.AdoptStoreRequest{Reason: strings.Repeat("r", 4097)})
	refused(t, "a long reason", err, codes.InvalidArgument, "reason")
}
