package restrict

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights of Landlock, in groups. Those that a kernel does not know yet are left out.
const (
	readFile = unix.LANDLOCK_ACCESS_FS_READ_FILE
	read     = readFile | unix.LANDLOCK_ACCESS_FS_READ_DIR
	run      = read | unix.LANDLOCK_ACCESS_FS_EXECUTE
	change   = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE

	handled = run | change | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	own     = read | change
	device  = readFile | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// ofFile are the rights that a rule on a file can give; others are of folders.
	ofFile = readFile | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// What every program finds: the system's programs and libraries, the files of /etc
// that say who and where others are and whom to trust, and devices that hold nothing.
// The rest of /etc has secrets, those of the host among them.
var (
	systemRun  = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
	systemRead = []string{
		"/proc", "/sys", "/etc/resolv.conf", "/run/systemd/resolve", "/run/resolvconf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols",
		"/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/passwd", "/etc/group", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs",
		"/etc/pki/ca-trust", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
		"/etc/alternatives", "/etc/os-release", "/dev/urandom", "/dev/random",
	}
	systemDevices = []string{"/dev/null", "/dev/zero", "/dev/full"}
)

// rights are those that version abi of Landlock knows.
func rights(abi int) uint64 {
	known := uint64(handled)
	if abi < 5 {
		known &^= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi < 3 {
		known &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi < 2 {
		known &^= unix.LANDLOCK_ACCESS_FS_REFER
	}
	return known
}

// LandlockVersion is that of the kernel's Landlock, 0 without.
func LandlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// landlock lays the rules for files on this thread. A kernel without does nothing.
func (r Rules) landlock() error {
	abi := LandlockVersion()
	if abi < 1 {
		return nil
	}
	known := rights(abi)
	attr := unix.LandlockRulesetAttr{Handled_access_fs: known}
	if abi >= 6 { // it signals what it has started and nobody else
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), sizeOf(abi), 0)
	if errno != 0 {
		return fmt.Errorf("make a Landlock ruleset: %w", errno)
	}
	defer func() { _ = unix.Close(int(fd)) }()
	for _, g := range []struct {
		paths  []string
		access uint64
		must   bool
	}{
		{r.Write, own, true}, {r.Run, run, true}, {[]string{r.Path}, run, true},
		{systemRun, run, false}, {systemRead, read, false}, {systemDevices, device, false},
	} {
		for _, path := range g.paths {
			if err := allow(int(fd), path, g.access&known); err != nil && g.must {
				return fmt.Errorf("allow %s by Landlock: %w", path, err)
			}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict by Landlock: %w", errno)
	}
	return nil
}

// sizeOf is how much of the attributes version abi knows.
func sizeOf(abi int) uintptr {
	var attr unix.LandlockRulesetAttr
	switch {
	case abi < 4:
		return unsafe.Offsetof(attr.Handled_access_net)
	case abi < 6:
		return unsafe.Offsetof(attr.Scoped)
	}
	return unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
}

// allow gives rights on a file, or on a folder and all that is in it.
func allow(ruleset int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= ofFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	switch {
	case errno == 0, errors.Is(errno, unix.EBADFD): // sealed memory is on no file system, and needs no rule
		return nil
	}
	return os.NewSyscallError("landlock_add_rule", errno)
}
