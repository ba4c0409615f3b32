package sequential_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"

	"github.com/dodona-project/dodona/builtin/analysis/sequential"
)

const (
	pass    = donav1.Verdict_VERDICT_PASS
	breach  = donav1.Verdict_VERDICT_BREACH
	missing = donav1.Verdict_VERDICT_MISSING
)

// look is one request for a verdict: the counts of a step, and what was kept.
func look(step uint32, requests, errors uint64, state []byte) *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{
		RolloutId: "r1", Service: "checkout", StepIndex: step, StepStartedAt: timestamppb.New(time.Unix(1_700_000_000+int64(step), 0)),
		Canary: &pluginv1.Window{Requests: requests, Errors: errors}, State: state,
	}
}

// evaluate judges and checks what holds for every answer.
func evaluate(t testing.TB, c sequential.Config, req *pluginv1.EvaluateRequest) *pluginv1.EvaluateReply {
	t.Helper()
	before := proto.CloneOf(req)
	r := sequential.Evaluate(c, req)
	if !proto.Equal(req, before) {
		t.Fatal("the request was changed")
	}
	if again := sequential.Evaluate(c, req); !proto.Equal(r, again) {
		t.Fatalf("the same question, another answer: %v and %v", r, again)
	}
	if r.Verdict != pass && r.Verdict != breach && r.Verdict != missing {
		t.Fatalf("verdict %s: it gives verdicts of its own", r.Verdict)
	}
	if r.HasValue && (math.IsNaN(r.Value) || r.Value < 0 || r.Value > 100) || r.Detail == "" || len(r.Detail) > 500 || strings.ContainsAny(r.Detail, "\n\r") || len(r.State) > 1<<10 {
		t.Fatalf("answer %v", r)
	}
	if len(r.Evidence) > 0 && !json.Valid(r.Evidence) {
		t.Fatalf("evidence %q", r.Evidence)
	}
	return r
}

func TestVerdicts(t *testing.T) {
	five := sequential.Config{Limit: 5}
	for _, c := range []struct {
		name             string
		config           sequential.Config
		requests, errors uint64
		want             donav1.Verdict
		detail           string
	}{
		{"nothing yet", five, 0, 0, missing, "undecided: 0 of 0 requests of this step failed, about 130 more requests"},
		{"half way", five, 60, 0, missing, "failed, about 65 more requests at this rate show that it is below 5 %"},
		{"flawless", five, 130, 0, pass, "the error rate is below 5 %: 0 of 130 requests of this step failed"},
		{"two errors later", five, 130, 2, missing, "more requests"},
		{"in the long run", five, 3000, 100, pass, "100 of 3000"},
		{"at the limit", five, 2000, 100, missing, "not below 5 %, or too near to it"},
		{"a little above", five, 2000, 105, missing, "or too near"},
		{"above", five, 270, 30, breach, "the error rate is above 5 %: 30 of 270 requests of this step failed, 30 of 270 since the rollout began"},
		{"one error is no evidence", five, 1, 1, missing, "not below 5 %"},
		{"an outage", five, 4, 4, breach, "4 of 4"},
		{"a stricter alpha", sequential.Config{Limit: 5, Alpha: 1e-6}, 4, 4, missing, ""},
		{"a lax alpha", sequential.Config{Limit: 5, Alpha: 0.5}, 1, 1, breach, ""},
		{"a stricter beta", sequential.Config{Limit: 5, Beta: 1e-6}, 130, 0, missing, ""},
		{"a lax beta", sequential.Config{Limit: 5, Beta: 0.5}, 30, 0, pass, ""},
		{"a tiny limit", sequential.Config{Limit: 0.01}, 20_000, 0, missing, "about"},
		{"a tiny limit and many requests", sequential.Config{Limit: 0.01}, 80_000, 0, pass, ""},
		{"a huge limit", sequential.Config{Limit: 99}, 1000, 1000, breach, ""},
		{"a huge limit holds", sequential.Config{Limit: 99}, 20, 10, pass, ""},
		{"more than a lifetime's", five, 1 << 53, 1 << 53 / 50, pass, ""},
		{"all of them failed", five, 1 << 53, 1 << 53, breach, ""},
		{"contradictory", five, 10, 11, missing, "contradictory: 11 errors in 10 requests"},
		{"more than anybody counts", five, 1<<53 + 1, 0, missing, "contradictory"},
		{"no limit", sequential.Config{}, 1000, 0, missing, "config: limit is 0"},
		{"limit 100", sequential.Config{Limit: 100}, 1000, 0, missing, "config: "},
		{"NaN", sequential.Config{Limit: math.NaN()}, 1000, 0, missing, "config: "},
		{"negative alpha", sequential.Config{Limit: 5, Alpha: -1}, 1000, 0, missing, "config: "},
		{"infinite beta", sequential.Config{Limit: 5, Beta: math.Inf(1)}, 1000, 0, missing, "config: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := evaluate(t, c.config, look(0, c.requests, c.errors, nil))
			if r.Verdict != c.want || !strings.Contains(r.Detail, c.detail) {
				t.Errorf("%s %q, want %s %q", r.Verdict, r.Detail, c.want, c.detail)
			}
		})
	}
	if r := evaluate(t, five, &pluginv1.EvaluateRequest{}); r.Verdict != missing {
		t.Errorf("no window: %v", r)
	}
}

