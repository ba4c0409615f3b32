package host_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// TestStrategies sets each strategy as an operator does and looks at what an
// application's picks come to: the policy, the plugin's process, its plan, the
// snapshot and the client that executes it.
func TestStrategies(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	client, err := dona.Dial(ctx, r.grpc, dona.WithoutCache())
	check(t, err)
	defer func() { _ = client.Close() }()
	own := map[string]*dona.Registration{}
	for _, id := range []string{"a", "b", "c"} {
		own[id], err = client.Register(ctx, dona.OwnEndpoint{Service: "web", ID: id, Address: "127.0.0.1:80", Variant: "v1", Region: "eu", Zone: "zone-" + id})
		check(t, err)
	}
	s := &shop{t: t, ctx: ctx, api: donav1.NewControlPlaneClient(conn), svc: client.Service("web")}
	check(t, s.svc.Ready(ctx))
	until(t, "three endpoints", func() bool { return s.svc.Status().Endpoints == 3 })

	t.Run("round-robin", func(t *testing.T) {
		s.use(t, "round-robin", nil)
		s.everybody(t, s.pick(t, 300, nil))
	})
	t.Run("random", func(t *testing.T) {
		s.use(t, "random", nil)
		s.everybody(t, s.pick(t, 300, nil))
	})
	t.Run("least-connections", func(t *testing.T) {
		s.use(t, "least-connections", map[string]any{"choices": 32})
		// Calls to a do not end: the others, where none stays, always have fewer.
		var stay []*dona.Pick
		picks := s.pick(t, 300, func(id string, p *dona.Pick) {
			if id == "a" {
				stay = append(stay, p)
				return
			}
			p.Done(dona.Outcome{Success: true})
		})
		for _, p := range stay {
			p.Cancel()
		}
		if picks["a"] == 0 || picks["a"] > 3 {
			t.Errorf("calls to a do not end: %v", picks)
		}
	})
	t.Run("peak-ewma", func(t *testing.T) {
		s.use(t, "peak-ewma", map[string]any{"choices": 32})
		picks := s.pick(t, 300, func(id string, p *dona.Pick) {
			took := 2 * time.Second
			if id == "b" {
				took = time.Millisecond
			}
			p.Done(dona.Outcome{Success: true, Latency: took})
		})
		if picks["b"] < 250 {
			t.Errorf("b is the fastest: %v", picks)
		}
	})
	t.Run("consistent-hash", func(t *testing.T) {
		s.use(t, "consistent-hash", map[string]any{"source": "attribute", "name": "cart", "max_load_percent": 110})
		places := map[string]bool{}
		for cart := range int64(100) {
			req := dona.Request{Attributes: []dona.Attribute{dona.Int("cart", cart)}}
			at := map[uint64]string{} // by version: weights of endpoints that are new still move
			for range 5 {
				p, err := s.svc.Pick(ctx, req)
				check(t, err)
				p.Cancel()
				before := at[p.Decision.ConfigVersion]
				if before != "" && before != p.Endpoint.ID {
					t.Errorf("cart %d moves from %s to %s", cart, before, p.Endpoint.ID)
				}
				at[p.Decision.ConfigVersion] = p.Endpoint.ID
				places[p.Endpoint.ID] = true
			}
		}
		if len(places) != 3 {
			t.Errorf("100 carts are at %v", slices.Sorted(maps.Keys(places)))
		}
		// A cart whose calls stay has as many of them at one endpoint as may be there.
		req := dona.Request{Attributes: []dona.Attribute{dona.String("cart", "hot")}}
		held := map[string]int{}
		for range 60 {
			p, err := s.svc.Pick(ctx, req)
			check(t, err)
			held[p.Endpoint.ID]++
			defer p.Cancel()
		}
		s.everybody(t, held)
	})
	t.Run("priority", func(t *testing.T) {
		s.use(t, "priority", map[string]any{"tiers": []any{[]any{"zone-b"}, []any{"zone-a"}}}) // zone-c comes last
		for _, step := range []struct {
			tried []string
			want  string
		}{{nil, "b"}, {[]string{"b"}, "a"}, {[]string{"a", "b"}, "c"}, {[]string{"a"}, "b"}} {
			for range 20 {
				p, err := s.svc.Pick(ctx, dona.Request{Tried: step.tried})
				check(t, err)
				p.Cancel()
				if p.Endpoint.ID != step.want {
					t.Fatalf("tried %v: picked %s, want %s", step.tried, p.Endpoint.ID, step.want)
				}
			}
		}
		check(t, own["b"].Close(ctx))
		until(t, "the next tier", func() bool {
			p, err := s.svc.Pick(ctx, dona.Request{})
			check(t, err)
			p.Cancel()
			return p.Endpoint.ID == "a"
		})
	})

	for _, bad := range []struct {
		strategy string
		config   map[string]any
		field    string
	}{
		{"consistent-hash", map[string]any{"max_load_percent": 100}, "strategy_config/max_load_percent"},
		{"consistent-hash", map[string]any{"source": "attribute"}, "name is empty"},
		{"priority", map[string]any{"tiers": []any{[]any{"x"}, []any{"x"}}}, "tiers[1][0]"},
		{"random", map[string]any{"seed": 1}, "takes no configuration"},
	} {
		_, err := s.api.SetServicePolicy(ctx, policy(t, bad.strategy, bad.config))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), bad.field) {
			t.Errorf("%s %v: %v, want %q", bad.strategy, bad.config, err, bad.field)
		}
	}
	st, err := s.api.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
	check(t, err)
	if st.GetPolicy().GetStrategy() != "priority" {
		t.Errorf("a refused policy changed it: %v", st.GetPolicy())
	}
}

