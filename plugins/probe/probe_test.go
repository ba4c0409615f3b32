package probe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/probe"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// caller is a plugin that answers whatever it is given. With raw set the answer
// does not pass through the wire's encoding, which would refuse it earlier.
type caller struct {
	reply    *pluginv1.CheckReply
	raw      bool
	err      error
	after    time.Duration // before it answers
	within   time.Duration
	sent     *pluginv1.CheckRequest
	instance plugins.Instance
	rejected []string
}

func (c *caller) CallWithin(ctx context.Context, within time.Duration, id plugins.ID, in plugins.Instance, _ string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error) {
	c.within, c.instance = within, in
	if c.err != nil {
		return plugins.Identity{}, c.err
	}
	return plugins.Identity{Name: id.Name, Version: "1.0.0", Digest: "sha256:00"}, do(ctx, c)
}

func (c *caller) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	c.sent = args.(*pluginv1.CheckRequest)
	time.Sleep(c.after)
	if c.raw {
		proto.Merge(reply.(*pluginv1.CheckReply), c.reply)
		return nil
	}
	text, err := proto.Marshal(c.reply)
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, reply.(proto.Message))
}

func (c *caller) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

func (c *caller) Validate(context.Context, plugins.ID, *structpb.Struct) error { return nil }

func (c *caller) Reject(id plugins.ID, reason, detail string) *plugins.AnswerError {
	c.rejected = append(c.rejected, reason)
	return &plugins.AnswerError{Plugin: id, Reason: reason, Detail: detail}
}

const (
	success      = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure      = controlplanev1.HealthObservation_RESULT_FAILURE
	inconclusive = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE

	basic  = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	target = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET

	timedOut = controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
	refused  = controlplanev1.ErrorClass_ERROR_CLASS_REFUSED
)

// timeout is that of every request of the tests.
const timeout = 2 * time.Second

func request(level controlplanev1.CheckLevel, expect ...uint32) *pluginv1.CheckRequest {
	req := &pluginv1.CheckRequest{
		Proxy:      &controlplanev1.Proxy{ProxyId: "p1", Host: "192.0.2.1", Port: 8080},
		Credential: &controlplanev1.Credential{Username: "u", Password: "hush"},
		Level:      level, Timeout: durationpb.New(timeout), ExpectStatus: expect,
	}
	if level != basic {
		req.Url = "https://target.example/ip"
	}
	return req
}

func endpoint(expect ...uint32) *pluginv1.CheckRequest {
	return &pluginv1.CheckRequest{EndpointAddress: "127.0.0.1:80", Level: basic, Timeout: durationpb.New(timeout), ExpectStatus: expect}
}

