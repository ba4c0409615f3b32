package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

const maxLine = 512 // bytes of a text for people

// Good is a success, with the HTTP status if there was one.
func Good(status int, detail string) *pluginv1.CheckReply {
	return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS, Status: uint32(status), Detail: line.Of(detail, maxLine)}
}

// Bad is a failure of the target.
func Bad(class controlplanev1.ErrorClass, format string, args ...any) *pluginv1.CheckReply {
	return &pluginv1.CheckReply{
		Result: controlplanev1.HealthObservation_RESULT_FAILURE, ErrorClass: class, Detail: line.Of(fmt.Sprintf(format, args...), maxLine),
	}
}

// Unclear says nothing about the target.
func Unclear(class controlplanev1.ErrorClass, format string, args ...any) *pluginv1.CheckReply {
	r := Bad(class, format, args...)
	r.Result = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
	return r
}

// Failed says what a check comes to that ended with an error before ctx's own end, or
// at it: a failure when the target is to blame, unclear when the probe or its machine
// is.
func Failed(ctx context.Context, err error) *pluginv1.CheckReply {
	var refused *Refusal
	var dns *net.DNSError
	text := cause(err)
	switch {
	case errors.As(err, &refused):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_POLICY, "%s", refused.Error())
	case errors.Is(ctx.Err(), context.Canceled):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, "the check was given up")
	case errors.As(err, &dns) && dns.IsNotFound:
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_DNS, "%s", text)
	case errors.As(err, &dns): // the name server is not the target
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_DNS, "%s", text)
	case ctx.Err() != nil, timedOut(err):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, "no answer in time")
	case errors.Is(err, ErrTooMuch):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "%s", text)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_REFUSED, "%s", text)
	case ours(err):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED, "the probe could not try: %s", text)
	case isTLS(err):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_TLS, "%s", text)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_RESET, "%s", text)
	}
	return Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "%s", text)
}

// ours are errors that this machine makes by itself.
func ours(err error) bool {
	for _, e := range []error{
		syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.EADDRNOTAVAIL, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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

// cause is the innermost reason that still says what happened.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}