// shop is an application and an operator of the service web.
type shop struct {
	t   *testing.T
	ctx context.Context
	api donav1.ControlPlaneClient
	svc *dona.Service
}

func policy(t *testing.T, strategy string, config map[string]any) *donav1.SetServicePolicyRequest {
	t.Helper()
	req := &donav1.SetServicePolicyRequest{Service: "web", Strategy: strategy}
	if config != nil {
		c, err := structpb.NewStruct(config)
		check(t, err)
		req.StrategyConfig = c
	}
	return req
}

// use sets a strategy and waits until the client has its plan. A plugin that has
// never run is started by the first question, which may be refused until then.
func (s *shop) use(t *testing.T, strategy string, config map[string]any) {
	t.Helper()
	until(t, "the policy to be taken", func() bool {
		_, err := s.api.SetServicePolicy(s.ctx, policy(t, strategy, config))
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	until(t, "the plan of "+strategy, func() bool {
		trace, err := s.svc.Explain(dona.Request{})
		check(t, err)
		pick := trace.Stages[len(trace.Stages)-1]
		return strings.HasSuffix(fmt.Sprint(pick.Detail), "plan of strategy "+strategy+"]")
	})
}

// pick makes picks and says how many each endpoint got; end ends each of them, nil
// as a call that went well.
func (s *shop) pick(t *testing.T, n int, end func(id string, p *dona.Pick)) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		p, err := s.svc.Pick(s.ctx, dona.Request{})
		check(t, err)
		got[p.Endpoint.ID]++
		if end == nil {
			p.Done(dona.Outcome{Success: true})
		} else {
			end(p.Endpoint.ID, &p)
		}
	}
	return got
}

// everybody demands picks for each endpoint. How many depends on their weights, which
// move while they are new.
func (s *shop) everybody(t *testing.T, got map[string]int) {
	t.Helper()
	total := got["a"] + got["b"] + got["c"]
	for _, id := range []string{"a", "b", "c"} {
		if got[id] < total/15 {
			t.Errorf("%s got %d of %v", id, got[id], got)
		}
	}
}
