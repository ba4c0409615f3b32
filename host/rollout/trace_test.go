package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"

	"github.com/dodona-project/dodona/builtin/analysis/sequential"
	"github.com/dodona-project/dodona/host/rollout"
)

// TestTraces drives a controller through whole rollouts in virtual time. Each
// file is a conversation: a command, then what it brought: the audit entries it
// added, and where the rollout, the weights and the quarantine are then.
//
//	start [canary=v2] [stable=v1] [steps=25,100] [dwell=10s] [max=5] [min=20] [query=name:max]... [sequential=name] [supersede] [retry]
//	endpoints VARIANT N        live endpoints from now on
//	report VARIANT N ERRORS [config=now|old|none]
//	answer NAME VALUE|pass|breach|missing|error [value=V] [retry=30s]   what the plugin says from now on
//	block / unblock            evaluations hang, or go on
//	pass DURATION              time goes by
//	op VERB                    an operator's control request
//	lift VARIANT               LIFT_QUARANTINE
//	restart                    the host stops and starts again
//	status
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTrace(t)
				defer tr.stop()
				datadriven.RunTest(t, file, tr.run)
			})
		})
	}
}

type trace struct {
	*world
	cancel context.CancelFunc
	done   chan struct{}
	seen   int // audit entries printed
}

func newTrace(t *testing.T) *trace {
	tr := &trace{world: newWorld(t, newMemStore(time.Now), time.Now)}
	tr.analyzer.check[sequential.Name], tr.analyzer.own[sequential.Name] = nil, true
	tr.analyzer.real = map[string]func(*pluginv1.EvaluateRequest) rollout.Measurement{sequential.Name: judgeSequentially}
	tr.run1()
	return tr
}

// judgeSequentially is the built-in plugin without its process.
func judgeSequentially(req *pluginv1.EvaluateRequest) rollout.Measurement {
	r := sequential.Evaluate(sequential.Config{Limit: req.GetQuery().GetConfig().GetFields()["limit"].GetNumberValue()}, req)
	m := rollout.Measurement{Verdict: rollout.Verdict(r.Verdict), Detail: r.Detail, Evidence: r.Evidence, State: r.State, Plugin: sequential.Name, Version: "0.1.0"}
	if m.Verdict != rollout.Missing {
		m.Value, m.HasValue = r.Value, r.HasValue
	}
	return m
}

func (tr *trace) run1() {
	ctx, cancel := context.WithCancel(context.Background())
	tr.cancel, tr.done = cancel, make(chan struct{})
	go func(c *rollout.Controller) {
		defer close(tr.done)
		if err := c.Run(ctx); err != nil {
			tr.t.Error(err)
		}
	}(tr.c)
	synctest.Wait()
}

func (tr *trace) stop() {
	tr.cancel()
	<-tr.done
}

func (tr *trace) run(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].String() }
	var out strings.Builder
	switch d.Cmd {
	case "start":
		if err := tr.c.Start(tr.ctx, "local:dev", startOf(t, d)); err != nil {
			fmt.Fprintf(&out, "refused: %v\n", err)
		}
	case "endpoints":
		tr.endpoints(arg(0), uint32(atoi(t, arg(1))))
		return ""
	case "report":
		_, version := tr.weights()
		if d.HasArg("config") {
			var which string
			d.ScanArgs(t, "config", &which)
			version = map[string]uint64{"now": version, "old": version - 1, "none": 0}[which]
		}
		tr.report(arg(0), uint32(atoi(t, arg(1))), uint32(atoi(t, arg(2))), version)
		return ""
	case "answer":
		tr.answer(t, d)
		return ""
	case "block":
		tr.analyzer.mu.Lock()
		tr.analyzer.block = make(chan struct{})
		tr.analyzer.mu.Unlock()
		return ""
	case "unblock":
		tr.analyzer.mu.Lock()
		close(tr.analyzer.block)
		tr.analyzer.block = nil
		tr.analyzer.mu.Unlock()
	case "pass":
		wait, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(wait)
	case "op":
		if _, err := tr.control(donav1.ControlRolloutRequest_Action(donav1.ControlRolloutRequest_Action_value["ACTION_"+arg(0)])); err != nil {
			fmt.Fprintf(&out, "refused: %v\n", err)
		}
	case "lift":
		if _, err := tr.c.Control(tr.ctx, "local:dev", &donav1.ControlRolloutRequest{
			Service: svc, Action: donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE, Variant: arg(0),
		}); err != nil {
			fmt.Fprintf(&out, "refused: %v\n", err)
		}
	case "restart":
		tr.stop()
		tr.c = tr.controller("h1")
		tr.run1()
	case "status":
		synctest.Wait()
		return tr.printStatus()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	synctest.Wait()
	tr.printEntries(&out)
	tr.printState(&out)
	return tr.mask(out.String())
}

