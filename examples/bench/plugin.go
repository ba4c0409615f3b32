package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// The plugin of this job answers with what it always answers.
func answer(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{Value: 0.25, HasValue: true, Evidence: make([]byte, 100)}, nil
}

// tuned is the same with a configuration, so that it has instances.
type tuned struct{}

type tuning struct {
	Word string `json:"word"`
}

func (tuned) Configure(context.Context, tuning) error { return nil }

func (tuned) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return answer(ctx, req)
}

func compile(_ context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	weights := make(map[string]uint32, len(req.GetCandidates()))
	for _, c := range req.GetCandidates() {
		weights[c.GetId()] = c.GetWeight()
	}
	return &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN, Weights: weights}}, nil
}

func benchPlugins() []*plugin.Plugin {
	list := []*plugin.Plugin{
		plugin.Analysis("bench", "0.1.0", answer),
		plugin.AnalysisOf("tuned", "0.1.0", tuned{}),
		plugin.Strategy("bench", "0.1.0", compile),
	}
	for i := range crowd {
		list = append(list, plugin.Analysis(fmt.Sprintf("crowd-%d", i), "0.1.0", answer))
	}
	for i := range processes {
		list = append(list, plugin.Analysis(fmt.Sprintf("call-%d", i), "0.1.0", answer))
	}
	return list
}

const (
	callTurn = 400  // calls a turn
	batch    = 64   // items in one message
	crowd    = 10   // plugins started at once
	many     = 1000 // instances in one process
)

