// Package rest serves what applications outside of the worker protocol need of the
// egress plane over HTTP: extractions, and how many proxies there are. The bodies
// are the messages of PoolAdmin as JSON, with the names of the .proto file.
//
//	POST /v1/extractions       with the header Idempotency-Key; 201, 200 for the same again
//	GET  /v1/extractions/{id}  the caller's own
//	GET  /v1/availability
//
// The host mounts [New] on its HTTP listener. A caller has a bearer token of a
// file ([Tokens]) or a client certificate that the host takes. The package decides
// nothing about proxies: its answers are those of a [Pool], and the one thing it
// adds is the HTTP status.
package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

const (
	maxBody = 64 << 10
	maxKey  = 128

	defaultTimeout = 10 * time.Second
	retryAfter     = time.Second
)

// Pool answers the requests. Its refusals become statuses; see [Options].
type Pool interface {
	Extract(ctx context.Context, actor string, req *controlplanev1.ExtractRequest) (*controlplanev1.ExtractResponse, error)
	// Extraction is an extraction of actor's again; one of anybody else is not found.
	Extraction(ctx context.Context, actor, id string) (*controlplanev1.ExtractResponse, error)
	Availability(ctx context.Context) (*controlplanev1.GetAvailabilityResponse, error)
}

// Options are what the handlers work with.
type Options struct {
	Pool   Pool
	Tokens *Tokens // nil: nobody has a token
	// Certificate says who a request's client certificate makes its caller, as audit
	// entries name it. It is asked first; nil, or false: only a token helps.
	Certificate func(*http.Request) (actor string, ok bool)
	Timeout     time.Duration // of a request; 0 = 10 s
	Logger      hclog.Logger
}

// New returns the handlers. They are safe for concurrent use.
func New(o Options) http.Handler {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	s := &server{o}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/extractions", s.known(s.extract))
	mux.Handle("GET /v1/extractions/{id}", s.known(s.extraction))
	mux.Handle("GET /v1/availability", s.known(s.availability))
	return mux
}

type server struct{ Options }

// answer is what a handler says: a message and its status.
type answer struct {
	status  int
	message proto.Message
	header  map[string]string
}

