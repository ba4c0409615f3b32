package badplugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/durationpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// large answers with so many MiB.
func large(_ context.Context, arg string, reply *pluginv1.EvaluateReply) error {
	reply.Evidence = make([]byte, number(arg)<<20)
	return nil
}

// nested answers with so many levels of groups in a field that nobody knows.
func nested(_ context.Context, arg string, reply *pluginv1.EvaluateReply) error {
	const field = 15
	deep := number(arg)
	reply.ProtoReflect().SetUnknown(slices.Concat(
		bytes.Repeat([]byte{field<<3 | 3}, deep), bytes.Repeat([]byte{field<<3 | 4}, deep)))
	return nil
}

// largeError fails with so many KiB of text.
func largeError(_ context.Context, arg string, _ *pluginv1.EvaluateReply) error {
	return errors.New(strings.Repeat("e", number(arg)<<10))
}

// measurements are answers of an analysis that must not be believed, by the
// reason that the host gives.
var measurements = map[string]func(*pluginv1.EvaluateReply){
	"verdict":     func(r *pluginv1.EvaluateReply) { r.Verdict = 99 },
	"detail":      func(r *pluginv1.EvaluateReply) { r.Detail = "two\nlines" },
	"evidence":    func(r *pluginv1.EvaluateReply) { r.Evidence = make([]byte, 65<<10) },
	"state":       func(r *pluginv1.EvaluateReply) { r.State = make([]byte, 65<<10) },
	"retry_after": func(r *pluginv1.EvaluateReply) { r.RetryAfter = &durationpb.Duration{Seconds: -1} },
	"encoding":    func(r *pluginv1.EvaluateReply) { r.ProtoReflect().SetUnknown([]byte{4<<3 | 2, 1, 0xff}) }, // detail, not UTF-8
}

// Measurements lists the reasons for which deed "answer REASON" is refused.
func Measurements() []string { return slices.Sorted(maps.Keys(measurements)) }

// missing are answers that are no measurement, and must not pass either.
var missing = map[string]func(*pluginv1.EvaluateReply){
	"nan":       func(r *pluginv1.EvaluateReply) { r.Value, r.HasValue = math.NaN(), true },
	"inf":       func(r *pluginv1.EvaluateReply) { r.Value, r.HasValue = math.Inf(1), true },
	"minus-inf": func(r *pluginv1.EvaluateReply) { r.Value, r.HasValue = math.Inf(-1), true },
	"empty":     func(r *pluginv1.EvaluateReply) { r.Reset() },
}

// Missing lists the answers with which deed "answer NAME" measures nothing.
func Missing() []string { return slices.Sorted(maps.Keys(missing)) }

// spoil answers what it is told to.
func spoil(_ context.Context, arg string, reply *pluginv1.EvaluateReply) error {
	for _, kinds := range []map[string]func(*pluginv1.EvaluateReply){measurements, missing} {
		if change, known := kinds[arg]; known {
			change(reply)
			return nil
		}
	}
	return fmt.Errorf("no answer %q", arg)
}

// plans are answers of a strategy that must not be believed, by the reason that
// the host gives. A strategy finds the reason in the scope.
var plans = map[string]func(*pluginv1.CompileRequest, *pluginv1.CompileReply){
	"empty":     func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) { r.Plan = nil },
	"strategy":  func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) { r.Plan.Strategy = "another" },
	"algorithm": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) { r.Plan.Algorithm = 99 },
	"hash": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.Plan.Algorithm = donav1.Algorithm_ALGORITHM_CONSISTENT_HASH
	},
	"max_load_percent": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.Plan.Algorithm, r.Plan.MaxLoadPercent = donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, 100
		r.Plan.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_UNIT}
	},
	"unknown_id": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.Plan.Weights = map[string]uint32{"of-another-service": 1}
	},
	"unknown_group": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.Plan.GroupWeights = map[string]uint32{"nowhere": 1}
	},
	"all_zero":                 allZero,
	"too_large":                entries,
	"field_of_other_algorithm": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) { r.Plan.MaxLoadPercent = 100 },
	"choices":                  choices,
	"refresh_after": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.RefreshAfter = &durationpb.Duration{Seconds: -1}
	},
	"encoding": func(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
		r.ProtoReflect().SetUnknown([]byte{1<<3 | 2, 1})
	}, // a plan that is cut off
}

// Plans lists the reasons for which the plan of scope "service/REASON" is
// refused.
func Plans() []string { return slices.Sorted(maps.Keys(plans)) }

func allZero(req *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
	r.Plan.Weights = make(map[string]uint32)
	for _, c := range req.GetCandidates() {
		r.Plan.Weights[c.GetId()] = 0
	}
}

// entries has a million weights in less than a message may have. They are made
// before anybody asks: there is no time for it in a call.
func entries(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
	r.Plan.ProtoReflect().SetUnknown(millionWeights())
}

// millionWeights is field 4 of a plan a million times.
var millionWeights = sync.OnceValue(func() []byte {
	var b []byte
	for i := range 1_000_000 {
		key := strconv.FormatInt(int64(i), 36)
		b = append(b, 4<<3|2, byte(4+len(key)), 1<<3|2, byte(len(key)))
		b = append(append(b, key...), 2<<3, 1)
	}
	return b
})

func choices(_ *pluginv1.CompileRequest, r *pluginv1.CompileReply) {
	r.Plan.Algorithm, r.Plan.Choices = donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, 33
}
