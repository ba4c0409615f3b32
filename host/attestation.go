package host

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
)

const (
	signerKey   = "attestation/key" // record in the store
	ownSigner   = "attestation.key" // file of the data directory
	signerRetry = time.Second
)

// openSigner reads the key that reports are signed with, or makes one at the first
// start, and compares it with the one that the store knows. Who verifies has pinned
// that one, so a host with another is refused; with dev, where data directories
// come and go, it is a warning.
func (h *Host) openSigner(ctx context.Context) error {
	var have statev1.AttestationKey
	err := h.store.View(ctx, func(tx store.ReadTx) error {
		_, err := store.Load(tx, signerKey, &have)
		return err
	})
	if err != nil {
		return fmt.Errorf("attestation key: %w", err)
	}
	file, own := h.config.AttestationKey, h.config.AttestationKey == ""
	if own {
		file = filepath.Join(h.config.DataDir, ownSigner)
	}
	h.signer, err = audit.OpenSigner(file, own && (have.GetKeyId() == "" || h.config.Dev))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no attestation key %s, and reports of this store are signed with %s; put that key back from where it is kept; when it is lost, dona-host operator --new-attestation-key has another one made", store.ErrRefused, file, have.GetKeyId())
	}
	if err != nil {
		return err
	}
	if h.signer.Made() {
		block, _ := pem.Decode(h.signer.PublicPEM())
		h.log.Info("made the attestation key; keep its public half where reports are verified, and the key where backups are",
			"public_file", audit.PublicName(file), "public", base64.StdEncoding.EncodeToString(block.Bytes), "key_id", h.signer.KeyID())
	}
	if id := h.signer.KeyID(); have.GetKeyId() != "" && have.GetKeyId() != id {
		text := fmt.Sprintf("the attestation key %s is %s, reports of this store are signed with %s; put that one back, or name its file with audit.key_file", file, id, have.GetKeyId())
		if !h.config.Dev {
			return fmt.Errorf("%w: %s", store.ErrRefused, text)
		}
		h.log.Warn(text)
	}
	return nil
}

// forgetSigner has the next start take another attestation key. The file of the one that
// there was, if there is one, is put aside.
func (h *Host) forgetSigner(ctx context.Context, actor string) error {
	err := audit.Guard(h.store).Update(ctx, store.Hard, func(tx store.Tx) error {
		var have statev1.AttestationKey
		if _, err := store.Load(tx, signerKey, &have); err != nil || have.GetKeyId() == "" {
			return err
		}
		if err := tx.Delete(signerKey); err != nil {
			return err
		}
		return h.ledger.Append(tx, audit.HostChain, audit.Entry{Kind: "store.adopt", Actor: actor, Detail: map[string]string{
			"reason": "another attestation key takes the place of " + have.GetKeyId(),
		}})
	})
	if err != nil || h.config.AttestationKey != "" {
		return err
	}
	file := filepath.Join(h.config.DataDir, ownSigner)
	err = os.Rename(file, file+".aside-"+strconv.FormatInt(time.Now().UnixMilli(), 10))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// retention moves old audit entries out of the store.
func (h *Host) retention() *audit.Retention {
	return audit.NewRetention(audit.RetainOptions{
		Store: audit.Guard(h.store), Log: h.ledger, Chains: h.plane.Services, Dir: h.config.DataDir,
		Keep: h.config.AuditKeep, MaxEntries: h.config.AuditMaxEntries, Logger: h.log.Named("audit"),
	})
}

// recordSigner has the store keep the name of the key, once.
func (h *Host) recordSigner(ctx context.Context) error {
	for {
		err := audit.Guard(h.store).Update(ctx, store.Hard, func(tx store.Tx) error {
			var have statev1.AttestationKey
			if _, err := store.Load(tx, signerKey, &have); err != nil || have.GetKeyId() != "" {
				return err
			}
			return store.Save(tx, signerKey, &statev1.AttestationKey{KeyId: h.signer.KeyID()})
		})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(signerRetry):
		}
	}
}
