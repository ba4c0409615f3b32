package cache_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/internal/cache"
)

var saved = time.UnixMilli(1_700_000_000_123)

func snapshot(version uint64) *donav1.ConfigSnapshot {
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: version, Endpoints: []*donav1.Endpoint{{Id: "a", Address: "h:1", Variant: "v1", LbWeight: 100}}}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	return s
}

func encode(t testing.TB, s *donav1.ConfigSnapshot) []byte {
	t.Helper()
	b, err := cache.Encode(s, saved)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	d := &cache.Dir{Path: filepath.Join(t.TempDir(), "a", "b")}
	if _, err := d.Load("checkout"); !errors.Is(err, cache.ErrNone) {
		t.Errorf("nothing kept: %v", err)
	}
	if err := d.Save(snapshot(7), saved); err != nil {
		t.Fatal(err)
	}
	kept, err := d.Load("checkout")
	if err != nil {
		t.Fatal(err)
	}
	want := snapshot(7)
	want.Form = donav1.ConfigSnapshot_FORM_FULL
	if !proto.Equal(kept.Snapshot.Config(), want) || !kept.Saved.Equal(saved) || kept.File != filepath.Join(d.Path, "checkout") {
		t.Errorf("got %+v", kept)
	}
	names, err := os.ReadDir(d.Path)
	if err != nil || len(names) != 1 {
		t.Errorf("the folder holds %v, %v", names, err)
	}
	if runtime.GOOS != "windows" {
		info, err := os.Stat(kept.File)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
}

// Processes that share a folder: the newest version stays, whoever is last, and no
// reader sees half a file.
func TestSharedFolder(t *testing.T) {
	d := &cache.Dir{Path: t.TempDir()}
	for round := range uint64(30) {
		first := 100 * round
		if err := d.Save(snapshot(first+50), saved); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for version := first + 45; version < first+54; version++ {
			wg.Go(func() {
				if err := d.Save(snapshot(version), saved); err != nil {
					t.Error(err)
				}
				if _, err := d.Load("checkout"); err != nil {
					t.Errorf("reading: %v", err)
				}
			})
		}
		wg.Wait()
		if kept, err := d.Load("checkout"); err != nil || kept.Snapshot.Version() != first+53 && runtime.GOOS != "windows" {
			t.Fatalf("kept %v, %v: want version %d", kept, err, first+53)
		}
	}
}

func TestWhatIsIgnored(t *testing.T) {
	reseal := func(b []byte) []byte {
		at := len("dona-snapshot-file 1\n")
		sum := sha256.Sum256(b[at+32:])
		copy(b[at:], sum[:])
		return b
	}
	good := encode(t, snapshot(7))
	for _, c := range []struct {
		name, reason string
		bytes        []byte
	}{
		{"empty", "not a snapshot file", nil},
		{"other format", "not a snapshot file", bytes.Replace(good, []byte("file 1"), []byte("file 2"), 1)},
		{"cut in the header", "cut off", good[:40]},
		{"cut in the message", "damaged", good[:len(good)-1]},
		{"longer", "damaged", append(bytes.Clone(good), 0)},
		{"length", "announces", func() []byte {
			b := bytes.Clone(good)
			binary.BigEndian.PutUint32(b[len("dona-snapshot-file 1\n")+40:], 5)
			return reseal(b)
		}()},
		{"no snapshot", "holds no snapshot", func() []byte {
			b := bytes.Clone(good)
			b[len(b)-1] = 0xff
			b[len(b)-2] = 0xff
			b[65] = 0xff
			return reseal(b)
		}()},
		{"other service", `of service "billing"`, encode(t, &donav1.ConfigSnapshot{Service: "billing"})},
		{"a delta", "form FORM_DELTA", encode(t, &donav1.ConfigSnapshot{Service: "checkout", Form: donav1.ConfigSnapshot_FORM_DELTA})},
		{"wrong checksum inside", "does not fit its checksum", func() []byte { s := snapshot(7); s.Endpoints[0].Address = "evil:1"; return encode(t, s) }()},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &cache.Dir{Path: t.TempDir()}
			file := filepath.Join(d.Path, "checkout")
			if err := os.WriteFile(file, c.bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := d.Load("checkout")
			if err == nil || errors.Is(err, cache.ErrNone) || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, want %q and the file", err, c.reason)
			}
			// A good one replaces it.
			if err := d.Save(snapshot(8), saved); err != nil {
				t.Fatal(err)
			}
			if kept, err := d.Load("checkout"); err != nil || kept.Snapshot.Version() != 8 {
				t.Errorf("after saving: %v, %v", kept, err)
			}
		})
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	good := encode(t, snapshot(7))
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			if _, err := cache.Parse(b, "checkout"); err == nil {
				t.Fatalf("bit %d of byte %d is not missed", bit, i)
			}
		}
	}
}

func TestNotAPlainFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links and modes need Unix")
	}
	place := func(t *testing.T, d *cache.Dir) string { return filepath.Join(d.Path, "checkout") }
	elsewhere := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(elsewhere, encode(t, snapshot(7)), 0o600); err != nil {
		t.Fatal(err)
	}
	for reason, make := range map[string]func(file string) error{
		"only a plain file": func(f string) error { return os.Symlink(elsewhere, f) },
		"is d":              func(f string) error { return os.Mkdir(f, 0o700) },
		"others may write": func(f string) error {
			return errors.Join(os.WriteFile(f, encode(t, snapshot(7)), 0o600), os.Chmod(f, 0o666))
		},
		"allowed are": func(f string) error {
			return errors.Join(os.WriteFile(f, nil, 0o600), os.Truncate(f, 100<<20))
		},
	} {
		t.Run(reason, func(t *testing.T) {
			d := &cache.Dir{Path: t.TempDir()}
			if err := make(place(t, d)); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Load("checkout"); err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("got %v, want %q", err, reason)
			}
		})
	}
}

func TestSaveIntoNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&cache.Dir{Path: filepath.Join(file, "sub")}).Save(snapshot(1), saved); err == nil {
		t.Error("saving below a file works")
	}
}

func FuzzParse(f *testing.F) {
	good := encode(f, snapshot(7))
	f.Add(good)
	f.Add(good[:50])
	f.Add([]byte("dona-snapshot-file 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		kept, err := cache.Parse(b, "checkout")
		if err != nil {
			return
		}
		// What is accepted is right by its own account.
		if kept.Snapshot.Config().GetService() != "checkout" || digest.OfSnapshot(kept.Snapshot.Config()) != kept.Snapshot.Checksum() {
			t.Fatalf("accepted %v", kept.Snapshot.Config())
		}
	})
}
