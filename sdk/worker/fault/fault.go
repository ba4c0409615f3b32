// Package fault says what an error of a connection is: its class as outcomes and
// observations name it, and whether it is this machine's own. Whoever dials, shakes
// hands or reads on a client's or a check's behalf uses it, so that gateway and checker
// call one thing by one name. It is pure.
package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// Class is the class of an error: PROTOCOL for one that nothing else is known of.
func Class(err error) controlplanev1.ErrorClass {
	var dns *net.DNSError
	switch {
	case err == nil:
		return controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED
	case errors.Is(err, context.Canceled):
		return controlplanev1.ErrorClass_ERROR_CLASS_CANCELED
	case errors.As(err, &dns):
		return controlplanev1.ErrorClass_ERROR_CLASS_DNS
	case timedOut(err):
		return controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
		return controlplanev1.ErrorClass_ERROR_CLASS_REFUSED
	case isTLS(err):
		return controlplanev1.ErrorClass_ERROR_CLASS_TLS
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return controlplanev1.ErrorClass_ERROR_CLASS_RESET
	}
	return controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL
}

// Local reports whether an error is one that this machine makes by itself, which says
// nothing about the other side: no route, no descriptors, no memory, a name server that
// does not answer.
func Local(err error) bool {
	for _, e := range []error{
		syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.EADDRNOTAVAIL, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var dns *net.DNSError
	return errors.As(err, &dns) && !dns.IsNotFound
}

// Text is the innermost reason that still says what happened, without the addresses
// around it.
func Text(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &verify) || errors.As(err, &authority) ||
		errors.As(err, &name) || errors.As(err, &invalid) || strings.Contains(err.Error(), "tls: ")
}
