package badplugins

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// The plugins of this file are what a good author might write by mistake: each
// breaks one promise, and one check of plugins/plugintest finds it.

// fair is a measurement of what the host counted.
func fair(_ context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	w := req.GetCanary()
	if w.GetRequests() == 0 || w.GetErrors() > w.GetRequests() {
		return nil, nil
	}
	return &pluginv1.EvaluateReply{Value: float64(w.GetErrors()) / float64(w.GetRequests()), HasValue: true}, nil
}

// author serves an analysis of this file.
func author(evaluate plugin.AnalysisFunc) func(self) {
	return func(s self) { plugin.Serve(plugin.Analysis(s.id.Name, "0.1.0", evaluate)) }
}

// fickle describes itself differently each time.
func fickle(s self) {
	(&rawServer{self: s, describe: func(d *pluginv1.DescribeReply) { d.Summary = fmt.Sprint("asked at ", time.Now().UnixNano()) }}).serve()
}

// configureOnce refuses an instance that it knows.
func configureOnce(s self) {
	var known sync.Map
	(&rawServer{self: s, configure: func(_ context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) {
		if _, again := known.LoadOrStore(req.GetInstanceId(), true); again && !req.GetValidateOnly() {
			return nil, status.Error(codes.AlreadyExists, "this instance exists")
		}
		return &pluginv1.ConfigureReply{}, nil
	}}).serve()
}

// deaf waits for something else than its context.
func deaf(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	time.Sleep(30 * time.Second)
	return fair(ctx, req)
}

// crowded says that it takes 64 calls at once, and panics when there are many: what
// they share is not guarded.
func crowded() plugin.AnalysisFunc {
	var inside atomic.Int32
	return func(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		defer inside.Add(-1)
		if inside.Add(1) > 4 {
			panic("concurrent map writes")
		}
		time.Sleep(5 * time.Millisecond)
		return fair(ctx, req)
	}
}

// trusting takes for granted that a request has what it has with today's host.
func trusting(_ context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	last := req.Canary.Counts[len(req.Canary.Counts)-1] // its mistake
	return &pluginv1.EvaluateReply{Value: float64(last), HasValue: true}, nil
}

// fragile is trusting in a goroutine of its own, where nobody recovers.
func fragile(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	answer := make(chan *pluginv1.EvaluateReply, 1)
	go func() {
		reply, _ := trusting(ctx, req)
		answer <- reply
	}()
	return <-answer, nil
}

// parent starts a child that outlives it.
func parent() plugin.AnalysisFunc {
	var once sync.Once
	return func(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		once.Do(func() { _, _ = child(nil) })
		return fair(ctx, req)
	}
}

// chatty explains itself to people on stderr.
func chatty(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	fmt.Fprintln(os.Stderr, "measuring", req.GetService())
	return fair(ctx, req)
}

// leaky keeps a file, a goroutine and some memory of each call.
func leaky() plugin.AnalysisFunc {
	var mu sync.Mutex
	var kept [][]byte
	return func(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		mu.Lock()
		kept = append(kept, []byte(strings.Repeat("k", 16<<10)))
		n := len(kept)
		mu.Unlock()
		if n%50 == 0 { // there are not that many descriptors
			if f, err := os.Open(os.DevNull); err == nil {
				go func() { forever(); _ = f.Close() }()
			}
		}
		return fair(ctx, req)
	}
}

// passes finds every canary good.
func passes(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS, Detail: "looks good"}, nil
}

// dice draws its weights anew each time.
func dice(s self) {
	plugin.Serve(plugin.Strategy(s.id.Name, "0.1.0", func(_ context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
		p := &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_RANDOM, Weights: map[string]uint32{}}
		for _, c := range req.GetCandidates() {
			p.Weights[c.GetId()] = 1 + rand.Uint32N(1000)
		}
		return &pluginv1.CompileReply{Plan: p}, nil
	}))
}

// optimist takes silence for health.
func optimist(s self) {
	plugin.Serve(plugin.Probe(s.id.Name, "0.1.0", func(ctx context.Context, _ *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
		<-ctx.Done()
		return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS, Latency: durationpb.New(time.Millisecond)}, nil
	}))
}
