// Package image makes copies of programs that nobody can change any more, and says
// which bytes they are made of. Package external has plugins run from them, so that
// what was verified is what runs, whatever happens to the files meanwhile.
//
// A program of one file goes into sealed memory ([Seal]); where the system has none,
// it is copied into a private folder ([CopyFile]). A script needs what lies beside
// it, so that its whole folder is what is verified ([SumTree]) and copied
// ([CopyTree]). What is promised: the digest that comes with a copy is that of the
// copy's bytes, not of what was there before or after.
//
// A process that is being started while a copy is made has it open for writing until
// it runs its program, and for as long the system may answer ETXTBSY to who runs the
// copy: a moment later it does not.
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// Limits of what is copied.
const (
	MaxSize  = 512 << 20 // bytes of a file, or of a folder
	MaxFiles = 16_384    // of a folder
)

// ErrNoSeals means that this system has no memory that can be sealed and run.
var ErrNoSeals = errors.New("this system has no sealed memory to run programs from")

// errTooLarge is the end of whatever is over MaxSize.
var errTooLarge = fmt.Errorf("has more than %d bytes, which is the most", MaxSize)

// Sum returns the digest of a file, from its start.
func Sum(f io.ReaderAt) (string, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, io.NewSectionReader(f, 0, MaxSize+1))
	switch {
	case err != nil:
		return "", err
	case n > MaxSize:
		return "", errTooLarge
	}
	return text(sum.Sum(nil)), nil
}

func text(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// CopyFile copies a file, from its start, to a new file that its owner can read and
// run, and returns the digest of what it wrote.
func CopyFile(f io.ReaderAt, to string) (string, error) {
	sum := sha256.New()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o500)
	if err != nil {
		return "", err
	}
	n, err := io.Copy(io.MultiWriter(out, sum), io.NewSectionReader(f, 0, MaxSize+1))
	if closed := out.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil:
		return "", err
	case n > MaxSize:
		return "", errTooLarge
	}
	return text(sum.Sum(nil)), nil
}
