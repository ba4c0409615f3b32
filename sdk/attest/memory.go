package attest

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Seen is what a verifier remembers of a chain: the newest head that it has
// verified, and the report that showed it.
type Seen struct {
	Head
	IssuedMS int64  `json:"issued_ms"`
	Nonce    string `json:"nonce"`
}

// A Memory is a file of what was seen before: of each chain the newest head, of
// each trust domain the signer's key. The file has mode 0600 and is replaced as one
// step. Not safe for concurrent use; several processes may use one file: each head that
// is newer stays (but on Windows, where nothing keeps two from writing at once).
type Memory struct {
	path string
	data memoryFile
}

const memoryFormat = 1

type memoryFile struct {
	Format int           `json:"format"`
	Keys   []rememberKey `json:"keys"`
	Chains []rememberRow `json:"chains"`
}

type rememberKey struct {
	TrustDomain string `json:"trust_domain"`
	PEM         string `json:"pem"`
}

type rememberRow struct {
	TrustDomain string `json:"trust_domain"`
	Chain       string `json:"chain"`
	Seen
}

// OpenMemory reads the file; one that is not there is an empty memory. A file that
// does not hold is an error and is not changed: a memory that forgets by itself
// would be worth nothing.
func OpenMemory(path string) (*Memory, error) {
	m := &Memory{path: path, data: memoryFile{Format: memoryFormat}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if err := checkMode(path, info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return nil, err
	}
	bad := func(why string) error {
		return fmt.Errorf("%s does not hold what was seen before: %s; restore it, or remove it to begin anew", path, why)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m.data); err != nil {
		return nil, bad(err.Error())
	}
	if m.data.Format != memoryFormat {
		return nil, bad(fmt.Sprintf("it has format %d, this program reads %d", m.data.Format, memoryFormat))
	}
	for _, c := range m.data.Chains {
		if c.Seq == 0 || !isHash([]byte(c.Hash)) {
			return nil, bad("the head of " + c.Chain + " is none")
		}
	}
	for _, k := range m.data.Keys {
		if _, err := ParseKey([]byte(k.PEM)); err != nil {
			return nil, bad("the key of " + k.TrustDomain + " " + err.Error())
		}
	}
	return m, nil
}

// Seen returns what is remembered of a chain; nil when nothing is.
func (m *Memory) Seen(trustDomain, chain string) *Seen {
	if i := m.row(trustDomain, chain); i >= 0 {
		seen := m.data.Chains[i].Seen
		return &seen
	}
	return nil
}

// Key returns the signer's key of a trust domain; nil when none is remembered.
func (m *Memory) Key(trustDomain string) ed25519.PublicKey {
	for _, k := range m.data.Keys {
		if k.TrustDomain == trustDomain {
			key, _ := ParseKey([]byte(k.PEM))
			return key
		}
	}
	return nil
}

// Remember keeps the key that a result was verified with, and its head if it is
// not before the one that is kept.
func (m *Memory) Remember(r *Result, key ed25519.PublicKey) error {
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return err
	}
	unlock, err := lock(m.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	newest, err := OpenMemory(m.path) // another process may have written
	if err != nil {
		return err
	}
	m.data = newest.data
	if r.Now.Seq > 0 {
		row := rememberRow{r.TrustDomain, r.Service, r.Now}
		switch i := m.row(r.TrustDomain, r.Service); {
		case i < 0:
			m.data.Chains = append(m.data.Chains, row)
		case m.data.Chains[i].Seq <= row.Seq:
			m.data.Chains[i] = row
		}
	}
	m.data.Keys = slices.DeleteFunc(m.data.Keys, func(k rememberKey) bool { return k.TrustDomain == r.TrustDomain })
	m.data.Keys = append(m.data.Keys, rememberKey{r.TrustDomain, string(EncodeKey(key))})
	slices.SortFunc(m.data.Keys, func(a, b rememberKey) int { return cmp.Compare(a.TrustDomain, b.TrustDomain) })
	slices.SortFunc(m.data.Chains, func(a, b rememberRow) int {
		return cmp.Or(cmp.Compare(a.TrustDomain, b.TrustDomain), cmp.Compare(a.Chain, b.Chain))
	})
	return m.write()
}

func (m *Memory) row(trustDomain, chain string) int {
	return slices.IndexFunc(m.data.Chains, func(r rememberRow) bool { return r.TrustDomain == trustDomain && r.Chain == chain })
}

func (m *Memory) write() error {
	text, err := json.MarshalIndent(m.data, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(m.path), "."+filepath.Base(m.path)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(append(text, '\n'))
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), m.path)
}