func pluginJob() ([]row, error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	rows, err := callRows(ctx, dir)
	if err != nil {
		return nil, err
	}
	host, err := startHost(ctx, filepath.Join(dir, "run"))
	if err != nil {
		return nil, err
	}
	defer host.Stop(ctx)
	for _, part := range []func(context.Context, *plugins.Host) ([]row, error){batchRows, instanceRows, startRows} {
		more, err := part(ctx, host)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// startHost runs a host of the plugins of this job.
func startHost(ctx context.Context, dir string) (*plugins.Host, error) {
	host, err := plugins.New(plugins.Options{Builtins: benchPlugins(), RunDir: dir})
	if err != nil {
		return nil, err
	}
	return host, host.Start(ctx)
}

// batchRows compares what one item of a large message costs with a call of its
// own.
func batchRows(ctx context.Context, host *plugins.Host) ([]row, error) {
	if err := host.Await(ctx, plugins.KindStrategy, "bench"); err != nil {
		return nil, err
	}
	facade := strategy.New(host)
	compileOf := func(n int) func() error {
		req := &pluginv1.CompileRequest{Scope: "service/checkout"}
		for i := range n {
			req.Candidates = append(req.Candidates, &pluginv1.Candidate{Id: fmt.Sprintf("10.0.0.%d:8080", i), Group: "zone-a", Weight: 100, Capacity: 100})
		}
		return func() error {
			_, err := facade.Compile(ctx, "bench", req)
			return err
		}
	}
	one, all := compileOf(1), compileOf(batch)
	for range 200 {
		if err := errors.Join(one(), all()); err != nil {
			return nil, err
		}
	}
	m, err := turns(repeats, p50(callTurn, one), p50(callTurn, all))
	if err != nil {
		return nil, err
	}
	return []row{{fmt.Sprintf("one of %d candidates in one message", batch), m[1] / batch, m[0], "µs", "a call for one candidate", 0.05, false, nil}}, nil
}

// instanceRows compares calls of many instances in one process with calls of
// one, and what an instance costs in memory.
func instanceRows(ctx context.Context, host *plugins.Host) ([]row, error) {
	if err := host.Await(ctx, plugins.KindAnalysis, "tuned"); err != nil {
		return nil, err
	}
	facade := analysis.New(host)
	evaluate := func(instance int) error {
		req := request()
		config, err := structpb.NewStruct(map[string]any{"word": fmt.Sprint(instance)})
		if err != nil {
			return err
		}
		req.Query.Config = config
		_, err = facade.Evaluate(ctx, "tuned", req)
		return err
	}
	warm := func(n int) error {
		for range 2 {
			for i := range n {
				if err := evaluate(i); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := warm(1); err != nil {
		return nil, err
	}
	before, err := pss(host, "tuned")
	if err != nil {
		return nil, err
	}
	if err := warm(many); err != nil {
		return nil, err
	}
	after, err := pss(host, "tuned")
	if err != nil {
		return nil, err
	}
	s, err := host.Status(plugins.KindAnalysis, "tuned")
	if err != nil {
		return nil, err
	}
	if s.GetInstances() != many || s.GetStarts() != 1 {
		return nil, fmt.Errorf("%d instances in %d processes: expected %d in one", s.GetInstances(), s.GetStarts(), many)
	}
	next := 0
	m, err := turns(repeats,
		p50(callTurn, func() error { next++; return evaluate(next % many) }),
		p50(callTurn, func() error { return evaluate(0) }))
	if err != nil {
		return nil, err
	}
	return []row{
		{fmt.Sprintf("p50 over %d configured instances of one process", many), m[0], m[1], "µs", "over one instance", 0, false, nil},
		{fmt.Sprintf("memory of the process (PSS) with %d instances", many), after, before, "MiB", "with one", 0, false, nil},
	}, nil
}

// startRows measures from asking for a plugin to its first possible call.
func startRows(ctx context.Context, host *plugins.Host) ([]row, error) {
	if err := host.Await(ctx, plugins.KindAnalysis, "bench"); err != nil {
		return nil, err
	}
	name := func(i int) string { return fmt.Sprintf("crowd-%d", i) }
	begin := time.Now()
	for i := range crowd {
		if err := host.Ensure(plugins.KindAnalysis, name(i)); err != nil {
			return nil, err
		}
	}
	memory := 0.0
	for i := range crowd {
		if err := host.Await(ctx, plugins.KindAnalysis, name(i)); err != nil {
			return nil, err
		}
	}
	together := float64(time.Since(begin).Microseconds()) / 1000
	for i := range crowd {
		one, err := pss(host, name(i))
		if err != nil {
			return nil, err
		}
		memory += one / crowd
	}
	m, err := turns(repeats,
		func() (float64, error) {
			begin := time.Now()
			err := host.Reload(ctx, plugins.KindAnalysis, "bench")
			return float64(time.Since(begin).Microseconds()) / 1000, err
		},
		func() (float64, error) {
			begin := time.Now()
			call, stop, err := bareGoPlugin()
			if err != nil {
				return 0, err
			}
			defer stop()
			err = call()
			return float64(time.Since(begin).Microseconds()) / 1000, err
		})
	if err != nil {
		return nil, err
	}
	return []row{
		{"start: process, handshake, Describe, first health", m[0], m[1], "ms", "bare go-plugin: process, handshake, first call", 0, false, nil},
		{fmt.Sprintf("start of %d plugins at once, until the last is ready", crowd), together, 0, "ms", "", 0, false, nil},
		{fmt.Sprintf("memory of one of %d plugins of one program (PSS)", crowd), memory, 0, "MiB", "", 0, false, nil},
	}, nil
}

// pss is the memory of a plugin's process in MiB, with its part of what it
// shares with others.
func pss(host *plugins.Host, name string) (float64, error) {
	s, err := host.Status(plugins.KindAnalysis, name)
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.GetPid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("the kernel does not tell the memory of process %d", s.GetPid())
}

// p50 is the median time of n calls in µs.
func p50(n int, call func() error) func() (float64, error) {
	return func() (float64, error) {
		took := make([]float64, 0, n)
		for range n {
			begin := time.Now()
			if err := call(); err != nil {
				return 0, err
			}
			took = append(took, float64(time.Since(begin).Nanoseconds())/1000)
		}
		slices.Sort(took)
		return took[len(took)/2], nil
	}
}
