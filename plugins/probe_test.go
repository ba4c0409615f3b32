//go:build linux

package plugins_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/probe"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

const (
	success      = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure      = controlplanev1.HealthObservation_RESULT_FAILURE
	inconclusive = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
)

// looks is a probe that does what the address says.
type looks struct{}

func (looks) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	if c := req.GetCredential(); c != nil {
		basic := base64.StdEncoding.EncodeToString([]byte(c.GetUsername() + ":" + c.GetPassword()))
		fmt.Fprintln(os.Stderr, "told", c.GetPassword(), basic)
		plugin.Logger(ctx).Info("asking", "password", c.GetPassword(), "authorization", "Basic "+basic)
		if req.GetProxy().GetProxyId() == "error" {
			return nil, errors.New("refused with " + c.GetPassword())
		}
		return &pluginv1.CheckReply{Result: success, Latency: durationpb.New(time.Millisecond), Detail: "with " + c.GetPassword()}, nil
	}
	switch req.GetEndpointAddress() {
	case "nothing":
		return nil, nil
	case "error":
		return nil, errors.New("no route from here")
	case "panic":
		panic("deliberate")
	case "silence": // what a probe does with a target that does not answer
		<-ctx.Done()
		return &pluginv1.CheckReply{Result: failure, ErrorClass: controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT}, nil
	case "hang":
		<-make(chan struct{})
	case "late":
		<-ctx.Done()
		return &pluginv1.CheckReply{Result: success}, nil
	}
	return &pluginv1.CheckReply{Result: success}, nil
}

func checkOf(address string, timeout time.Duration) *pluginv1.CheckRequest {
	return &pluginv1.CheckRequest{
		EndpointAddress: address, Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(timeout),
	}
}

// A probe that is away, wrong or late says nothing about its target.
func TestProbe(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := probe.New(h)
	o, err := f.Check(t.Context(), "looks", nil, checkOf("up", time.Second))
	if !errors.Is(err, plugins.ErrAway) || o.Result != inconclusive {
		t.Fatalf("before the start: %+v, %v", o, err)
	}
	await(t, h, plugins.KindProbe, "looks")
	for _, tc := range []struct {
		address string
		result  controlplanev1.HealthObservation_Result
		says    string // in the error; empty = none
	}{
		{"up", success, ""},
		{"silence", failure, ""},
		{"nothing", inconclusive, ""},
		{"error", inconclusive, "no route from here"},
		{"panic", inconclusive, "panic: deliberate"},
		{"late", inconclusive, "late_success"},
		{"up", success, ""},
	} {
		timeout := 10 * time.Second
		if tc.address == "silence" || tc.address == "late" {
			timeout = 200 * time.Millisecond
		}
		o, err := f.Check(t.Context(), "looks", nil, checkOf(tc.address, timeout))
		if o.Result != tc.result || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %+v, %v", tc.address, o, err)
		}
		if err == nil && o.Latency <= 0 {
			t.Errorf("%s: no latency was measured", tc.address)
		}
	}
}

// A check has its own timeout and a second; a probe that is still out then is
// replaced after the third time, one that only waited its turn is not.
func TestProbeThatHangs(t *testing.T) {
	beside(t)
	h := startHost(t, newOptions(t))
	f := probe.New(h)
	await(t, h, plugins.KindProbe, "looks")
	status := func() (generation uint64) {
		s, err := h.Status(plugins.KindProbe, "looks")
		if err != nil {
			t.Fatal(err)
		}
		return s.GetGeneration()
	}
	answers := make(chan error, 5)
	began := time.Now()
	for range cap(answers) {
		go func() {
			o, err := f.Check(context.Background(), "looks", nil, checkOf("hang", 100*time.Millisecond))
			if o.Result != inconclusive {
				err = errors.Join(err, errors.New("it judged the target"))
			}
			answers <- err
		}()
	}
	for range cap(answers) {
		if err := <-answers; !errors.Is(err, plugins.ErrDeadline) {
			t.Errorf("error %v, want ErrDeadline", err)
		}
	}
	t.Logf("five at once, one at a time, after %v", time.Since(began))
	if g := status(); g != 1 {
		t.Errorf("generation %d: one missed its deadline, and four their turn", g)
	}
	// On a busy machine a call may have too little left to count.
	eventually(t, h, "another process", func() bool {
		if status() == 1 {
			if o, _ := f.Check(t.Context(), "looks", nil, checkOf("hang", 100*time.Millisecond)); o.Result != inconclusive {
				t.Errorf("it judged the target: %+v", o)
			}
		}
		return h.Ready(plugins.KindProbe, "looks") && status() == 2
	})
}

// What a probe writes and says of a credential is for nobody's eyes.
func TestCredentialsOfChecksAreHidden(t *testing.T) {
	o := newOptions(t)
	h := startHost(t, o)
	f := probe.New(h)
	await(t, h, plugins.KindProbe, "looks")
	const password = "open-sesame"
	ask := func(proxy string) (probe.Observation, error) {
		return f.Check(t.Context(), "looks", nil, &pluginv1.CheckRequest{
			Proxy: &controlplanev1.Proxy{ProxyId: proxy}, Credential: &controlplanev1.Credential{Username: "ali", Password: password},
			Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(10 * time.Second),
		})
	}
	seen, err := ask("p1")
	if err != nil || seen.Detail != "with ***" {
		t.Errorf("%+v, %v", seen, err)
	}
	seen, err = ask("error")
	if err == nil || strings.Contains(err.Error()+seen.Detail, password) || !strings.Contains(err.Error(), "refused with ***") {
		t.Errorf("%+v, %v", seen, err)
	}
	id := plugins.ID{Kind: plugins.KindProbe, Name: "looks"}
	until(t, "what it wrote", nil, func() bool {
		told, asking := 0, 0
		for _, line := range logOf(t, h, id) {
			if strings.Contains(line.Text, password) || strings.Contains(line.Text, "YWxpOm9wZW4tc2VzYW1l") {
				t.Fatalf("the log has %q", line.Text)
			}
			if strings.Contains(line.Text, "told *** ***") {
				told++
			}
			if strings.Contains(line.Text, "asking") && strings.Contains(line.Text, "Basic ***") {
				asking++
			}
		}
		return told == 2 && asking == 2
	})
}