// known finds out who calls, gives the handler its time, and writes what it says.
func (s *server) known(handle func(ctx context.Context, actor string, r *http.Request) (answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Credentials are in the answers.
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		actor, err := s.actor(r)
		if err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="dona"`)
			s.refuse(w, r, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.Timeout)
		defer cancel()
		a, err := handle(ctx, actor, r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(a.message)
		if err != nil {
			s.refuse(w, r, fmt.Errorf("write the answer as JSON: %w", err))
			return
		}
		for name, value := range a.header {
			w.Header().Set(name, value)
		}
		s.write(w, a.status, raw)
	})
}

// failure is an answer that has no kind of refusal.
type failure struct {
	status int
	code   string
	text   string
}

func (f *failure) Error() string { return f.text }

var errWho = &failure{http.StatusUnauthorized, "UNAUTHENTICATED", "the request has no bearer token that this host knows, and no client certificate that may do this"}

func (s *server) actor(r *http.Request) (string, error) {
	if s.Certificate != nil {
		if actor, ok := s.Certificate(r); ok {
			return actor, nil
		}
	}
	values := r.Header.Values("Authorization")
	if len(values) != 1 || s.Tokens == nil {
		return "", errWho
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", errWho
	}
	name, ok := s.Tokens.Who(strings.TrimLeft(token, " "))
	if !ok {
		return "", errWho
	}
	return "token:" + name, nil
}

func (s *server) extract(ctx context.Context, actor string, r *http.Request) (answer, error) {
	key, err := idempotencyKey(r.Header)
	if err != nil {
		return answer{}, err
	}
	req, err := body(r)
	if err != nil {
		return answer{}, err
	}
	if req.IdempotencyKey != "" && req.IdempotencyKey != key {
		return answer{}, refusal.Field("idempotency_key", "is another one than in the header Idempotency-Key: leave it out")
	}
	req.IdempotencyKey = key
	resp, err := s.Pool.Extract(ctx, actor, req)
	if err != nil {
		return answer{}, err
	}
	status := http.StatusCreated
	if resp.GetReplayed() {
		status = http.StatusOK
	}
	return answer{status, resp, map[string]string{"Location": "/v1/extractions/" + url.PathEscape(resp.GetExtractionId())}}, nil
}

// idempotencyKey is the key that a retry repeats: without one, a lost answer would
// cost the proxies that were in it.
func idempotencyKey(h http.Header) (string, error) {
	const allowed = "allowed is one with 1 to 128 printable ASCII characters, new for each extraction and the same for its retries"
	keys := h.Values("Idempotency-Key")
	if len(keys) != 1 {
		return "", refusal.Field("Idempotency-Key", "stands in %d headers: %s", len(keys), allowed)
	}
	key := keys[0]
	if key == "" || len(key) > maxKey || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", refusal.Field("Idempotency-Key", "is %s: %s", limits.QuoteOrEmpty(key), allowed)
	}
	return key, nil
}

func body(r *http.Request) (*controlplanev1.ExtractRequest, error) {
	if t := r.Header.Get("Content-Type"); t != "" {
		if media, _, err := mime.ParseMediaType(t); err != nil || media != "application/json" {
			return nil, &failure{http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", "Content-Type is " + limits.Quote(t) + ": allowed is application/json"}
		}
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, refusal.New(refusal.Invalid, "the body ends early")
	case len(raw) > maxBody:
		return nil, &failure{http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT", fmt.Sprintf("the body has more than %d bytes", maxBody)}
	}
	req := new(controlplanev1.ExtractRequest)
	if err := protojson.Unmarshal(raw, req); err != nil {
		return nil, refusal.New(refusal.Invalid, "the body is no ExtractRequest as JSON: %s", brief(err))
	}
	return req, nil
}

// brief is what protojson says, without the prefix whose blank it varies on purpose
// and without more of the input than an error may have.
func brief(err error) string {
	text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "proto:")), " ")
	if len(text) > 96 {
		text = strings.ToValidUTF8(text[:96], "") + "…"
	}
	return text
}

func (s *server) extraction(ctx context.Context, actor string, r *http.Request) (answer, error) {
	id := r.PathValue("id")
	if err := refusal.Check("id", limits.ID(id)); err != nil {
		return answer{}, err
	}
	resp, err := s.Pool.Extraction(ctx, actor, id)
	return answer{status: http.StatusOK, message: resp}, err
}

func (s *server) availability(ctx context.Context, _ string, _ *http.Request) (answer, error) {
	resp, err := s.Pool.Availability(ctx)
	return answer{status: http.StatusOK, message: resp}, err
}

// statuses are what the kinds of refusals are over HTTP. Exhausted is 503: there is
// nothing to give now, and asking less often is not what helps.
var statuses = map[refusal.Kind]failure{
	refusal.Invalid:       {http.StatusBadRequest, "INVALID_ARGUMENT", ""},
	refusal.Denied:        {http.StatusForbidden, "PERMISSION_DENIED", ""},
	refusal.NotFound:      {http.StatusNotFound, "NOT_FOUND", ""},
	refusal.Precondition:  {http.StatusConflict, "FAILED_PRECONDITION", ""},
	refusal.AlreadyExists: {http.StatusConflict, "ALREADY_EXISTS", ""},
	refusal.Aborted:       {http.StatusConflict, "ABORTED", ""},
	refusal.Exhausted:     {http.StatusServiceUnavailable, "RESOURCE_EXHAUSTED", ""},
	refusal.Unavailable:   {http.StatusServiceUnavailable, "UNAVAILABLE", ""},
}

// failed says which answer an error is. What is neither a refusal nor the store's
// or the context's is a fault of the host: it is logged, and told without details.
func (s *server) failed(r *http.Request, err error) (f failure, field string) {
	var known *failure
	var refused *refusal.Error
	switch {
	case errors.As(err, &known):
		return *known, ""
	case errors.As(err, &refused):
		if refused.Cause != nil {
			s.Logger.Warn("request refused", "path", r.URL.Path, "error", refused.Text, "cause", refused.Cause)
		}
		f = statuses[refused.Kind]
		f.text = refused.Error()
		return f, refused.Field
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return failure{http.StatusServiceUnavailable, "DEADLINE_EXCEEDED", "the request took too long; send it again with the same Idempotency-Key"}, ""
	case errors.Is(err, store.ErrUnknown):
		s.Logger.Error("a write was not confirmed", "path", r.URL.Path, "error", err)
		return failure{http.StatusServiceUnavailable, "UNAVAILABLE", "outcome unknown: the write was sent and not confirmed; send the request again with the same Idempotency-Key"}, ""
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly), errors.Is(err, store.ErrClosed),
		errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrForeign), errors.Is(err, store.ErrRefused):
		s.Logger.Error("the store cannot be used", "path", r.URL.Path, "error", err)
		return failure{http.StatusServiceUnavailable, "UNAVAILABLE", "the store cannot be used now; the host's log and status say why"}, ""
	}
	s.Logger.Error("request failed", "path", r.URL.Path, "error", err)
	return failure{http.StatusInternalServerError, "INTERNAL", "the host failed; its log says why"}, ""
}

// refuse answers with an error, as the command line prints errors: a code of gRPC,
// and what to do.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f, field := s.failed(r, err)
	type body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Field   string `json:"field,omitempty"`
	}
	if f.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	raw, err := json.Marshal(map[string]body{"error": {f.code, f.text, field}})
	if err != nil {
		raw = []byte("{}") // strings always marshal
	}
	s.write(w, f.status, raw)
}

func (s *server) write(w http.ResponseWriter, status int, raw []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(raw, '\n')); err != nil {
		s.Logger.Debug("the caller is gone before its answer", "error", err)
	}
}
