package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
	"github.com/dodona-project/dodona/sdk/attest"
)

// A Signer holds the key that reports are signed with. Safe for concurrent use.
type Signer struct {
	key  ed25519.PrivateKey
	made bool
}

// OpenSigner reads the key from a file of mode 0600: one PEM block, PRIVATE KEY
// (PKCS #8), ed25519. When there is no file and create says so, it makes a key
// there. The public half is written beside it, see [PublicName]. A file that must
// not be used as it is is refused with store.ErrRefused and is not changed; one
// that is not there is fs.ErrNotExist.
func OpenSigner(file string, create bool) (*Signer, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: the attestation key "+format, append([]any{store.ErrRefused}, args...)...)
	}
	_, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) && create {
		return makeSigner(file)
	}
	if err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	if err := datadir.CheckFile(file); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, refuse("%s cannot be read: %w", file, err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, refuse("%s holds no private key in PEM; put the key back from where it is kept", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, refuse("%s is damaged; put the key back from where it is kept", file) // the error may show of the key
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, refuse("%s is not an ed25519 key", file)
	}
	s := &Signer{key: key}
	return s, s.publish(file)
}

func makeSigner(file string) (*Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	if err := datadir.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	s := &Signer{key: key, made: true}
	return s, s.publish(file)
}

// PublicName is the file of a key's public half: attestation.pem for
// attestation.key.
func PublicName(file string) string { return strings.TrimSuffix(file, ".key") + ".pem" }

// publish writes the public half beside the key, unless it is there.
func (s *Signer) publish(file string) error {
	want, name := s.PublicPEM(), PublicName(file)
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := datadir.WriteFile(name, want); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("public half of the attestation key: %w", err)
	}
	return nil
}

// Made reports whether the key was made by this opening.
func (s *Signer) Made() bool { return s.made }

// KeyID names the key, as reports do.
func (s *Signer) KeyID() string { return attest.KeyID(s.public()) }

// PublicPEM is the public half, in PEM.
func (s *Signer) PublicPEM() []byte { return attest.EncodeKey(s.public()) }

func (s *Signer) public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

func (s *Signer) sign(report []byte) []byte { return ed25519.Sign(s.key, report) }

// Derive is another key that all hosts with this one have, for a purpose: 32 bytes
// that tell nothing of this key or of one for another purpose.
func (s *Signer) Derive(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, s.key.Seed(), nil, "dona "+purpose, 32)
	if err != nil {
		panic(err) // of no length or hash but these
	}
	return key
}
