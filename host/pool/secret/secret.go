// Package secret holds the credentials with which proxies are used: where the
// host reads them ([Resolver]), how hosts agree on their version without storing
// them ([Key]), and a type that no log, error or document can print
// ([Credential]).
//
// Credentials are in memory only, on the host and on what it sends them to. The
// store knows a reference and a version. The callers are host/pool and host/api.
package secret

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode/utf8"
)

// MaxPart is the most bytes that a username or a password has; a SOCKS5 handshake
// has room for no more.
const MaxPart = 255

const hidden = "[secret]"

// Credential is a username and a password. It prints as [secret], however it is
// printed; only Username and Password give it away. The zero Credential is none.
type Credential struct {
	held **parts // fmt asks no method of what lies in an unexported field, and follows one pointer, but never two
}

type parts struct{ username, password string }

// NewCredential checks the two parts. Its errors name no part of them.
func NewCredential(username, password string) (Credential, error) {
	for _, part := range []struct{ name, text string }{{"username", username}, {"password", password}} {
		switch {
		case len(part.text) > MaxPart:
			return Credential{}, fmt.Errorf("has a %s of %d bytes (allowed: at most %d)", part.name, len(part.text), MaxPart)
		case !utf8.ValidString(part.text) || strings.ContainsFunc(part.text, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return Credential{}, fmt.Errorf("has a %s with control characters or bytes that are not UTF-8 (allowed: text)", part.name)
		}
	}
	if username == "" {
		return Credential{}, errors.New("has an empty username (allowed: 1 to 255 bytes)")
	}
	held := &parts{username, password}
	return Credential{&held}, nil
}

// Username gives the username away.
func (c Credential) Username() string { return c.parts().username }

// Password gives the password away.
func (c Credential) Password() string { return c.parts().password }

func (c Credential) parts() parts {
	if c.held == nil {
		return parts{}
	}
	return **c.held
}

// IsZero reports whether there is no credential.
func (c Credential) IsZero() bool { return c.held == nil }

// Equal compares without telling by its time how far two credentials agree.
func (c Credential) Equal(other Credential) bool {
	a, b := c.parts(), other.parts()
	return subtle.ConstantTimeCompare([]byte(a.username), []byte(b.username))&
		subtle.ConstantTimeCompare([]byte(a.password), []byte(b.password)) == 1
}

// String prints that there is a secret, and nothing of it; so do Format, GoString,
// LogValue and MarshalText.
func (c Credential) String() string { return hidden }

// Format prints for every verb what String does.
func (c Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// GoString is String.
func (c Credential) GoString() string { return hidden }

// LogValue is String.
func (c Credential) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText is String.
func (c Credential) MarshalText() ([]byte, error) { return []byte(hidden), nil }
