package api

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// maxAnswer bounds an error's text: valid UTF-8 of at most 1 KiB.
const maxAnswer = 1 << 10

var codeOf = map[refusal.Kind]codes.Code{
	refusal.Invalid:       codes.InvalidArgument,
	refusal.Denied:        codes.PermissionDenied,
	refusal.NotFound:      codes.NotFound,
	refusal.Precondition:  codes.FailedPrecondition,
	refusal.AlreadyExists: codes.AlreadyExists,
	refusal.Aborted:       codes.Aborted,
	refusal.Exhausted:     codes.ResourceExhausted,
	refusal.Unavailable:   codes.Unavailable,
}

// answer is the one place where an error of the host becomes a transport
// status. A refusal keeps its text; the store's and the context's errors get
// one; anything else is a fault of ours, logged in full and answered without
// its details.
func answer(log hclog.Logger, method string, err error) error {
	if err == nil {
		return nil
	}
	var refused *refusal.Error
	if errors.As(err, &refused) {
		if refused.Cause != nil {
			log.Warn("call refused", "method", method, "error", refused.Text, "cause", refused.Cause)
		}
		return refusedStatus(refused).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err // already a status: ours, or the stream's own
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the call was cancelled")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the call's deadline passed")
	case errors.Is(err, store.ErrTooLarge):
		return status.Error(codes.ResourceExhausted, "the request needs a larger transaction than the store takes")
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly), errors.Is(err, store.ErrClosed):
		log.Error("the store takes no writes", "method", method, "error", err)
		return status.Error(codes.Unavailable, clip(err.Error()))
	case errors.Is(err, store.ErrUnknown):
		// The rest of the text names servers, which are nobody's business.
		log.Error("a write was not confirmed", "method", method, "error", err)
		return status.Error(codes.Unavailable, "outcome unknown: the write was sent and not confirmed; send the same request again")
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrForeign), errors.Is(err, store.ErrRefused):
		log.Error("the store cannot be used", "method", method, "error", err)
		return status.Error(codes.Unavailable, "the store cannot be used now; the host's log and status say why")
	}
	if errors.Is(err, store.ErrDamaged) {
		log.Error("a record is damaged", "method", method, "error", err)
		return status.Error(codes.Internal, "a record that this needs is damaged: dona store check names it, and the host's log")
	}
	log.Error("call failed", "method", method, "error", err)
	return status.Error(codes.Internal, "the host failed; its log says why")
}

func refusedStatus(e *refusal.Error) *status.Status {
	s := status.New(codeOf[e.Kind], clip(e.Error()))
	if e.Field != "" {
		if with, err := s.WithDetails(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: e.Field, Description: clip(e.Text)},
		}}); err == nil {
			s = with
		}
	}
	if e.Reason != "" {
		if with, err := s.WithDetails(&errdetails.ErrorInfo{Reason: e.Reason, Domain: "dona"}); err == nil {
			s = with
		}
	}
	if e.Kind == refusal.Exhausted {
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
			s = with
		}
	}
	return s
}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxAnswer {
		return s
	}
	s = s[:maxAnswer]
	for len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s
}