// with is a reply that took 20 ms.
func with(result controlplanev1.HealthObservation_Result, change ...func(*pluginv1.CheckReply)) *pluginv1.CheckReply {
	r := &pluginv1.CheckReply{Result: result, Latency: durationpb.New(20 * time.Millisecond)}
	if result == failure {
		r.ErrorClass = refused
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func took(d *durationpb.Duration) func(*pluginv1.CheckReply) {
	return func(r *pluginv1.CheckReply) { r.Latency = d }
}
func class(c controlplanev1.ErrorClass) func(*pluginv1.CheckReply) {
	return func(r *pluginv1.CheckReply) { r.ErrorClass = c }
}
func detail(s string) func(*pluginv1.CheckReply) {
	return func(r *pluginv1.CheckReply) { r.Detail = s }
}
func ip(s string) func(*pluginv1.CheckReply) {
	return func(r *pluginv1.CheckReply) { r.EgressIp = s }
}
func status(code uint32) func(*pluginv1.CheckReply) {
	return func(r *pluginv1.CheckReply) { r.Status = code }
}

func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		req    *pluginv1.CheckRequest
		reply  *pluginv1.CheckReply
		raw    bool
		reason string // empty = accepted
	}{
		{"success", request(basic), with(success), false, ""},
		{"success at the timeout", request(basic), with(success, took(durationpb.New(timeout))), false, ""},
		{"success at once", request(basic), with(success, took(durationpb.New(0))), false, ""},
		{"failure", request(basic), with(failure), false, ""},
		{"failure a moment after the timeout", request(basic), with(failure, class(timedOut), took(durationpb.New(timeout+probe.Slack))), false, ""},
		{"inconclusive, and nothing else", request(basic), &pluginv1.CheckReply{Result: inconclusive}, false, ""},
		{"inconclusive, and why", request(basic), with(inconclusive, class(controlplanev1.ErrorClass_ERROR_CLASS_CANCELED), detail("the checker has no route")), false, ""},
		{"detail at the limit", request(basic), with(success, detail(strings.Repeat("d", probe.MaxDetail))), false, ""},
		{"IPv4", request(egress), with(success, ip("203.0.113.7"), status(200)), false, ""},
		{"IPv6", request(egress), with(success, ip("2001:db8::1")), false, ""},
		{"egress failed", request(egress), with(failure), false, ""},
		{"target", request(target), with(success, status(302)), false, ""},
		{"target expected", request(target, 404, 410), with(success, status(410)), false, ""},
		{"target failed", request(target), with(failure, class(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS), status(503)), false, ""},
		{"endpoint without a status", endpoint(), with(success), false, ""},
		{"endpoint with a status", endpoint(), with(success, status(204)), false, ""},

		{"no answer", request(basic), &pluginv1.CheckReply{}, false, "result"},
		{"no result", request(basic), with(0), false, "result"},
		{"unknown result", request(basic), with(4), false, "result"},
		{"negative result", request(basic), with(-1), false, "result"},
		{"no latency of a success", request(basic), with(success, took(nil)), false, "latency"},
		{"no latency of a failure", request(basic), with(failure, took(nil)), false, "latency"},
		{"negative latency", request(basic), with(success, took(durationpb.New(-1))), false, "latency"},
		{"latency out of range", request(basic), with(failure, took(&durationpb.Duration{Seconds: 1 << 62})), false, "latency"},
		{"latency with mixed signs", request(basic), with(success, took(&durationpb.Duration{Seconds: 1, Nanos: -1})), false, "latency"},
		{"latency beyond any wait", request(basic), with(failure, took(durationpb.New(timeout+probe.Slack+1))), false, "latency"},
		{"inconclusive with a bad latency", request(basic), with(inconclusive, took(durationpb.New(-1))), false, "latency"},
		{"success after the timeout", request(basic), with(success, took(durationpb.New(timeout+1))), false, "late_success"},
		{"success with a class", request(basic), with(success, class(refused)), false, "error_class"},
		{"success that timed out", request(basic), with(success, class(timedOut)), false, "error_class"},
		{"failure without a class", request(basic), with(failure, class(0)), false, "error_class"},
		{"unknown class", request(basic), with(failure, class(99)), false, "error_class"},
		{"negative class", request(basic), with(inconclusive, class(-1)), false, "error_class"},
		{"detail over the limit", request(basic), with(success, detail(strings.Repeat("d", probe.MaxDetail+1))), false, "detail"},
		{"detail of two lines", request(basic), with(success, detail("a\nb")), false, "detail"},
		{"detail with an escape", request(basic), with(success, detail("\x1b[2J")), false, "detail"},
		{"detail that is no UTF-8", request(basic), with(success, detail("\xff")), true, "detail"},
		{"no exit address", request(egress), with(success), false, "egress_ip"},
		{"exit address of a basic check", request(basic), with(success, ip("203.0.113.7")), false, "egress_ip"},
		{"exit address of an endpoint", endpoint(), with(success, ip("203.0.113.7")), false, "egress_ip"},
		{"a name for an address", request(egress), with(success, ip("exit.example")), false, "egress_ip"},
		{"an address and a port", request(egress), with(success, ip("203.0.113.7:80")), false, "egress_ip"},
		{"an address with a zone", request(egress), with(success, ip("fe80::1%eth0")), false, "egress_ip"},
		{"no one's address", request(egress), with(success, ip("0.0.0.0")), false, "egress_ip"},
		{"a page for an address", request(egress), with(failure, ip(strings.Repeat("<html>", 1000))), false, "egress_ip"},
		{"status too small", request(target), with(failure, status(99)), false, "status"},
		{"status too large", request(target), with(failure, status(600)), false, "status"},
		{"target without a status", request(target), with(success), false, "unexpected_status"},
		{"target with a bad status", request(target), with(success, status(503)), false, "unexpected_status"},
		{"a good status that was not asked for", request(target, 404), with(success, status(200)), false, "unexpected_status"},
		{"endpoint without the status asked for", endpoint(200), with(success), false, "unexpected_status"},
		{"endpoint with a bad status", endpoint(), with(success, status(500)), false, "unexpected_status"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &caller{reply: tc.reply, raw: tc.raw}
			o, err := probe.New(c).Check(t.Context(), "mine", nil, tc.req)
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if o.Result != tc.reply.GetResult() || o.Latency != tc.reply.GetLatency().AsDuration() || o.Status != tc.reply.GetStatus() ||
					o.Plugin != "mine" || o.Version != "1.0.0" || o.Digest != "sha256:00" || len(c.rejected) != 0 {
					t.Errorf("%+v, rejected %v", o, c.rejected)
				}
				return
			}
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason != tc.reason || bad.Plugin != (plugins.ID{Kind: plugins.KindProbe, Name: "mine"}) {
				t.Fatalf("error %v, want reason %s", err, tc.reason)
			}
			if len(c.rejected) != 1 || c.rejected[0] != tc.reason {
				t.Errorf("counted %v", c.rejected)
			}
			says(t, o, tc.reason)
		})
	}
}

