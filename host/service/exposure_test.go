package service_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// exposing is a world with flags f0 to f2, whose wall clock the test moves.
type exposing struct {
	*world
	t        *testing.T
	reports  *service.Reports
	wall     time.Time
	sequence uint64
}

func newExposing(t *testing.T) *exposing {
	e := &exposing{world: newWorld(t), t: t, wall: time.Unix(1_800_000_000, 0)}
	e.register(beat("a", "v1", "eu"))
	for i := range 3 {
		must(t, e.setFlag(&donav1.FlagRule{Service: "web", Flag: fmt.Sprint("f", i)}))
	}
	e.reports = service.NewReports(e.plane, &counted{}, func() time.Time { return e.wall }, nil)
	return e
}

func (e *exposing) report(exposures ...*donav1.Exposure) {
	e.t.Helper()
	e.sequence++
	ack, _, err := e.reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, &donav1.StatsBatch{ReporterId: "r", Sequence: e.sequence, Exposures: exposures})
	if err != nil || ack.Dropped != 0 {
		e.t.Fatalf("the report: %v, %v", ack, err)
	}
}

func (e *exposing) exposure(flag, variant string, reason donav1.Reason, version uint64, ago time.Duration) *donav1.Exposure {
	return &donav1.Exposure{Service: "web", Flag: flag, Variant: variant, Reason: reason, ConfigVersion: version, UnixMs: e.wall.Add(-ago).UnixMilli()}
}

// shown is the status' exposures, one a line.
func (e *exposing) shown() string {
	e.t.Helper()
	var lines []string
	e.view(func(tx store.ReadTx) error {
		rows, err := e.plane.Exposures(tx, "web", e.wall)
		for _, r := range rows {
			lines = append(lines, fmt.Sprintf("%s %s %s %d: %d", r.Flag, r.Variant, r.Reason, r.ConfigVersion, r.Count))
		}
		return err
	})
	return strings.Join(lines, "\n")
}

// chained is the newest entry of the chain.
func (e *exposing) chained() (seq uint64, line chainLine) {
	e.t.Helper()
	e.view(func(tx store.ReadTx) error {
		lines, err := tx.ReadLog("audit/web", 1, 0)
		if err != nil {
			return err
		}
		last := lines[len(lines)-1]
		seq = last.Seq
		return json.Unmarshal(last.Payload, &line)
	})
	return seq, line
}

type chainLine struct {
	Kind   string            `json:"kind"`
	Detail map[string]string `json:"detail"`
}

func TestExposuresInStatus(t *testing.T) {
	e := newExposing(t)
	split, miss := donav1.Reason_REASON_SPLIT, donav1.Reason_REASON_DEFAULT
	want := func(when, rows string) {
		t.Helper()
		if got := e.shown(); got != rows {
			t.Fatalf("%s:\n%s\nwant\n%s", when, got, rows)
		}
	}
	want("before any report", "")
	e.report(
		e.exposure("f1", "v2", split, 7, 0), e.exposure("f1", "v2", split, 7, 0), e.exposure("f1", "", miss, 7, 0),
		e.exposure("f0", "v1", split, 7, 30*time.Second), e.exposure("f0", "v1", split, 8, 0),
		e.exposure("f2", "v1", split, 7, 59*time.Second), e.exposure("f2", "v1", split, 7, 60*time.Second),
		e.exposure("gone", "v1", split, 7, 0))
	want("after a report", "f0 v1 REASON_SPLIT 7: 1\nf0 v1 REASON_SPLIT 8: 1\nf1  REASON_DEFAULT 7: 1\nf1 v2 REASON_SPLIT 7: 2\nf2 v1 REASON_SPLIT 7: 1")
	e.wall = e.wall.Add(31 * time.Second)
	e.report(e.exposure("f1", "v2", split, 7, 0))
	want("31 s later", "f0 v1 REASON_SPLIT 8: 1\nf1  REASON_DEFAULT 7: 1\nf1 v2 REASON_SPLIT 7: 3")
	must(t, e.plane.SetFlag(context.Background(), "local:dev", &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "f0"}}))
	want("without the flag", "f1  REASON_DEFAULT 7: 1\nf1 v2 REASON_SPLIT 7: 3")
	e.wall = e.wall.Add(28 * time.Second)
	want("59 s after the first", "f1  REASON_DEFAULT 7: 1\nf1 v2 REASON_SPLIT 7: 3")
	e.wall = e.wall.Add(time.Second)
	want("60 s after the first", "f1 v2 REASON_SPLIT 7: 1")
	e.wall = e.wall.Add(time.Hour)
	want("later", "")
}

