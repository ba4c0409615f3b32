package fault_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
)

func TestClass(t *testing.T) {
	op := func(err error) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)})
	}
	for _, c := range []struct {
		err   error
		class controlplanev1.ErrorClass
		local bool
	}{
		{nil, controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED, false},
		{context.Canceled, controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, false},
		{context.DeadlineExceeded, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, false},
		{os.ErrDeadlineExceeded, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, false},
		{op(syscall.ETIMEDOUT), controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, false},
		{op(syscall.ECONNREFUSED), controlplanev1.ErrorClass_ERROR_CLASS_REFUSED, false},
		{op(syscall.EHOSTUNREACH), controlplanev1.ErrorClass_ERROR_CLASS_REFUSED, false},
		{op(syscall.ECONNRESET), controlplanev1.ErrorClass_ERROR_CLASS_RESET, false},
		{io.ErrUnexpectedEOF, controlplanev1.ErrorClass_ERROR_CLASS_RESET, false},
		{&net.DNSError{IsNotFound: true}, controlplanev1.ErrorClass_ERROR_CLASS_DNS, false},
		{&net.DNSError{IsTimeout: true}, controlplanev1.ErrorClass_ERROR_CLASS_DNS, true},
		{op(syscall.EMFILE), controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, true},
		{op(syscall.ENETUNREACH), controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, true},
		{tls.RecordHeaderError{Msg: "x"}, controlplanev1.ErrorClass_ERROR_CLASS_TLS, false},
		{errors.New("something"), controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, false},
	} {
		if got, local := fault.Class(c.err), c.err != nil && fault.Local(c.err); got != c.class || local != c.local {
			t.Errorf("%v: %v, local %v, want %v, %v", c.err, got, local, c.class, c.local)
		}
	}
	if got := fault.Text(op(syscall.ECONNREFUSED)); got != "dial: connect: connection refused" {
		t.Errorf("text %q", got)
	}
}