func (tr *trace) answer(t *testing.T, d *datadriven.TestData) {
	name, what := d.CmdArgs[0].String(), d.CmdArgs[1].String()
	m := rollout.Measurement{Plugin: "prometheus", Version: "1.0.0", Evidence: []byte(`{"raw":"` + what + `"}`)}
	var err error
	switch what {
	case "pass":
		m.Verdict = rollout.Pass
	case "breach":
		m.Verdict, m.Detail = rollout.Breach, "the plugin says so"
	case "missing":
		m.Verdict, m.Detail = rollout.Missing, "no series"
	case "error":
		err = errors.New("the plugin crashed")
	default:
		v, perr := strconv.ParseFloat(what, 64)
		if perr != nil {
			t.Fatal(perr)
		}
		m.Value, m.HasValue = v, true
	}
	if d.HasArg("value") {
		var value string
		d.ScanArgs(t, "value", &value)
		if m.Value, err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatal(err)
		}
		m.HasValue = true
	}
	if d.HasArg("retry") {
		var retry string
		d.ScanArgs(t, "retry", &retry)
		if m.RetryAfter, err = time.ParseDuration(retry); err != nil {
			t.Fatal(err)
		}
	}
	tr.analyzer.mu.Lock()
	tr.analyzer.answers[name], tr.analyzer.errs[name] = m, err
	tr.analyzer.mu.Unlock()
}

func (tr *trace) printEntries(out *strings.Builder) {
	entries := tr.chain()
	for _, e := range entries[tr.seen:] {
		fmt.Fprintf(out, "audit %s", e.Kind)
		for _, key := range []string{"canary", "steps", "variant", "cause", "step", "from_percent", "percent", "requests", "errors", "verified", "check", "value", "bound", "missing", "reason"} {
			if v, ok := e.Detail[key]; ok {
				v = tr.mask(v)
				if strings.ContainsAny(v, " ") {
					v = "«" + v + "»"
				}
				fmt.Fprintf(out, " %s=%s", key, v)
			}
		}
		for _, ev := range e.Evidence {
			fmt.Fprintf(out, " +%s", ev.Kind)
		}
		fmt.Fprintln(out)
	}
	tr.seen = len(entries)
}

// mask takes the random id out of a text.
func (tr *trace) mask(s string) string {
	for _, word := range strings.Fields(s) {
		if len(word) == 25 && word[0] == 'r' {
			s = strings.ReplaceAll(s, word, "ID")
		}
	}
	return s
}

func (tr *trace) printState(out *strings.Builder) {
	st := tr.status()
	if st == nil {
		fmt.Fprintln(out, "no rollout")
		return
	}
	weights, _ := tr.weights()
	fmt.Fprintf(out, "%s step=%d dwell=%s weights: %s", strings.TrimPrefix(st.State.String(), "STATE_"), st.StepIndex,
		(time.Duration(st.DwellMs) * time.Millisecond).Round(10*time.Millisecond), weights)
	if q := tr.quarantined(); len(q) > 0 {
		fmt.Fprintf(out, " quarantined: %s", strings.Join(q, ","))
	}
	fmt.Fprintln(out)
}

func (tr *trace) printStatus() string {
	var out strings.Builder
	st := tr.status()
	fmt.Fprintf(&out, "%s: %s\n", strings.TrimPrefix(st.State.String(), "STATE_"), tr.mask(st.Reason))
	fmt.Fprintf(&out, "step %d of %v at %d %%, requests %d, errors %d, needed %d\n", st.StepIndex, st.Steps, st.StepPercent, st.CanaryRequests, st.CanaryErrors, st.RequestsNeeded)
	for _, a := range st.Analysis {
		fmt.Fprintf(&out, "  %s (%s) %s %v: %s", a.Name, a.Provider, strings.TrimPrefix(a.Verdict.String(), "VERDICT_"), a.Value, a.Detail)
		if len(a.EvidenceDigest) > 0 {
			fmt.Fprintf(&out, " [%x…]", a.EvidenceDigest[:4])
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

func startOf(t *testing.T, d *datadriven.TestData) *donav1.StartRolloutRequest {
	req := request()
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "canary":
			req.CanaryVariant = a.Vals[0]
		case "stable":
			req.StableVariant = a.Vals[0]
		case "steps":
			req.Steps = nil
			for _, s := range a.Vals {
				req.Steps = append(req.Steps, uint32(atoi(t, s)))
			}
		case "dwell":
			dwell, err := time.ParseDuration(a.Vals[0])
			if err != nil {
				t.Fatal(err)
			}
			req.StepSeconds = uint32(dwell.Seconds())
		case "max":
			req.MaxErrorPercent = uint32(atoi(t, a.Vals[0]))
		case "min":
			req.MinRequests = uint32(atoi(t, a.Vals[0]))
		case "query":
			name, bound, _ := strings.Cut(a.Vals[0], ":")
			q := latency()
			q.Name = name
			var err error
			if q.MaxValue, err = strconv.ParseFloat(bound, 64); err != nil {
				t.Fatal(err)
			}
			req.Analysis = append(req.Analysis, q)
		case "sequential":
			req.Analysis = append(req.Analysis, &donav1.AnalysisQuery{Name: a.Vals[0], Provider: sequential.Name, NoMaxValue: true})
		case "supersede":
			req.Supersede = true
		case "retry":
			req.Retry = true
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	return req
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > math.MaxInt32 {
		t.Fatalf("%q is no count", s)
	}
	return n
}
