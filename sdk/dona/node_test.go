package dona_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/match"
)

const nodeClient = "../../examples/node-client"

// node skips the test where there is no Node.js, or its packages cannot be had.
func node(t *testing.T) {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not on the PATH", name)
		}
	}
	if _, err := os.Stat(filepath.Join(nodeClient, "node_modules/@grpc/grpc-js")); err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "install", "--no-fund", "--no-audit", "--no-package-lock", "--loglevel=error", "--prefix", nodeClient).CombinedOutput()
	if err != nil {
		t.Skipf("npm install: %v: %.200s", err, out)
	}
}

type (
	question struct {
		Unit string `json:"unit"`
		Flag string `json:"flag"`
	}
	decision struct {
		Snapshot   string            `json:"snapshot"`
		Unit       string            `json:"unit"`
		Attributes map[string]string `json:"attributes"`
	}
)

// rule is one of the golden table of operators, as the Node.js code is asked about it.
type rule struct {
	Operator int32             `json:"operator"`
	Values   []string          `json:"values"`
	Cases    []json.RawMessage `json:"cases,omitempty"`
}

// operators reads the golden table. Answers are a word for each case, or refused.
func operators(t *testing.T) (rules []rule, want []string) {
	t.Helper()
	var table []struct {
		Operator string
		Values   []string
		Refused  string
		Node     string // refuses = a pattern that it does not follow
		Cases    []json.RawMessage
	}
	read(t, "match/testdata/operators.json", &table)
	for _, g := range table {
		r := rule{Values: g.Values, Cases: g.Cases}
		op, known := donav1.TargetingRule_Operator_value["OPERATOR_"+g.Operator]
		if !known {
			if _, err := fmt.Sscan(g.Operator, &op); err != nil {
				t.Fatal(err)
			}
		}
		r.Operator = op
		var words []string
		for _, c := range g.Cases {
			var says struct{ Want string }
			if err := json.Unmarshal(c, &says); err != nil {
				t.Fatal(err)
			}
			words = append(words, says.Want)
		}
		answer := strings.Join(words, " ")
		if g.Refused != "" || g.Node == "refuses" {
			answer = "refused"
		}
		rules, want = append(rules, r), append(want, answer)
	}
	return rules, want
}

// cross gives every value of the table, and random patterns, every text of the same
// kind of operator, and what package match says.
func cross(t *testing.T, r *rand.Rand, table []rule) (rules []rule, want []string) {
	t.Helper()
	type family struct{ values, texts []string }
	families := map[string]*family{}
	kindOf := func(op int32) string {
		name := strings.TrimPrefix(donav1.TargetingRule_Operator(op).String(), "OPERATOR_")
		if strings.HasPrefix(name, "NUM_") || strings.HasPrefix(name, "SEMVER_") {
			name, _, _ = strings.Cut(name, "_")
		}
		return name
	}
	for _, g := range table {
		f := families[kindOf(g.Operator)]
		if f == nil {
			f = &family{}
			families[kindOf(g.Operator)] = f
		}
		f.values = append(f.values, g.Values...)
		for _, c := range g.Cases {
			var a struct{ Text *string }
			if err := json.Unmarshal(c, &a); err != nil {
				t.Fatal(err)
			}
			if a.Text != nil {
				f.texts = append(f.texts, *a.Text)
			}
		}
	}
	pieces := strings.Fields(`a b é . ^ $ \b \B \d \W \s [ab] [^a-c] [\w-] [--/] [a\-z] ( (?: ) | * + ? *? {2} {0,1} {1,} \. - _ { } ] \n \x61 \t`)
	texts := []string{"", "a", "ab", "ba", "aab", "é", "a b", "-", "a\nb", ".", "_", "b.a-", "1a", "😀b"}
	ask := func(op int32, value string, texts []string) {
		matchers, err := match.Compile([]*donav1.TargetingRule{{Attribute: "a", Variant: "v", Operator: donav1.TargetingRule_Operator(op), Values: []string{value}}})
		answer, cases := "refused", []json.RawMessage(nil)
		if err == nil && matchers[0] != nil {
			var words []string
			for _, text := range texts {
				words = append(words, map[match.Verdict]string{match.Matched: "yes", match.Missed: "no", match.WrongType: "type"}[matchers[0].Text(text)])
				c, err := json.Marshal(map[string]string{"text": text})
				if err != nil {
					t.Fatal(err)
				}
				cases = append(cases, c)
			}
			answer = strings.Join(words, " ")
		} else if err == nil {
			return // IN and its like
		}
		rules, want = append(rules, rule{op, []string{value}, cases}), append(want, answer)
	}
	for op := int32(1); op <= int32(donav1.TargetingRule_OPERATOR_MATCHES); op++ {
		f := families[kindOf(op)]
		if f == nil {
			t.Fatalf("the table has nothing on operator %d", op)
		}
		for _, v := range f.values {
			ask(op, v, f.texts)
		}
	}
	for range 4_000 {
		var pattern strings.Builder
		for range 1 + r.IntN(6) {
			pattern.WriteString(pieces[r.IntN(len(pieces))])
		}
		ask(int32(donav1.TargetingRule_OPERATOR_MATCHES), pattern.String(), texts)
	}
	return rules, want
}

