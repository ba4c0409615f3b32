// Package clients knows who may use a gateway: names, each with a file that has the
// password. Files are read again while the gateway runs, so that a password is changed
// by replacing its file.
package clients

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// maxPassword is the most bytes of a password.
const maxPassword = 1024

// Client is one name, as the configuration has it.
type Client struct{ Name, PasswordFile string }

// Set is the clients of a gateway. Safe for concurrent use.
type Set struct {
	listed []Client
	salt   [32]byte
	nobody [sha256.Size]byte
	known  atomic.Pointer[map[string][sha256.Size]byte]
}

// Load reads all password files. The error says which cannot be used, and why.
func Load(listed []Client) (*Set, error) {
	s := &Set{listed: listed}
	_, _ = rand.Read(s.salt[:])
	s.nobody = s.digest(rand.Text())
	known, err := s.read()
	if err != nil {
		return nil, err
	}
	s.known.Store(&known)
	return s, nil
}

// Reload reads the files again. After an error everything is as it was before.
func (s *Set) Reload() error {
	known, err := s.read()
	if err == nil {
		s.known.Store(&known)
	}
	return err
}

func (s *Set) read() (map[string][sha256.Size]byte, error) {
	known := make(map[string][sha256.Size]byte, len(s.listed))
	var wrong []error
	for _, c := range s.listed {
		password, err := readPassword(c.PasswordFile)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("password file of client %s: %w", c.Name, err))
			continue
		}
		known[c.Name] = s.digest(password)
	}
	return known, errors.Join(wrong...)
}

// readPassword reads the first line of a file.
func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	switch {
	case len(line) == 0:
		return "", fmt.Errorf("%s has no password in its first line", file)
	case len(line) > maxPassword:
		return "", fmt.Errorf("%s has a password of %d bytes: at most %d are allowed", file, len(line), maxPassword)
	case len(bytes.TrimSpace(rest)) > 0:
		return "", fmt.Errorf("%s has more than one line: the password is the first one alone", file)
	}
	return string(line), nil
}

// digest makes passwords of equal length, so that comparing them takes the same time.
func (s *Set) digest(password string) [sha256.Size]byte {
	buf := make([]byte, 0, 128)
	return sha256.Sum256(append(append(buf, s.salt[:]...), password...))
}

// Check reports whether a client has this password. It takes the same time for a wrong
// name and a wrong password.
func (s *Set) Check(name, password string) bool {
	if len(password) > maxPassword {
		return false
	}
	want, ok := (*s.known.Load())[name]
	if !ok {
		want = s.nobody
	}
	got := s.digest(password)
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && ok
}
