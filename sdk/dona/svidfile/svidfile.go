// Package svidfile keeps an identity that lies in files: an X.509-SVID, its key and
// the bundle of its trust domain, in one directory. Hosts, the command line and
// applications read theirs with it, whoever wrote it: dona-host init, dona svid, or
// any other issuer of SVIDs.
//
//	cert.pem    the SVID, then what is between it and the authority
//	key.pem     its private key, mode 0600
//	bundle.pem  the authorities of the trust domain
//
// The files are read again about once a second, and taken together: what does not
// hold as a whole changes nothing, and what was there before goes on. So they may
// be replaced one after another, best by a rename each.
package svidfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Names of the files in an identity's directory.
const (
	CertFile   = "cert.pem"
	KeyFile    = "key.pem"
	BundleFile = "bundle.pem"
)

const (
	maxFile        = 1 << 20 // bytes of one file
	maxAuthorities = 100     // of one bundle
	defaultEvery   = time.Second
)

// Options of a [Source].
type Options struct {
	Every    time.Duration // between two looks at the files; 0 = 1 s
	Failed   func(error)   // told once of each change of the files that does not hold; nil = nobody is told
	Replaced func()        // told of each change that was taken; nil = nobody is told
}

// Source is an identity in files, as go-spiffe's tlsconfig takes it. It is safe for
// concurrent use. Open it, and Close it when no connection needs it any more.
type Source struct {
	at      places
	options Options
	current atomic.Pointer[identity]
	seen    [sha256.Size]byte // of the files at the last look; the watcher's alone

	cancel context.CancelFunc
	work   sync.WaitGroup
}

type identity struct {
	svid   *x509svid.SVID
	bundle *x509bundle.Bundle
}

var (
	_ x509svid.Source   = (*Source)(nil)
	_ x509bundle.Source = (*Source)(nil)
)

// Open reads the identity in dir. An error says which file does not hold and why;
// it never repeats what is in one.
func Open(dir string, o Options) (*Source, error) {
	return open(places{dir, [3]string{CertFile, KeyFile, BundleFile}}, o)
}

// OpenFiles is Open for files of other names, in any directories.
func OpenFiles(cert, key, bundle string, o Options) (*Source, error) {
	return open(places{"", [3]string{cert, key, bundle}}, o)
}

func open(at places, o Options) (*Source, error) {
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	s := &Source{at: at, options: o}
	f, seen, err := at.read()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	now, err := f.identity(time.Now())
	if err != nil {
		return nil, fmt.Errorf("identity: %w", at.in(err))
	}
	s.current.Store(now)
	s.seen = seen
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.work.Go(func() { s.watch(ctx) })
	return s, nil
}

// Close ends the looking. The identity stays usable as it is.
func (s *Source) Close() error {
	s.cancel()
	s.work.Wait()
	return nil
}

// ID is the SPIFFE ID of the identity now.
func (s *Source) ID() spiffeid.ID { return s.current.Load().svid.ID }

// GetX509SVID returns the SVID that was read last.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) { return s.current.Load().svid, nil }

// GetX509BundleForTrustDomain returns the authorities that were read last.
func (s *Source) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return s.current.Load().bundle.GetX509BundleForTrustDomain(domain)
}

func (s *Source) watch(ctx context.Context) {
	tick := time.NewTicker(s.options.Every)
	defer tick.Stop()
	var said string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.look()
		switch {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			if s.options.Failed != nil {
				s.options.Failed(err)
			}
		}
	}
}

// look takes what is in the files now, if it is new and holds.
func (s *Source) look() error {
	f, seen, err := s.at.read()
	if err != nil {
		return err
	}
	if seen == s.seen {
		return nil
	}
	now, err := f.identity(time.Now())
	if err != nil {
		return s.at.in(err)
	}
	if was := s.ID(); now.svid.ID != was {
		return s.at.in(fmt.Errorf("%s holds %s, it was %s: an identity that is in use cannot become another one", s.at.names[0], now.svid.ID, was))
	}
	s.current.Store(now)
	s.seen = seen
	if s.options.Replaced != nil {
		s.options.Replaced()
	}
	return nil
}

// places is where the three files are: the certificate, the key and the bundle.
type places struct {
	dir   string // empty = each name is a whole path
	names [3]string
}

