package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
)

// keyDir is the directory of a host's authorities: each is one file with its
// certificate and its key, named after the key.
type keyDir struct {
	path        string
	trustDomain string
}

func (d keyDir) file(keyID string) string {
	return filepath.Join(d.path, strings.TrimPrefix(keyID, "sha256:")+".pem")
}

// load reads every authority there, by key id. What others could read or replace, or
// what is no authority, is refused.
func (d keyDir) load() (map[string]*CA, error) {
	all := map[string]*CA{}
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = datadir.Prepare(d.path)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(d.path, e.Name())
		if !strings.HasSuffix(name, ".pem") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := datadir.CheckFile(name); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		ca, err := ParseCA(d.trustDomain, text, text)
		if err != nil {
			return nil, fmt.Errorf("%w: %s %w; put back a copy, or move it away when it is not needed", store.ErrRefused, name, err)
		}
		all[ca.KeyID] = ca
	}
	return all, nil
}

// save writes an authority, for its owner only, before anything is signed with it.
func (d keyDir) save(ca *CA) error {
	if err := datadir.Prepare(d.path); err != nil {
		return err
	}
	text, err := ca.pem()
	if err != nil {
		return err
	}
	return datadir.WriteFile(d.file(ca.KeyID), text)
}

// remove takes away an authority that signs no more.
func (d keyDir) remove(keyID string) error {
	if err := os.Remove(d.file(keyID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LoadCA reads an authority that the configuration names, from two files or from one.
// The key's has to be for its owner only.
func LoadCA(trustDomain, certFile, keyFile string) (*CA, error) {
	if err := datadir.CheckFile(keyFile); err != nil {
		return nil, err
	}
	certs, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	keys, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	ca, err := ParseCA(trustDomain, certs, keys)
	if err != nil {
		return nil, fmt.Errorf("the authority in %s and %s %w", certFile, keyFile, err)
	}
	return ca, nil
}