// TestNodeAgrees puts the same questions to the example's Node.js code and to ours:
// buckets, checksums of snapshots and of deltas applied to them, decisions, and what
// the operators of targeting rules say.
func TestNodeAgrees(t *testing.T) {
	node(t)
	r := rand.New(rand.NewPCG(1, 2))
	var buckets []question
	var wantBuckets []uint32
	ask := func(unit, flag string, want uint32) {
		buckets, wantBuckets = append(buckets, question{unit, flag}), append(wantBuckets, want)
	}
	var vectors []struct {
		Unit, Flag string
		Bucket     uint32
	}
	read(t, "bucket/testdata/buckets.json", &vectors)
	for _, v := range vectors {
		ask(v.Unit, v.Flag, v.Bucket)
	}
	for range 10_000 {
		unit, flag := word(r, 20), word(r, 10)
		ask(unit, flag, bucket.Bucket(unit, flag))
	}

	var histories [][]string
	var wantSums [][]string
	var vector struct {
		Snapshot json.RawMessage
		Checksum string `json:"checksum"`
	}
	read(t, "digest/testdata/snapshot.json", &vector)
	s := &donav1.ConfigSnapshot{}
	if err := protojson.Unmarshal(vector.Snapshot, s); err != nil {
		t.Fatal(err)
	}
	histories, wantSums = append(histories, []string{wire(t, sealed(s))}), append(wantSums, []string{vector.Checksum})
	if len(vector.Checksum) != 64 {
		t.Fatalf("the vector's checksum is %q", vector.Checksum)
	}
	var decisions []decision
	var wantDecisions []string
	for range 100 {
		s := randomSnapshot(r)
		frames, sums := []string{wire(t, sealed(s))}, []string{sum(s)}
		for range 5 {
			var delta *donav1.ConfigSnapshot
			s, delta = randomChange(r, s)
			frames, sums = append(frames, wire(t, delta)), append(sums, sum(s))
		}
		histories, wantSums = append(histories, frames), append(wantSums, sums)
		for range 10 {
			unit, country := word(r, 10), []string{"CH", "DE", "SE"}[r.IntN(3)]
			trace, err := dona.Explain(s, dona.Request{Unit: unit, Attributes: []dona.Attribute{dona.String("country", country)}})
			if err != nil {
				t.Fatal(err)
			}
			if trace.Result.Error != "" || unit == "" || len(s.Weights) == 0 {
				continue // nobody, or chance, decides
			}
			decisions = append(decisions, decision{wire(t, s), unit, map[string]string{"country": country}})
			wantDecisions = append(wantDecisions, fmt.Sprintf("%s %s %s", trace.Result.Variant, trace.Result.Kind, trace.Result.Flag))
		}
	}

	rules, wantRules := operators(t)
	crossed, wantCrossed := cross(t, r, rules)
	rules, wantRules = append(rules, crossed...), append(wantRules, wantCrossed...)
	in, err := json.Marshal(map[string]any{"protos": "../../proto", "buckets": buckets, "histories": histories, "decisions": decisions, "operators": rules})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "answers.js")
	cmd.Dir = nodeClient
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, &stderr)
	}
	var got struct {
		Buckets   []uint32
		Checksums [][]string
		Decisions []string
		Operators []string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	same(t, "buckets", got.Buckets, wantBuckets)
	for i := range wantSums {
		same(t, fmt.Sprint("checksums of history ", i), got.Checksums[i], wantSums[i])
	}
	same(t, "decisions", got.Decisions, wantDecisions)
	if len(got.Operators) != len(rules) {
		t.Fatalf("%d answers on %d rules", len(got.Operators), len(rules))
	}
	followed := 0
	for i, r := range rules {
		if i >= len(rules)-len(crossed) && r.Operator == int32(donav1.TargetingRule_OPERATOR_MATCHES) {
			if got.Operators[i] == "refused" {
				continue // it does not follow every pattern
			}
			followed++
		}
		if got.Operators[i] != wantRules[i] {
			t.Errorf("operator %d with %.60q: %s, want %s", r.Operator, r.Values, got.Operators[i], wantRules[i])
		}
	}
	if len(wantDecisions) < 100 {
		t.Errorf("only %d decisions were compared", len(wantDecisions))
	}
	if followed < 500 {
		t.Errorf("only %d random patterns were followed", followed)
	}
	t.Logf("%d buckets, %d histories of a snapshot and 5 deltas, %d decisions, %d rules", len(wantBuckets), len(wantSums), len(wantDecisions), len(rules))
}