// in says in which directory it is that something does not hold.
func (p places) in(err error) error {
	if p.dir == "" {
		return err
	}
	return fmt.Errorf("%s: %w", p.dir, err)
}

// files is what the three files hold.
type files struct {
	names             [3]string
	cert, key, bundle []byte
}

func (p places) read() (f files, seen [sha256.Size]byte, err error) {
	f.names = p.names
	for _, name := range p.names { // who may write to one's directory may replace it
		if err := private(filepath.Dir(filepath.Join(p.dir, name)), 0o022, "write to", "chmod go-w"); err != nil {
			return f, seen, err
		}
	}
	if err := private(filepath.Join(p.dir, p.names[1]), 0o077, "use", "chmod 600"); err != nil {
		return f, seen, err
	}
	sum := sha256.New()
	for i, into := range []*[]byte{&f.cert, &f.key, &f.bundle} {
		path := filepath.Join(p.dir, p.names[i])
		info, err := os.Stat(path)
		if err != nil {
			return f, seen, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxFile {
			return f, seen, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxFile)
		}
		if *into, err = os.ReadFile(path); err != nil {
			return f, seen, err
		}
		part := sha256.Sum256(*into)
		sum.Write(part[:])
	}
	return f, [sha256.Size]byte(sum.Sum(nil)), nil
}

// private refuses what others may do something with. Windows has no such modes.
func private(path string, mask os.FileMode, do, cure string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&mask != 0 {
		return fmt.Errorf("%s has mode %04o, others than its owner must not be able to %s it: %s %s", path, mode, do, cure, path)
	}
	return nil
}

// identity parses the files and holds them against each other.
func (f files) identity(now time.Time) (*identity, error) {
	for _, file := range []struct {
		name string
		data []byte
		is   func(blockType string) bool
		most int
		what string
	}{
		{f.names[0], f.cert, certificate, 10, "certificates"},
		{f.names[1], f.key, key, 1, "private key"},
		{f.names[2], f.bundle, certificate, maxAuthorities, "certificates"},
	} {
		if err := blocks(file.data, file.is, file.most, file.what); err != nil {
			return nil, fmt.Errorf("%s %w", file.name, err)
		}
	}
	svid, err := x509svid.Parse(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s do not make an SVID: %w", f.names[0], f.names[1], plain(err))
	}
	if end := svid.Certificates[0].NotAfter; now.After(end) {
		return nil, fmt.Errorf("%s has expired at %s: get another one, for a token with dona svid issue, or from whoever issued it", f.names[0], end.UTC().Format(time.RFC3339))
	}
	bundle, err := x509bundle.Parse(svid.ID.TrustDomain(), f.bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.names[2], plain(err))
	}
	if _, _, err := x509svid.Verify(svid.Certificates, bundle, x509svid.WithTime(now)); err != nil {
		return nil, fmt.Errorf("%s does not hold for %s: %w", f.names[0], f.names[2], plain(err))
	}
	return &identity{svid, bundle}, nil
}

func certificate(blockType string) bool { return blockType == "CERTIFICATE" }
func key(blockType string) bool         { return strings.HasSuffix(blockType, "PRIVATE KEY") }

// blocks demands PEM of one kind, at most so many blocks of it, and nothing else.
func blocks(data []byte, is func(string) bool, most int, what string) error {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return errors.New("is empty")
	case bytes.Contains(data, []byte("-----\r")):
		return errors.New("has Windows line ends: write it with line feeds alone")
	}
	n := 0
	for rest := data; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n == 0:
			return errors.New("is not PEM; what is DER is converted by openssl x509 or openssl pkey -inform der")
		case block == nil && len(bytes.TrimSpace(rest)) > 0:
			return errors.New("has something behind its last PEM block")
		case block == nil:
			return nil
		case block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "":
			return errors.New("is encrypted: nobody is there to type its password; decrypt it with openssl pkey")
		case !is(block.Type):
			return fmt.Errorf("has a block %.40q: allowed are %s alone", block.Type, what)
		}
		if n++; n > most {
			return fmt.Errorf("has more than %d %s", most, what)
		}
	}
}

// plain is go-spiffe's error without the names of its packages.
func plain(err error) error {
	text := err.Error()
	for _, prefix := range []string{"x509svid: ", "x509bundle: ", "pemutil: "} {
		text = strings.ReplaceAll(text, prefix, "")
	}
	return errors.New(text)
}
