package svidfile_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/sdk/dona/svidfile"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBadFiles: each kind of file that does not hold is refused with its name, and
// nothing of its content is told.
func TestBadFiles(t *testing.T) {
	ca := svidtest.NewCA(t, "example.org")
	edit := func(name string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, name))
			fatal(t, err)
			fatal(t, os.WriteFile(filepath.Join(dir, name), change(data), 0o600))
		}
	}
	set := func(name, data string) func(*testing.T, string) {
		return edit(name, func([]byte) []byte { return []byte(data) })
	}
	mode := func(name string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if runtime.GOOS == "windows" {
				t.Skip("no such modes")
			}
			fatal(t, os.Chmod(filepath.Join(dir, name), mode))
		}
	}
	der := func(data []byte) []byte { b, _ := pem.Decode(data); return b.Bytes }
	other := svidtest.NewCA(t, "example.org").Source("/svc/web")
	for _, tc := range []struct {
		name   string
		change func(*testing.T, string)
		want   string
	}{
		{"no certificate", func(t *testing.T, dir string) { fatal(t, os.Remove(filepath.Join(dir, "cert.pem"))) }, "cert.pem"},
		{"an empty certificate", set("cert.pem", ""), "cert.pem is empty"},
		{"an empty bundle", set("bundle.pem", "\n"), "bundle.pem is empty"},
		{"words", set("cert.pem", "hello"), "is not PEM"},
		{"DER", edit("cert.pem", der), "is not PEM"},
		{"a DER key", edit("key.pem", der), "is not PEM"},
		{"CRLF", edit("bundle.pem", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")) }), "Windows line ends"},
		{"two keys", edit("key.pem", func(b []byte) []byte { return append(b, b...) }), "more than 1 private key"},
		{"an encrypted key", set("key.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"), "is encrypted"},
		{"a certificate for a key", func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
			fatal(t, err)
			fatal(t, os.WriteFile(filepath.Join(dir, "key.pem"), data, 0o600))
		}, `"CERTIFICATE"`},
		{"a key among certificates", func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "key.pem"))
			fatal(t, err)
			edit("bundle.pem", func(b []byte) []byte { return append(b, data...) })(t, dir)
		}, `"PRIVATE KEY"`},
		{"a tail", edit("cert.pem", func(b []byte) []byte { return append(b, "tail"...) }), "behind its last"},
		{"1,000 authorities", edit("bundle.pem", func(b []byte) []byte { return bytes.Repeat(b, 1000) }), "more than 100"},
		{"another key", func(t *testing.T, dir string) {
			fresh := t.TempDir()
			other.Write(t, fresh)
			data, err := os.ReadFile(filepath.Join(fresh, "key.pem"))
			fatal(t, err)
			fatal(t, os.WriteFile(filepath.Join(dir, "key.pem"), data, 0o600))
		}, "do not make an SVID"},
		{"another bundle", func(t *testing.T, dir string) {
			svidtest.Source{SVID: ca.Issue("/svc/web"), Bundle: other.Bundle}.Write(t, dir)
		}, "does not hold for bundle.pem"},
		{"expired", func(t *testing.T, dir string) { ca.Source("/svc/web", svidtest.Lasting(-time.Second)).Write(t, dir) }, "get another one"},
		{"a CA", func(t *testing.T, dir string) {
			ca.Source("/svc/web", func(c *x509.Certificate) { c.IsCA = true }).Write(t, dir)
		}, "CA flag"},
		{"a key that others may read", mode("key.pem", 0o640), "chmod 600"},
		{"a directory that others may write to", mode(".", 0o770), "chmod go-w"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "id")
			ca.Source("/svc/web").Write(t, dir)
			secret, err := os.ReadFile(filepath.Join(dir, "key.pem"))
			fatal(t, err)
			tc.change(t, dir)
			s, err := svidfile.Open(dir, svidfile.Options{})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was taken")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v: it does not say %q", err, tc.want)
			}
			if line := strings.Split(string(secret), "\n")[1]; strings.Contains(err.Error(), line[:16]) {
				t.Errorf("the error holds the key: %v", err)
			}
		})
	}
}

// TestReload: all three are taken together, and what does not hold leaves what was
// there.
func TestReload(t *testing.T) {
	ca := svidtest.NewCA(t, "example.org")
	dir := filepath.Join(t.TempDir(), "id")
	first := ca.Source("/svc/web")
	first.Write(t, dir)
	failed, replaced := make(chan error, 100), make(chan struct{}, 100)
	s, err := svidfile.Open(dir, svidfile.Options{
		Every: time.Millisecond, Failed: func(err error) { failed <- err }, Replaced: func() { replaced <- struct{}{} },
	})
	fatal(t, err)
	defer func() { fatal(t, s.Close()) }()
	serial := func() string {
		svid, err := s.GetX509SVID()
		fatal(t, err)
		return svid.Certificates[0].SerialNumber.String()
	}
	wait := func(what string) {
		t.Helper()
		select {
		case <-replaced:
		case <-time.After(patience):
			t.Fatal("not taken: " + what)
		}
	}
	refuse := func(what, want string) {
		t.Helper()
		before := serial()
		for told := false; !told; { // it may see the files between two renames, too
			select {
			case err := <-failed:
				told = strings.Contains(err.Error(), want)
			case <-time.After(patience):
				t.Fatal("nobody was told of " + what)
			}
		}
		if serial() != before {
			t.Error(what + " replaced what was there")
		}
	}
	good, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
	fatal(t, err)
	fatal(t, os.WriteFile(filepath.Join(dir, "cert.pem"), good[:len(good)/2], 0o600))
	refuse("half a file", "PEM")
	second := ca.Source("/svc/web")
	second.Write(t, dir)
	wait("a second SVID")
	if got := serial(); got != second.Certificates[0].SerialNumber.String() {
		t.Errorf("it has %s", got)
	}
	ca.Source("/svc/other").Write(t, dir)
	refuse("another identity", "cannot become")
	fatal(t, os.Remove(filepath.Join(dir, "key.pem")))
	refuse("a key that is gone", "no such file")
	next := svidtest.NewCA(t, "example.org").Source("/svc/web")
	next.Write(t, dir)
	wait("another authority")
	if b, err := s.GetX509BundleForTrustDomain(next.ID.TrustDomain()); err != nil || !b.Equal(next.Bundle) {
		t.Errorf("the bundle is %v, %v", b, err)
	}
}
