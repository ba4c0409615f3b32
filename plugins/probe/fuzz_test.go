package probe_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/probe"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// FuzzAnswer feeds the facade every message that decodes, for each level: an
// accepted observation keeps its promises, whatever the plugin sent.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []*pluginv1.CheckReply{
		{}, with(success), with(failure), with(inconclusive), with(7), with(success, took(durationpb.New(timeout+1))),
		with(success, ip("203.0.113.7"), status(200), detail("fine")), with(failure, ip("::1%lo"), status(700), detail("a\nb")),
		with(failure, class(77), took(&durationpb.Duration{Nanos: -5})),
	} {
		text, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		for level := range uint8(4) {
			f.Add(text, level)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, level uint8) {
		reply := &pluginv1.CheckReply{}
		if proto.Unmarshal(text, reply) != nil {
			return
		}
		req := endpoint()
		if level %= 4; level > 0 {
			req = request(controlplanev1.CheckLevel(level))
		}
		o, err := probe.New(&caller{reply: reply}).Check(t.Context(), "mine", nil, req)
		if err != nil {
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason == "" {
				t.Fatalf("error %v is not about the answer", err)
			}
			says(t, o, bad.Reason)
			return
		}
		onTarget := req.GetLevel() == target
		switch {
		case o.Result != success && o.Result != failure && o.Result != inconclusive, o.Result != reply.GetResult():
			t.Fatalf("result %v of %v", o.Result, reply)
		case o.Latency < 0 || o.Latency > timeout+probe.Slack || o.Result == success && o.Latency > timeout:
			t.Fatalf("%v after %v", o.Result, o.Latency)
		case (o.Result == success) && o.ErrorClass != 0, o.Result == failure && o.ErrorClass == 0, o.ErrorClass < 0 || o.ErrorClass > 11:
			t.Fatalf("%v with class %v", o.Result, o.ErrorClass)
		case o.Status != 0 && (o.Status < 100 || o.Status > 599), o.Result == success && (o.Status > 399 || onTarget && o.Status < 200):
			t.Fatalf("%v with status %d", o.Result, o.Status)
		case o.EgressIP.IsValid() && (req.GetLevel() != egress || o.EgressIP.Zone() != ""), o.Result == success && req.GetLevel() == egress && !o.EgressIP.IsValid():
			t.Fatalf("%v with exit %v", o.Result, o.EgressIP)
		case len(o.Detail) > probe.MaxDetail || strings.ContainsAny(o.Detail, "\n\x1b"):
			t.Fatalf("detail %q", o.Detail)
		}
	})
}

// FuzzRequest asks with every message that decodes: what is sent is a check that
// a plugin can make.
func FuzzRequest(f *testing.F) {
	for _, seed := range []*pluginv1.CheckRequest{{}, request(basic), request(egress), request(target, 200, 404), endpoint(204), {EndpointAddress: "x", Level: 9}} {
		text, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		req := &pluginv1.CheckRequest{}
		if proto.Unmarshal(text, req) != nil {
			return
		}
		c := &caller{reply: &pluginv1.CheckReply{Result: inconclusive}}
		_, err := probe.New(c).Check(t.Context(), "mine", nil, req)
		var bad *probe.RequestError
		if errors.As(err, &bad) == (c.sent != nil) {
			t.Fatalf("sent %v, error %v", c.sent, err)
		}
		if s := c.sent; s != nil && ((s.GetProxy() == nil) == (s.GetEndpointAddress() == "") || s.GetLevel() < basic || s.GetLevel() > target ||
			s.GetTimeout().AsDuration() <= 0 || s.GetTimeout().AsDuration() > time.Minute) {
			t.Fatalf("sent %v", s)
		}
	})
}