// says demands that an observation is inconclusive, of the plugin, and has want
// in its detail.
func says(t *testing.T, o probe.Observation, want string) {
	t.Helper()
	if o.Result != inconclusive || o.Latency != 0 || o.ErrorClass != 0 || o.Status != 0 || o.EgressIP.IsValid() || o.Plugin != "mine" ||
		!strings.Contains(o.Detail, want) || len(o.Detail) > probe.MaxDetail || strings.ContainsAny(o.Detail, "\n\x1b") {
		t.Errorf("observation %+v, want INCONCLUSIVE with %q", o, want)
	}
}

// A plugin may say what it likes about its own time; the host has a clock too.
func TestSuccessAfterTheTimeoutByTheHostsClock(t *testing.T) {
	for _, tc := range []struct {
		after time.Duration
		late  bool
	}{{timeout, false}, {timeout + probe.Slack/2, false}, {timeout + probe.Slack/2 + time.Millisecond, true}} {
		synctest.Test(t, func(t *testing.T) {
			o, err := probe.New(&caller{reply: with(success), after: tc.after}).Check(t.Context(), "mine", nil, request(basic))
			var bad *plugins.AnswerError
			if !tc.late && (err != nil || o.Result != success) || tc.late && (!errors.As(err, &bad) || bad.Reason != "late_success") {
				t.Errorf("after %v: %+v, %v", tc.after, o, err)
			}
		})
	}
}

func TestEgressIPIsOneAddress(t *testing.T) {
	for text, want := range map[string]string{"203.0.113.7": "203.0.113.7", "::ffff:203.0.113.7": "203.0.113.7", "2001:DB8::1": "2001:db8::1"} {
		o, err := probe.New(&caller{reply: with(success, ip(text))}).Check(t.Context(), "mine", nil, request(egress))
		if err != nil || o.EgressIP.String() != want {
			t.Errorf("%s: %v, %v", text, o.EgressIP, err)
		}
	}
}

// Whatever goes wrong on the way, the target is not judged.
func TestErrorsAreInconclusive(t *testing.T) {
	for _, want := range []error{
		plugins.ErrAway, plugins.ErrDeadline, plugins.ErrExhausted, plugins.ErrUnknown, context.Canceled,
		&plugins.CallError{Method: "Check", Text: "panic: a\nb \x1b[2J"}, &plugins.ConfigError{Violations: []plugins.Violation{{Message: "no"}}},
	} {
		o, err := probe.New(&caller{err: want}).Check(t.Context(), "mine", nil, request(basic))
		if !errors.Is(err, want) || strings.Contains(fmt.Sprint(err, o), "hush") {
			t.Errorf("error %v, want %v", err, want)
		}
		says(t, o, `check proxy "p1" by probe mine`)
	}
}

