package donagrpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

const retries = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.01s","maxBackoff":"0.05s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// churn replaces instances of the given variants one after the other until ctx
// ends: a new one comes, then the oldest goes in the given way. The next change
// comes when the one before has reached the client.
func churn(ctx context.Context, t *testing.T, services, client *dona.Client, running map[string][]*instance, away func(*instance)) (ended chan struct{}, changes *int) {
	ended, changes = make(chan struct{}), new(int)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for variant, all := range running {
				next := start(t, services, variant)
				donatest.Until(t, "the client knows a new endpoint", func() bool { return knows(client, next.id) })
				away(all[0])
				donatest.Until(t, "the client forgets an endpoint", func() bool { return !knows(client, all[0].id) })
				running[variant] = append(all[1:], next)
				*changes++
			}
		}
	}()
	return ended, changes
}

func startRollout(t *testing.T, h *donatest.Host, canary, stable string) {
	t.Helper()
	_, err := h.Admin.StartRollout(t.Context(), &donav1.StartRolloutRequest{Service: "checkout", CanaryVariant: canary, StableVariant: stable,
		Steps: []uint32{10, 50, 100}, StepSeconds: 1, MaxErrorPercent: 5, MinRequests: 50})
	if err != nil {
		t.Fatal(err)
	}
}

func reaches(t *testing.T, h *donatest.Host, state donav1.RolloutStatus_State) {
	t.Helper()
	var last string
	donatest.Until(t, "the rollout is "+state.String(), func() bool {
		r := h.Status(t, "checkout").GetRollout()
		if now := r.GetState().String() + " " + r.GetReason(); now != last {
			last = now
			t.Log(r.GetStepPercent(), "%", now)
		}
		return r.GetState() == state
	})
}

// A connection follows a rollout to its end without a failed call, while its
// endpoints come and go, with no retries but those that gRPC makes of calls that no
// server has seen.
func TestFollowsRollout(t *testing.T) {
	h := donatest.Start(t)
	services := h.Dial(t)
	running := map[string][]*instance{}
	for _, variant := range []string{"v1", "v1", "v2", "v2"} {
		running[variant] = append(running[variant], start(t, services, variant))
	}
	if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Flag: "beta", Service: "checkout",
		Targeting: []*donav1.TargetingRule{{Attribute: "tester", Values: []string{"yes"}, Variant: "v2"}}}}); err != nil {
		t.Fatal(err)
	}
	startRollout(t, h, "v2", "v1")

	client := h.Dial(t, dona.WithCaller("shop", "eu"))
	api := connect(t, client, donagrpc.Config{})
	tester := dona.NewContext(t.Context(), dona.Request{Unit: "t", Attributes: []dona.Attribute{dona.String("tester", "yes")}})
	for range 20 {
		if variant, _, err := ask(tester, api); err != nil || variant != "v2" {
			t.Fatalf("a tester gets %q, %v", variant, err)
		}
	}
	c := call(t.Context(), api, 4)
	ctx, stop := context.WithCancel(t.Context())
	ended, changes := churn(ctx, t, services, client, running, func(i *instance) { i.leave(t, client) })
	reaches(t, h, donav1.RolloutStatus_STATE_PROMOTED)
	settles(t, c, "v2")
	stop()
	<-ended
	c.end(t)
	t.Logf("%d endpoints came and went", *changes)
	if *changes == 0 {
		t.Error("no endpoint came and went")
	}
}

// settles waits until calls, many after each other, go to one variant.
func settles(t *testing.T, c *callers, variant string) {
	t.Helper()
	seen := map[string]int{}
	donatest.Until(t, "all calls go to "+variant, func() bool {
		for v, n := range c.since() {
			seen[v] += n
		}
		if len(seen) > 1 {
			seen = map[string]int{}
		}
		return seen[variant] >= 50
	})
}

// A canary of which one endpoint fails is rolled back, and no caller has seen it:
// retries went to its other endpoint. Endpoints of the stable variant die meanwhile
// without a word.
func TestFollowsRollback(t *testing.T) {
	h := donatest.Start(t)
	services := h.Dial(t)
	running := map[string][]*instance{}
	for range 3 {
		running["v1"] = append(running["v1"], start(t, services, "v1"))
	}
	good, bad := start(t, services, "v2"), start(t, services, "v2")
	failure := status.Error(codes.Unavailable, "broken")
	bad.fail.Store(&failure)
	startRollout(t, h, "v2", "v1")

	client := h.Dial(t)
	api := connect(t, client, donagrpc.Config{ServiceConfig: retries})
	c := call(t.Context(), api, 4)
	ctx, stop := context.WithCancel(t.Context())
	ended, changes := churn(ctx, t, services, client, running, func(i *instance) { i.die(t) })
	reaches(t, h, donav1.RolloutStatus_STATE_ROLLED_BACK)
	settles(t, c, "v1")
	stop()
	<-ended
	c.end(t)
	t.Logf("%d endpoints came and went; the canary answered %d and failed %d", *changes, good.calls.Load(), bad.calls.Load())
	if *changes == 0 || bad.calls.Load() == 0 || good.calls.Load() == 0 {
		t.Error("nothing was put to the test")
	}
}