// TestNodeClient runs the example against a host: it follows deltas, asks for a full
// frame after one that is damaged, and reports.
func TestNodeClient(t *testing.T) {
	node(t)
	h := startHost(t)
	first := checkout(1)
	h.publish(first)
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "node", "main.js", h.address, "checkout")
	cmd.Dir = nodeClient
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan []byte, 1)
	go func() { all, _ := io.ReadAll(stdout); said <- all }()
	defer func() {
		stop()
		all := <-said
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("the client said:\n%s", all)
		}
	}()
	applied := func(version uint64, rejected string) func() bool {
		return func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, b := range h.batches {
				for _, a := range b.Applied {
					if a.Version == version && strings.Contains(a.RejectedReason, rejected) && (rejected == "") == (a.RejectedReason == "") {
						return true
					}
				}
			}
			return false
		}
	}
	until(t, "version 1 is applied", applied(1, ""))
	second := proto.CloneOf(first)
	second.Version, second.Weights = 2, nil
	delta := &donav1.ConfigSnapshot{Service: "checkout", Version: 2, BaseVersion: 1, Form: donav1.ConfigSnapshot_FORM_DELTA,
		Replaced: []donav1.ConfigSnapshot_Section{donav1.ConfigSnapshot_SECTION_WEIGHTS}, Checksum: sealed(second).Checksum}
	h.push(second, delta)
	until(t, "version 2 is applied", applied(2, ""))
	third := proto.CloneOf(second)
	third.Version = 3
	third.Endpoints = third.Endpoints[:1]
	damaged := &donav1.ConfigSnapshot{Service: "checkout", Version: 3, BaseVersion: 2, Form: donav1.ConfigSnapshot_FORM_DELTA, Checksum: sealed(third).Checksum}
	h.push(third, damaged)
	until(t, "the damaged delta is reported", applied(3, "checksum"))
	until(t, "version 3 is applied from a full frame", applied(3, ""))
	until(t, "calls and exposures are reported under the id of the watches, in sequence", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		calls, exposures := 0, 0
		for _, w := range h.watches {
			if w.ClientId == "" || w.ClientId != h.batches[0].ReporterId {
				t.Errorf("watches as %q and reports as %q", w.ClientId, h.batches[0].ReporterId)
				return true
			}
		}
		for i, b := range h.batches {
			if b.Sequence != uint64(i+1) || b.ReporterId != h.batches[0].ReporterId {
				t.Errorf("batch %d has sequence %d of %s", i, b.Sequence, b.ReporterId)
				return true
			}
			calls, exposures = calls+len(b.Calls), exposures+len(b.Exposures)
		}
		return calls > 0 && exposures > 0
	})
}

func same[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d answers, want %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func wire(t *testing.T, s *donav1.ConfigSnapshot) string {
	t.Helper()
	b, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func sum(s *donav1.ConfigSnapshot) string {
	c := digest.OfSnapshot(s)
	return hex.EncodeToString(c[:])
}

// word is up to most letters of several alphabets.
func word(r *rand.Rand, most int) string {
	letters := []rune("abcxyzAZ09-._é用户😀")
	out := make([]rune, r.IntN(most+1))
	for i := range out {
		out[i] = letters[r.IntN(len(letters))]
	}
	return string(out)
}

func randomEndpoint(r *rand.Rand, id int) *donav1.Endpoint {
	return &donav1.Endpoint{Id: fmt.Sprint("e", id), Address: fmt.Sprint("10.0.0.1:", r.IntN(1000)), Variant: fmt.Sprint("v", r.IntN(3)),
		Region: []string{"", "eu", "us"}[r.IntN(3)], LbWeight: r.Uint32N(101), Zone: []string{"", "a"}[r.IntN(2)]}
}

func randomFlag(r *rand.Rand, key int) *donav1.FlagRule {
	f := &donav1.FlagRule{Flag: fmt.Sprint("f", key), Service: "checkout", RolloutPercent: r.Uint32N(101), RolloutVariant: fmt.Sprint("v", r.IntN(4)),
		Disabled: r.IntN(5) == 0, HashVersion: r.Uint32N(2), Version: r.Uint64()}
	for range r.IntN(3) {
		f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: []string{"country", "other"}[r.IntN(2)],
			Operator: donav1.TargetingRule_Operator(r.Int32N(15)), Values: []string{[]string{"CH", "C", "7", "1.2.3", "::1"}[r.IntN(5)], word(r, 5)}[:r.IntN(3)], Variant: fmt.Sprint("v", r.IntN(3))})
	}
	return f
}

