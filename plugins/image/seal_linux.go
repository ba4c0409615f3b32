package image

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// least is the lowest descriptor that a sealed copy has: those below are moved about
// while a process is started.
const least = 512

// Seal copies a file, from its start, into memory that cannot be changed any more,
// and returns it open for reading, with the digest of its bytes. It is run as
// /proc/self/fd/<its number>. The error is ErrNoSeals where there is no such memory.
func Seal(f io.ReaderAt, name string) (sealed *os.File, digest string, err error) {
	fd, err := create(name)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoSeals, err)
	}
	writable := os.NewFile(uintptr(fd), name)
	defer func() { _ = writable.Close() }()
	n, err := io.Copy(writable, io.NewSectionReader(f, 0, MaxSize+1))
	switch {
	case err != nil:
		return nil, "", err
	case n > MaxSize:
		return nil, "", errTooLarge
	}
	if err := seal(fd); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoSeals, err)
	}
	// A program that somebody has open for writing is not run, and as long as this
	// descriptor is, that is the case.
	readOnly, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%w: open it again: %w", ErrNoSeals, err)
	}
	defer func() { _ = unix.Close(readOnly) }()
	high, err := unix.FcntlInt(uintptr(readOnly), unix.F_DUPFD_CLOEXEC, least)
	if err != nil {
		return nil, "", fmt.Errorf("%w: a descriptor from %d on: %w", ErrNoSeals, least, err)
	}
	sealed = os.NewFile(uintptr(high), name)
	_ = writable.Close()
	// Now that nobody can write to it: what was copied could have been changed by
	// another process of this user before the seals were on.
	if digest, err = Sum(sealed); err != nil {
		_ = sealed.Close()
		return nil, "", err
	}
	return sealed, digest, nil
}

// create makes the memory. Kernels before 6.3 do not know that it is to be run, and
// let everything be.
func create(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// seal takes everybody, this process too, the means to change it. Kernels before 6.3
// have no seal on the permission to run it.
func seal(fd int) error {
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	return err
}