// What it says of the requests to come is what happens then.
func TestAboutMoreRequests(t *testing.T) {
	for _, limit := range []float64{0.5, 2, 5, 30} {
		r := evaluate(t, sequential.Config{Limit: limit}, look(0, 0, 0, nil))
		var more uint64
		if _, err := fmt.Sscanf(r.Detail[strings.Index(r.Detail, "about"):], "about %d more", &more); err != nil {
			t.Fatalf("%q: %v", r.Detail, err)
		}
		if r := evaluate(t, sequential.Config{Limit: limit}, look(0, more, 0, nil)); r.Verdict != pass {
			t.Errorf("limit %v: after the %d requests it wanted: %s", limit, more, r.Detail)
		}
		if r := evaluate(t, sequential.Config{Limit: limit}, look(0, more*9/10, 0, nil)); r.Verdict != missing {
			t.Errorf("limit %v: after nine tenths of %d requests: %s", limit, more, r.Detail)
		}
	}
}

// A pass is judged by its step, a breach by its step and those before.
func TestSteps(t *testing.T) {
	c := sequential.Config{Limit: 5}
	var state []byte
	see := func(step uint32, requests, errors uint64, want donav1.Verdict, detail string) {
		t.Helper()
		r := evaluate(t, c, look(step, requests, errors, state))
		if r.Verdict != want || !strings.Contains(r.Detail, detail) {
			t.Fatalf("step %d, %d of %d: %s %q, want %s %q", step, errors, requests, r.Verdict, r.Detail, want, detail)
		}
		state = r.State
	}
	alone := func(requests, errors uint64) donav1.Verdict {
		return evaluate(t, c, look(0, requests, errors, nil)).Verdict
	}
	// A little too much in each step is a breach when it goes on.
	if v := alone(100, 11); v != missing {
		t.Fatalf("11 of 100 alone: %s", v)
	}
	see(0, 100, 11, missing, "")
	see(0, 100, 11, missing, "") // a second look counts nothing twice
	see(1, 0, 0, missing, "0 of 0 requests of this step")
	see(1, 100, 11, missing, "")
	see(2, 60, 5, missing, "")
	see(2, 100, 11, breach, "11 of 100 requests of this step failed, 33 of 300 since the rollout began")
	see(2, 100, 11, breach, "33 of 300")

	// Many good requests hide no outage that begins with a later step.
	state = nil
	see(0, 100_000, 0, pass, "")
	see(1, 100_000, 0, pass, "")
	see(2, 0, 0, missing, "") // the passes were those of other steps
	see(2, 6, 6, breach, "6 of 6 requests of this step failed, 6 of 200006 since")
}

// As many steps as a rollout can have fit into the state that a host keeps.
func TestManySteps(t *testing.T) {
	var state []byte
	for step := range uint32(50) {
		r := evaluate(t, sequential.Config{Limit: 5}, look(step, 200, 0, state))
		if r.Verdict != pass || len(r.State) > 1<<10 {
			t.Fatalf("step %d: %s, %d bytes of state", step, r.Detail, len(r.State))
		}
		state = r.State
	}
	if r := evaluate(t, sequential.Config{Limit: 5}, look(50, 200, 0, state)); r.Verdict != missing || !strings.HasPrefix(r.Detail, "state: ") {
		t.Fatalf("a step too many: %s", r.Detail)
	}
}

