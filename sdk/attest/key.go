package attest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
)

// ParseKey reads a public ed25519 key: one PEM block of type PUBLIC KEY (SPKI).
func ParseKey(text []byte) (ed25519.PublicKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, errors.New("is not a public key in PEM: expected -----BEGIN PUBLIC KEY-----")
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, errors.New("holds more than one PEM block: expected one key")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("is not a public key in SPKI: %w", err)
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("is a %T: expected an ed25519 key", key)
	}
	return public, nil
}

// EncodeKey writes a public key as [ParseKey] reads it.
func EncodeKey(key ed25519.PublicKey) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki(key)})
}

// KeyID names a key: "sha256:" and the hash of its SPKI in hex.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(spki(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func spki(key ed25519.PublicKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic("attest: " + err.Error()) // only for types that it does not know
	}
	return der
}
