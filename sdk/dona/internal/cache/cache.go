// Package cache keeps the last good snapshot of each service on disk, so that a
// client that starts while no host answers can still decide. What it reads it does
// not trust: a file that is damaged, of another service, not the user's own or not
// a plain file is ignored with a reason.
//
// A file is
//
//	"dona-snapshot-file 1\n" || SHA-256 of all that follows || i64be saved, unix ms ||
//	u32be length || protobuf ConfigSnapshot
//
// It is written to a temporary name and renamed, mode 0600. Several processes may
// share a folder: the newest version wins, for they look and write under a lock of
// the folder.
package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// MaxFile is the largest file that is read, in bytes: twice the largest snapshot.
const MaxFile = 8 << 20

const (
	magic  = "dona-snapshot-file 1\n"
	header = len(magic) + sha256.Size + 8 + 4

	// How long another one is waited for, a client that is being closed included, and
	// how often it is looked for.
	lockPatience = 250 * time.Millisecond
	lockEvery    = 2 * time.Millisecond
)

// ErrNone says that nothing was kept.
var ErrNone = errors.New("no snapshot is kept")

// Dir is a folder of kept snapshots. Safe for concurrent use.
type Dir struct{ Path string }

// Kept is a snapshot that was read back.
type Kept struct {
	Snapshot *mirror.Snapshot
	Saved    time.Time
	File     string
}

// Load reads the snapshot of a service. The error says why there is none to use;
// ErrNone when none was kept.
func (d *Dir) Load(service string) (*Kept, error) {
	file := filepath.Join(d.Path, service)
	b, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot file %s: %w", file, err)
	}
	kept, err := Parse(b, service)
	if err != nil {
		return nil, fmt.Errorf("snapshot file %s: %w", file, err)
	}
	kept.File = file
	return kept, nil
}

func read(file string) ([]byte, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is %s: only a plain file is read", info.Mode().Type())
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// What was opened must be what was looked at: the name may have been replaced.
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(info, opened) {
		// A rename by another process in between is harmless when it is a file too.
		if again, err := os.Lstat(file); err != nil || !os.SameFile(again, opened) || !again.Mode().IsRegular() {
			return nil, errors.New("changed while it was opened")
		}
	}
	if err := owned(opened); err != nil {
		return nil, err
	}
	if opened.Size() > MaxFile {
		return nil, fmt.Errorf("has %d bytes: allowed are %d", opened.Size(), MaxFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("has more than %d bytes", MaxFile)
	}
	return b, nil
}

// Parse checks and decodes the content of a file for a service.
func Parse(b []byte, service string) (*Kept, error) {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, errors.New("is not a snapshot file of a format that this client reads")
	}
	if len(b) < header {
		return nil, fmt.Errorf("is cut off after %d bytes", len(b))
	}
	sum, body := b[len(magic):len(magic)+sha256.Size], b[len(magic)+sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, errors.New("is damaged: its checksum does not fit")
	}
	saved, length, message := int64(binary.BigEndian.Uint64(body)), binary.BigEndian.Uint32(body[8:]), body[12:]
	if uint64(length) != uint64(len(message)) {
		return nil, fmt.Errorf("announces %d bytes and has %d", length, len(message))
	}
	s := &donav1.ConfigSnapshot{}
	if err := proto.Unmarshal(message, s); err != nil {
		return nil, fmt.Errorf("holds no snapshot: %w", err)
	}
	if s.GetService() != service {
		return nil, fmt.Errorf("is of service %.80q", s.GetService())
	}
	if form := s.GetForm(); form != donav1.ConfigSnapshot_FORM_FULL && form != donav1.ConfigSnapshot_FORM_UNSPECIFIED {
		return nil, fmt.Errorf("has form %s: only a full snapshot is used", form)
	}
	snapshot, err := mirror.Full(s)
	if err != nil {
		return nil, fmt.Errorf("holds a snapshot that does not fit its checksum: %w", err)
	}
	return &Kept{Snapshot: snapshot, Saved: time.UnixMilli(saved)}, nil
}

// Encode returns the content of a file.
func Encode(s *donav1.ConfigSnapshot, saved time.Time) ([]byte, error) {
	message, err := proto.Marshal(s)
	if err != nil {
		return nil, err
	}
	b := make([]byte, header, header+len(message))
	copy(b, magic)
	body := b[len(magic)+sha256.Size:]
	binary.BigEndian.PutUint64(body, uint64(saved.UnixMilli()))
	binary.BigEndian.PutUint32(body[8:], uint32(len(message)))
	b = append(b, message...)
	sum := sha256.Sum256(b[len(magic)+sha256.Size:])
	copy(b[len(magic):], sum[:])
	return b, nil
}

// Save keeps a full snapshot with its checksum, unless a newer version is kept
// already.
func (d *Dir) Save(s *donav1.ConfigSnapshot, now time.Time) error {
	b, err := Encode(s, now)
	if err != nil {
		return fmt.Errorf("keep snapshot: %w", err)
	}
	if len(b) > MaxFile {
		return fmt.Errorf("keep snapshot: it has %d bytes, allowed are %d", len(b), MaxFile)
	}
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return fmt.Errorf("keep snapshot: %w", err)
	}
	defer lock(d.Path)()
	if kept, err := d.Load(s.GetService()); err == nil && kept.Snapshot.Version() > s.GetVersion() {
		return nil
	}
	// CreateTemp makes the file 0600; a service name has no dot, so no clash.
	f, err := os.CreateTemp(d.Path, "."+s.GetService()+".*")
	if err != nil {
		return fmt.Errorf("keep snapshot: %w", err)
	}
	_, err = f.Write(b)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.Path, s.GetService()))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("keep snapshot: %w", err)
	}
	return nil
}