// State that does not hold is told, passes nothing, and is mended by the next
// look.
func TestDamagedState(t *testing.T) {
	c := sequential.Config{Limit: 5}
	// The state of a canary that would pass at once.
	first := evaluate(t, c, look(0, 500, 0, nil)).State
	good := evaluate(t, c, look(1, 500, 0, first)).State
	if r := evaluate(t, c, look(1, 500, 0, good)); r.Verdict != pass {
		t.Fatal(r)
	}
	sealed := func(change func(b []byte)) []byte {
		b := slices.Clone(good)
		change(b)
		n := len(b) - 4
		binary.BigEndian.PutUint32(b[n:], crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)))
		return b
	}
	bad := map[string][]byte{
		"cut":                       good[:len(good)-1],
		"longer":                    append(slices.Clone(good), 0),
		"one byte":                  {1},
		"text":                      []byte("{}"),
		"huge":                      make([]byte, 1<<20),
		"another version":           sealed(func(b []byte) { b[0] = 2 }),
		"another rollout":           sealed(func(b []byte) { b[1]++ }),
		"a later step":              sealed(func(b []byte) { b[12] = 9 }),
		"the step at another time":  sealed(func(b []byte) { b[20]++ }),
		"more errors than requests": sealed(func(b []byte) { b[30] = 1 }),
		"too many requests":         sealed(func(b []byte) { b[21] = 255 }),
		"more of them before":       sealed(func(b []byte) { b[46] = 1 }),
		"half a step":               sealed(func(b []byte) {})[:len(good)-8],
	}
	for i := range len(good) * 8 {
		flipped := slices.Clone(good)
		flipped[i/8] ^= 1 << (i % 8)
		bad[fmt.Sprintf("bit %d", i)] = flipped
	}
	for name, state := range bad {
		r := evaluate(t, c, look(1, 500, 0, state))
		if r.Verdict != missing || !strings.HasPrefix(r.Detail, "state: ") {
			t.Errorf("%s: %s %q", name, r.Verdict, r.Detail)
			continue
		}
		if r := evaluate(t, c, look(1, 500, 0, r.State)); r.Verdict != pass {
			t.Errorf("%s: not mended: %s %q", name, r.Verdict, r.Detail)
		}
	}
}

// Whatever is handed over, the counts of the step alone decide a pass, and a
// state that was not written here decides nothing.
func FuzzState(f *testing.F) {
	good := sequential.Evaluate(sequential.Config{Limit: 5}, look(0, 500, 0, nil)).State
	f.Add(good, uint64(500), uint64(0), uint32(0))
	f.Add(good, uint64(10), uint64(9), uint32(1))
	f.Add([]byte{}, uint64(0), uint64(1), uint32(7))
	f.Add(make([]byte, 300), uint64(5), uint64(7), uint32(0))
	f.Fuzz(func(t *testing.T, state []byte, requests, errors uint64, step uint32) {
		c := sequential.Config{Limit: 5}
		r := evaluate(t, c, look(step, requests, errors, state))
		alone := evaluate(t, c, look(step, requests, errors, nil))
		if r.Verdict == pass && alone.Verdict != pass {
			t.Fatalf("a state made a pass of %s: %s", alone.Detail, r.Detail)
		}
		if next := evaluate(t, c, look(step, requests, errors, r.State)); errors <= requests && strings.HasPrefix(next.Detail, "state: ") {
			t.Fatalf("its own state is refused: %s", next.Detail)
		}
	})
}

// More errors are never better, whatever the limit and the counts.
func TestMoreErrorsAreNeverBetter(t *testing.T) {
	rank := map[donav1.Verdict]int{pass: 0, missing: 1, breach: 2}
	rapid.Check(t, func(rt *rapid.T) {
		c := sequential.Config{Limit: rapid.Float64Range(0.01, 99).Draw(rt, "limit")}
		n := rapid.Uint64Range(1, 5000).Draw(rt, "requests")
		k := rapid.Uint64Range(0, n-1).Draw(rt, "errors")
		fewer, more := evaluate(t, c, look(0, n, k, nil)), evaluate(t, c, look(0, n, k+1, nil))
		if rank[fewer.Verdict] > rank[more.Verdict] {
			rt.Fatalf("%d errors: %s; %d errors: %s", k, fewer.Detail, k+1, more.Detail)
		}
	})
}
