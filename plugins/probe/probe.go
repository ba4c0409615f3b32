// Package probe is the checked way to probe plugins: it has one make a single
// check of a proxy or of a service's endpoint, and turns the answer into an
// observation that health can be decided on.
//
// Whoever schedules checks calls it, once per attempt; schedules, retries and
// the verdict on health are not its business. What it promises: nothing that was
// not seen ever succeeds, and nothing that is the fault of the plugin or of the
// host ever counts against the target. A plugin that is away, late or wrong is
// INCONCLUSIVE, and so is a success that took longer than the check's timeout.
package probe

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// Bounds of a check.
const (
	MinTimeout = time.Millisecond
	MaxTimeout = plugins.CheckDeadline - Slack

	// Slack is how much longer than its timeout a check may be on its way: the
	// plugin answers that nothing came, instead of being late itself.
	Slack = time.Second

	MaxDetail       = 1 << 10 // bytes, one line
	MaxURL          = 2 << 10 // bytes
	MaxExpectStatus = 64      // codes of one request
)

// checkOptions are those of every call, made once.
var checkOptions = []grpc.CallOption{grpc.StaticMethod()}

// Caller carries calls to plugins; *plugins.Host is one.
type Caller interface {
	CallWithin(ctx context.Context, within time.Duration, id plugins.ID, in plugins.Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error)
	Validate(ctx context.Context, id plugins.ID, config *structpb.Struct) error
	Reject(id plugins.ID, reason, detail string) *plugins.AnswerError
}

// A Facade may be used concurrently.
type Facade struct {
	caller Caller
}

// New returns a facade over caller.
func New(caller Caller) *Facade { return &Facade{caller: caller} }

// An Observation is what one check saw.
type Observation struct {
	Result     controlplanev1.HealthObservation_Result // SUCCESS, FAILURE or INCONCLUSIVE, never UNSPECIFIED
	Latency    time.Duration                           // 0 to timeout + Slack; set with SUCCESS and FAILURE
	ErrorClass controlplanev1.ErrorClass               // always set with FAILURE, never with SUCCESS
	Detail     string                                  // one line for people, never empty when inconclusive by an error
	EgressIP   netip.Addr                              // of an EGRESS check; the zero Addr without one
	Status     uint32                                  // HTTP status of the target, 100 to 599; 0 without one

	// Which plugin checked.
	Plugin  string
	Version string
	Digest  string // sha256:<hex>
}

// A RequestError says that a check cannot be asked for as it is; no plugin was
// called.
type RequestError struct {
	Field string // of the request
	Text  string // continues the field: "is 0s: allowed are …"
}

func (e *RequestError) Error() string { return "check request: " + e.Field + " " + e.Text }

// Check has a plugin make one check with a configuration; nil is none. The
// request has exactly one of proxy and endpoint_address, a level, and a timeout
// of MinTimeout to MaxTimeout; the plugin is waited for that long and Slack. The
// instance is made of the configuration; req.instance_id is ignored. req is not
// changed.
//
// An error always comes with an observation that is INCONCLUSIVE and says it.
// Errors: *RequestError and those of plugins.Host.Call; plugins.ErrAway in
// particular comes at once when the plugin is not ready.
func (f *Facade) Check(ctx context.Context, plugin string, config *structpb.Struct, req *pluginv1.CheckRequest) (Observation, error) {
	id := plugins.ID{Kind: plugins.KindProbe, Name: plugin}
	if err := checkRequest(req); err != nil {
		return inconclusive(plugin, err), err
	}
	fail := func(err error) (Observation, error) {
		err = fmt.Errorf("check %s by probe %s: %w", target(req), plugin, err)
		return inconclusive(plugin, err), err
	}
	in := plugins.InstanceFor("check", config)
	send := &pluginv1.CheckRequest{
		InstanceId: in.ID, Proxy: req.GetProxy(), EndpointAddress: req.GetEndpointAddress(), Credential: req.GetCredential(),
		Level: req.GetLevel(), Url: req.GetUrl(), Timeout: req.GetTimeout(), ExpectStatus: req.GetExpectStatus(),
	}
	ctx = plugins.WithSecrets(ctx, secrets(req.GetCredential())...)
	var reply *pluginv1.CheckReply
	var took time.Duration
	who, err := f.caller.CallWithin(ctx, req.GetTimeout().AsDuration()+Slack, id, in, "Check", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		began := time.Now()
		reply = new(pluginv1.CheckReply)
		err := conn.Invoke(ctx, pluginv1.Probe_Check_FullMethodName, send, reply, checkOptions...)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return fail(err)
	}
	o, bad := check(req, reply, took)
	if bad != nil {
		return fail(f.caller.Reject(id, bad.reason, bad.detail))
	}
	o.Detail = plugins.HideSecrets(ctx, o.Detail)
	o.Plugin, o.Version, o.Digest = who.Name, who.Version, who.Digest
	return o, nil
}

// Validate checks a configuration for the plugin. Errors: plugins.ErrUnknown,
// *plugins.ConfigError, and plugins.ErrAway when the plugin was never seen.
func (f *Facade) Validate(ctx context.Context, plugin string, config *structpb.Struct) error {
	return f.caller.Validate(ctx, plugins.ID{Kind: plugins.KindProbe, Name: plugin}, config)
}

func inconclusive(plugin string, err error) Observation {
	return Observation{Result: controlplanev1.HealthObservation_RESULT_INCONCLUSIVE, Detail: line.Of(err.Error(), MaxDetail), Plugin: plugin}
}

// secrets are what no log may show of a credential: the password, and how a proxy
// is told it (RFC 7617).
func secrets(c *controlplanev1.Credential) []string {
	if c.GetPassword() == "" {
		return nil
	}
	return []string{c.GetPassword(), base64.StdEncoding.EncodeToString([]byte(c.GetUsername() + ":" + c.GetPassword()))}
}

// target names what is checked, for errors; credentials are no part of it.
func target(req *pluginv1.CheckRequest) string {
	if p := req.GetProxy(); p != nil {
		return fmt.Sprintf("proxy %.64q", p.GetProxyId())
	}
	return fmt.Sprintf("endpoint %.64q", req.GetEndpointAddress())
}
