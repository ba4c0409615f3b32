package forward

import (
	"io"
	"os"
	"syscall"
)

// direct reads from and writes to a TCP socket. One goroutine reads and one writes at a
// time.
type direct struct {
	raw           syscall.RawConn
	tryRead       func(fd uintptr) bool // bound once
	tryWrite      func(fd uintptr) bool
	into, from    []byte // what a call reads into, and has still to write
	lend          bool   // it reads into a buffer that it takes when there is something
	got           int
	inErr, outErr error
}

func newDirect(raw syscall.RawConn) *direct {
	d := &direct{raw: raw}
	d.tryRead, d.tryWrite = d.readOnce, d.writeOn
	return d
}

// read reads into p.
func (d *direct) read(p []byte) (int, error) {
	d.into = p
	n, err := d.wait()
	d.into = nil
	return n, err
}

// borrow reads into a buffer that is held only while there is something in it: who gets
// one gives it to giveBack.
func (d *direct) borrow() ([]byte, error) {
	d.lend = true
	n, err := d.wait()
	p := d.into
	d.lend, d.into = false, nil
	if p == nil {
		return nil, err
	}
	return p[:n], err
}

func (d *direct) wait() (int, error) {
	d.got, d.inErr = 0, nil
	if err := d.raw.Read(d.tryRead); err != nil {
		return 0, err
	}
	return d.got, d.inErr
}

// readOnce is called again, after it returned false, when there may be something.
func (d *direct) readOnce(fd uintptr) bool {
	if d.lend {
		d.into = copyBuffers.Get().(*[copySize]byte)[:]
	}
	for {
		n, e := readNow(fd, d.into)
		switch {
		case e == syscall.EINTR:
			continue
		case e == syscall.EAGAIN:
			if d.lend {
				giveBack(d.into)
				d.into = nil
			}
			return false
		case e != 0:
			d.inErr = os.NewSyscallError("read", e)
		case n == 0:
			d.inErr = io.EOF
		default:
			d.got = n
		}
		return true
	}
}

// giveBack is for what was borrowed, and does nothing with anything else.
func giveBack(p []byte) {
	if cap(p) == copySize {
		copyBuffers.Put((*[copySize]byte)(p[:copySize]))
	}
}

// write writes all of p.
func (d *direct) write(p []byte) (int, error) {
	d.from, d.outErr = p, nil
	err := d.raw.Write(d.tryWrite)
	n := len(p) - len(d.from)
	if d.from = nil; err == nil {
		err = d.outErr
	}
	return n, err
}

// writeOn is called again, after it returned false, when there may be room.
func (d *direct) writeOn(fd uintptr) bool {
	for len(d.from) > 0 {
		n, e := writeNow(fd, d.from)
		switch {
		case e == syscall.EINTR:
		case e == syscall.EAGAIN:
			return false
		case e != 0:
			d.outErr = os.NewSyscallError("write", e)
			return true
		default:
			d.from = d.from[n:]
		}
	}
	return true
}
