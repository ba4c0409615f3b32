package secret

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Digest is what the store holds of a credential: nothing can be learnt from it
// without the cluster's key, not even by trying passwords.
type Digest [sha256.Size]byte

// Key is the key that the hosts of a cluster share for digests. It prints as
// [secret].
type Key struct {
	raw **[sha256.Size]byte // as in Credential
}

// GenerateKey returns the text of a new key, as ParseKey reads it.
func GenerateKey() string {
	var raw [sha256.Size]byte
	_, _ = rand.Read(raw[:]) // never fails: see its documentation
	return hex.EncodeToString(raw[:]) + "\n"
}

// ParseKey reads 64 hex digits, which a line break may follow.
func ParseKey(text string) (Key, error) {
	raw, err := hex.DecodeString(strings.TrimRight(text, "\r\n"))
	if err != nil || len(raw) != sha256.Size {
		return Key{}, errors.New("does not hold 64 hex digits")
	}
	key := (*[sha256.Size]byte)(raw)
	return Key{raw: &key}, nil
}

// IsZero reports whether there is no key. Without one nothing has a digest.
func (k Key) IsZero() bool { return k.raw == nil }

// String prints that there is a secret.
func (k Key) String() string { return hidden }

// Format prints for every verb what String does.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue is String.
func (k Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText is String.
func (k Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Digest returns the digest of a credential.
func (k Key) Digest(c Credential) Digest {
	return k.sum("dona credential 1", c.Username(), c.Password())
}

// ProxyID returns the id of a listed proxy: the same wherever and whenever it is
// computed, and another one for another username, because vendors put the choice
// of an exit there.
func (k Key) ProxyID(upstream, protocol, host string, port uint16, username string) string {
	sum := k.sum("dona proxy 1", upstream, protocol, net.JoinHostPort(host, strconv.Itoa(int(port))), username)
	return "px-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:15]))
}

// sum is a keyed digest of parts that cannot be cut in another way.
func (k Key) sum(parts ...string) (d Digest) {
	mac := hmac.New(sha256.New, (*k.raw)[:])
	for _, part := range parts {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		mac.Write([]byte(part))
	}
	mac.Sum(d[:0])
	return d
}

// past is how many digests a version remembers.
const past = 8

// Version is the version of a secret, as the store holds it.
type Version struct {
	Number uint32   // 0: the secret was never seen
	Digest Digest   // of the credential that this version is
	Past   []Digest // of the versions before, the newest first
}

// Standing is what a host's credential is to the version of the store.
type Standing int

// What a credential can be.
const (
	Current Standing = iota + 1 // the version of the store
	Newer                       // the next version, which the store has to be told
	Stale                       // an earlier version: this host has not been given the new one
)

// Decide says what a credential that a host has just resolved is to the version
// of the store, and what the store has to hold then. before is the digest that
// this host resolved last, nil at its first time.
//
// Files of a secret are replaced on one host after the other. A host that still
// has the old one must not make a version of it, or the version would go up and
// down between the hosts for as long as that takes. It may when it held the
// version of the store and then got the earlier credential: that is a change back.
func Decide(v Version, before *Digest, now Digest) (Version, Standing) {
	switch {
	case v.Number != 0 && now == v.Digest:
		return v, Current
	case v.Number != 0 && slices.Contains(v.Past, now) && (before == nil || *before != v.Digest):
		return v, Stale
	}
	next := Version{Number: v.Number + 1, Digest: now}
	if next.Number == 0 {
		next.Number-- // after 4 billion changes the number stays; nobody gets there
	}
	if v.Number != 0 {
		next.Past = append([]Digest{v.Digest}, v.Past...)
		next.Past = slices.DeleteFunc(next.Past, func(d Digest) bool { return d == now })
		next.Past = next.Past[:min(len(next.Past), past)]
	}
	return next, Newer
}
