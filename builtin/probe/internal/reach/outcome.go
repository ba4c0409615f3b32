package reach

import (
	"context"
	"errors"
	"fmt"
	"net"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
	"github.com/dodona-project/dodona/sdk/worker/fault"
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
	text := fault.Text(err)
	switch {
	case errors.As(err, &refused):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_POLICY, "%s", refused.Error())
	case errors.Is(ctx.Err(), context.Canceled):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, "the check was given up")
	case errors.As(err, &dns) && dns.IsNotFound:
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_DNS, "%s", text)
	case errors.As(err, &dns): // the name server is not the target
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_DNS, "%s", text)
	case ctx.Err() != nil, fault.Class(err) == controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT:
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, "no answer in time")
	case errors.Is(err, ErrTooMuch):
		return Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "%s", text)
	case fault.Local(err):
		return Unclear(controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED, "the probe could not try: %s", text)
	}
	return Bad(fault.Class(err), "%s", text)
}