// A window keeps the rows of the newest versions, and a status shows the largest.
func TestExposuresAreBounded(t *testing.T) {
	e := newExposing(t)
	var all []*donav1.Exposure
	for version := range uint64(100) {
		all = append(all, e.exposure("f0", "v1", donav1.Reason_REASON_SPLIT, 1+version, 0))
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	e.report(all[:50]...)
	e.report(all[50:]...)
	rows := strings.Split(e.shown(), "\n")
	if len(rows) != 64 || rows[0] != "f0 v1 REASON_SPLIT 37: 1" || rows[63] != "f0 v1 REASON_SPLIT 100: 1" {
		t.Errorf("%d rows from %q to %q, want those of the 64 newest versions", len(rows), rows[0], rows[len(rows)-1])
	}
	for i := range 40 {
		flag := fmt.Sprintf("g%02d", i)
		must(t, e.setFlag(&donav1.FlagRule{Service: "web", Flag: flag}))
		var all []*donav1.Exposure
		for version := range uint64(64) {
			for range 1 + i%2 {
				all = append(all, e.exposure(flag, "v1", donav1.Reason_REASON_SPLIT, 1+version, 0))
			}
		}
		e.report(all...)
	}
	rows = strings.Split(e.shown(), "\n")
	if len(rows) != 1000 {
		t.Errorf("%d rows are shown, want 1,000", len(rows))
	}
	if n := len(slices.DeleteFunc(rows, func(r string) bool { return !strings.HasSuffix(r, ": 1") })); n != 0 {
		t.Errorf("%d rows of one exposure are shown while larger ones are not", n)
	}
}

// One entry sums up a report for a service, whatever the order of its items.
func TestExposuresInTheChain(t *testing.T) {
	e := newExposing(t)
	before, _ := e.chained()
	batch := []*donav1.Exposure{
		e.exposure("f1", "v2", donav1.Reason_REASON_SPLIT, 7, 0), e.exposure("f1", "v2", donav1.Reason_REASON_SPLIT, 7, time.Second),
		e.exposure("f1", "", donav1.Reason_REASON_DEFAULT, 7, 0), e.exposure("f0", "v1", donav1.Reason_REASON_TARGETING_MATCH, 8, 0)}
	e.report(batch...)
	after, line := e.chained()
	if after != before+1 {
		t.Fatalf("a report made %d entries, want one", after-before)
	}
	want := map[string]string{"flag": "f0,f1,f1", "variant": "v1,,v2", "reason": "targeting_match,default,split",
		"config_version": "8,7,7", "count": "1,1,2"}
	if line.Kind != "flag.exposure" || fmt.Sprint(line.Detail) != fmt.Sprint(want) {
		t.Errorf("the entry is %s %v, want %v", line.Kind, line.Detail, want)
	}
	slices.Reverse(batch)
	e.report(batch...)
	if _, again := e.chained(); fmt.Sprint(again.Detail) != fmt.Sprint(want) {
		t.Errorf("in another order the entry is %v, want %v", again.Detail, want)
	}

	// As many as a report may hold, with the longest names: the entry stays within
	// what a line may have.
	long := strings.Repeat("x", limits.NameLen-8)
	var many []*donav1.Exposure
	for i := range limits.StatsItems - 1 {
		many = append(many, e.exposure(fmt.Sprintf("%s%08d", long, i), fmt.Sprintf("%s%08d", long, i), donav1.Reason_REASON_TARGETING_MATCH, 1<<63+uint64(i), 0))
	}
	many = append(many, proto.CloneOf(many[1000])) // the largest
	e.report(many...)
	seq, line := e.chained()
	if seq != after+2 {
		t.Fatalf("the large report made %d entries, want one", seq-after-1)
	}
	counts := strings.Split(line.Detail["count"], ",")
	if len(counts) != 100 || !slices.Contains(counts, "2") || line.Detail["others"] != fmt.Sprint(limits.StatsItems-1-100) ||
		line.Detail["others_count"] != fmt.Sprint(limits.StatsItems-1-100) {
		t.Errorf("the entry has %d counts, others %s of %s", len(counts), line.Detail["others"], line.Detail["others_count"])
	}
	e.entries("web") // the chain holds
}