// No plugin is asked what cannot be asked.
func TestRequests(t *testing.T) {
	change := func(req *pluginv1.CheckRequest, f func(*pluginv1.CheckRequest)) *pluginv1.CheckRequest {
		f(req)
		return req
	}
	for _, tc := range []struct {
		name, field string
		req         *pluginv1.CheckRequest
	}{
		{"nothing", "proxy", nil},
		{"no target", "proxy", change(endpoint(), func(r *pluginv1.CheckRequest) { r.EndpointAddress = "" })},
		{"two targets", "endpoint_address", change(request(basic), func(r *pluginv1.CheckRequest) { r.EndpointAddress = "127.0.0.1:1" })},
		{"credential of an endpoint", "credential", change(endpoint(), func(r *pluginv1.CheckRequest) { r.Credential = &controlplanev1.Credential{} })},
		{"no level", "level", change(request(basic), func(r *pluginv1.CheckRequest) { r.Level = 0 })},
		{"unknown level", "level", change(request(basic), func(r *pluginv1.CheckRequest) { r.Level = 9 })},
		{"egress of an endpoint", "level", change(endpoint(), func(r *pluginv1.CheckRequest) { r.Level = egress })},
		{"no timeout", "timeout", change(request(basic), func(r *pluginv1.CheckRequest) { r.Timeout = nil })},
		{"timeout of zero", "timeout", change(request(basic), func(r *pluginv1.CheckRequest) { r.Timeout = durationpb.New(0) })},
		{"negative timeout", "timeout", change(request(basic), func(r *pluginv1.CheckRequest) { r.Timeout = durationpb.New(-time.Second) })},
		{"timeout too long", "timeout", change(request(basic), func(r *pluginv1.CheckRequest) { r.Timeout = durationpb.New(probe.MaxTimeout + 1) })},
		{"timeout out of range", "timeout", change(request(basic), func(r *pluginv1.CheckRequest) { r.Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1} })},
		{"egress without a URL", "url", change(request(egress), func(r *pluginv1.CheckRequest) { r.Url = "" })},
		{"target without a URL", "url", change(request(target), func(r *pluginv1.CheckRequest) { r.Url = "" })},
		{"URL of another scheme", "url", change(request(target), func(r *pluginv1.CheckRequest) { r.Url = "file:///etc/passwd" })},
		{"URL without a host", "url", change(request(target), func(r *pluginv1.CheckRequest) { r.Url = "http:///x" })},
		{"URL with a password", "url", change(request(target), func(r *pluginv1.CheckRequest) { r.Url = "http://u:hush@target.example/" })},
		{"URL too long", "url", change(request(target), func(r *pluginv1.CheckRequest) { r.Url = "http://" + strings.Repeat("a", probe.MaxURL) })},
		{"a status that cannot be", "expect_status[1]", request(target, 200, 20)},
		{"too many statuses", "expect_status", request(target, make([]uint32, probe.MaxExpectStatus+1)...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &caller{reply: with(success)}
			o, err := probe.New(c).Check(t.Context(), "mine", nil, tc.req)
			var bad *probe.RequestError
			if !errors.As(err, &bad) || bad.Field != tc.field || strings.Contains(fmt.Sprint(err, o), "hush") {
				t.Fatalf("error %v, want one about %s", err, tc.field)
			}
			if c.sent != nil || len(c.rejected) != 0 {
				t.Error("the plugin was asked")
			}
			says(t, o, tc.field)
		})
	}
}

func TestInstanceIsTheConfiguration(t *testing.T) {
	instance := func(fields map[string]any) string {
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		c := &caller{reply: with(success)}
		req := request(basic)
		req.InstanceId = "forged"
		if _, err := probe.New(c).Check(t.Context(), "mine", s, req); err != nil {
			t.Fatal(err)
		}
		if c.sent.GetInstanceId() != c.instance.ID || req.InstanceId != "forged" || c.within != timeout+probe.Slack {
			t.Errorf("sent %q for %q within %v, and the caller's request has %q", c.sent.GetInstanceId(), c.instance.ID, c.within, req.InstanceId)
		}
		want := proto.CloneOf(req)
		want.InstanceId = c.instance.ID
		if !proto.Equal(c.sent, want) {
			t.Errorf("sent %v", c.sent)
		}
		return c.instance.ID
	}
	one := instance(map[string]any{"a": 1})
	if again := instance(map[string]any{"a": 1}); again != one {
		t.Error("the same configuration, another instance")
	}
	if none := instance(nil); none == one {
		t.Error("another configuration, the same instance")
	}
}