func randomWeights(r *rand.Rand) []*donav1.VariantWeight {
	if r.IntN(4) == 0 {
		return nil
	}
	n := r.Uint32N(101)
	return []*donav1.VariantWeight{{Variant: "v1", Weight: n}, {Variant: "v0", Weight: 100 - n}}
}

func randomSnapshot(r *rand.Rand) *donav1.ConfigSnapshot {
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: r.Uint64N(1 << 40), Form: donav1.ConfigSnapshot_FORM_FULL, Weights: randomWeights(r)}
	for i := range r.IntN(20) {
		s.Endpoints = append(s.Endpoints, randomEndpoint(r, i))
	}
	for i := range r.IntN(6) {
		s.Flags = append(s.Flags, randomFlag(r, i))
	}
	if r.IntN(2) == 0 {
		s.Residency = &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "us"}[:r.IntN(3)], RuleId: word(r, 5)}
	}
	if r.IntN(2) == 0 {
		s.Plan = &donav1.Plan{Strategy: "s", Generation: r.Uint64(), Algorithm: donav1.Algorithm_ALGORITHM_RANDOM,
			Weights: map[string]uint32{"e10": r.Uint32N(2), "e2": 7, "é": 1}, GroupTiers: map[string]uint32{"": 3}}
		if r.IntN(2) == 0 {
			s.Plan.GroupWeights = map[string]uint32{"eu": r.Uint32N(200), "": 1, "用户": 0}
			s.Plan.Choices, s.Plan.MaxLoadPercent = r.Uint32N(4), 100+r.Uint32N(100)
			s.Plan.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_Source(1 + r.IntN(2)), Name: word(r, 4)}
		}
	}
	if r.IntN(3) == 0 {
		s.QuarantinedVariants = []string{"v2"}
	}
	return s
}

// randomChange returns a next snapshot and the delta that leads to it.
func randomChange(r *rand.Rand, s *donav1.ConfigSnapshot) (next, delta *donav1.ConfigSnapshot) {
	next = proto.CloneOf(s)
	next.Version++
	delta = &donav1.ConfigSnapshot{Service: s.Service, Version: next.Version, BaseVersion: s.Version, Form: donav1.ConfigSnapshot_FORM_DELTA}
	if n := len(next.Endpoints); n > 0 && r.IntN(2) == 0 {
		delta.RemovedEndpoints = []string{next.Endpoints[n-1].Id}
		next.Endpoints = next.Endpoints[:n-1]
	}
	if n := len(next.Endpoints); n > 0 {
		i := r.IntN(n)
		next.Endpoints[i] = randomEndpoint(r, i)
		delta.Endpoints = append(delta.Endpoints, next.Endpoints[i])
	}
	if n := len(next.Flags); n > 0 && r.IntN(2) == 0 {
		delta.RemovedFlags = []string{next.Flags[n-1].Flag}
		next.Flags = next.Flags[:n-1]
	}
	if r.IntN(2) == 0 {
		next.Weights = randomWeights(r)
		delta.Weights, delta.Replaced = next.Weights, append(delta.Replaced, donav1.ConfigSnapshot_SECTION_WEIGHTS)
	}
	if r.IntN(3) == 0 {
		next.QuarantinedVariants = nil
		delta.Replaced = append(delta.Replaced, donav1.ConfigSnapshot_SECTION_QUARANTINED_VARIANTS)
	}
	if r.IntN(4) == 0 {
		next.Plan, next.Residency = nil, &donav1.ResidencyPolicy{AllowedRegions: []string{"us"}}
		if r.IntN(2) == 0 {
			next.Residency = nil
		}
		delta.Plan, delta.Residency = next.Plan, next.Residency
		delta.Replaced = append(delta.Replaced, donav1.ConfigSnapshot_SECTION_PLAN, donav1.ConfigSnapshot_SECTION_RESIDENCY)
	}
	delta.Checksum = sealed(next).Checksum
	return next, delta
}
