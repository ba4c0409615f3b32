package render_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestGolden shows messages as text: testdata holds the message as JSON and
// below the line what people see. Run with -rewrite after a change of the text.
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			style := render.Style{Color: d.HasArg("color")}
			read := func(m proto.Message) {
				if err := protojson.Unmarshal([]byte(d.Input), m); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			var lines []string
			switch d.Cmd {
			case "block", "line", "brief":
				reply := &donav1.StatusReply{}
				read(reply)
				r := render.RolloutOf(reply)
				if d.HasArg("dwell") {
					var text string
					d.ScanArgs(t, "dwell", &text)
					step, err := time.ParseDuration(text)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					r.StepDwell = step
				}
				switch d.Cmd {
				case "line":
					lines = []string{render.Line(r)}
				case "brief":
					lines = []string{render.Brief(r, false)}
				default:
					lines = style.Block(r)
				}
			case "status":
				reply := &donav1.StatusReply{}
				read(reply)
				lines = style.Status(reply)
			case "plugins":
				reply := &donav1.ListPluginsReply{}
				read(reply)
				lines = style.Plugins(reply.GetPlugins())
			default:
				d.Fatalf(t, "no command %q", d.Cmd)
			}
			return strings.ReplaceAll(strings.Join(lines, "\n"), "\x1b", "^") + "\n"
		})
	})
}

func TestMarkChangesWithWhatDeservesALine(t *testing.T) {
	base := func() render.Rollout {
		return render.Rollout{Status: &donav1.RolloutStatus{
			Id: "r-1", State: donav1.RolloutStatus_STATE_PROGRESSING, DwellMs: 1000, Reason: "2 s left",
			Analysis: []*donav1.AnalysisResult{{Name: "p99", Verdict: donav1.Verdict_VERDICT_PASS, Value: 1}},
		}, Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: 10}}}
	}
	for name, c := range map[string]struct {
		change func(*render.Rollout)
		marks  bool
	}{
		"nothing":    {func(*render.Rollout) {}, false},
		"dwell":      {func(r *render.Rollout) { r.Status.DwellMs, r.Status.Reason = 2000, "1 s left" }, false},
		"value":      {func(r *render.Rollout) { r.Status.Analysis[0].Value = 2 }, false},
		"verdict":    {func(r *render.Rollout) { r.Status.Analysis[0].Verdict = donav1.Verdict_VERDICT_MISSING }, true},
		"state":      {func(r *render.Rollout) { r.Status.State = donav1.RolloutStatus_STATE_HOLDING }, true},
		"step":       {func(r *render.Rollout) { r.Status.StepIndex = 1 }, true},
		"weight":     {func(r *render.Rollout) { r.Weights[0].Weight = 50 }, true},
		"quarantine": {func(r *render.Rollout) { r.Quarantined = []string{"v2"} }, true},
		"another":    {func(r *render.Rollout) { r.Status.Id = "r-2" }, true},
	} {
		r := base()
		c.change(&r)
		if got := render.Mark(r) != render.Mark(base()); got != c.marks {
			t.Errorf("%s: changes the mark: %v, want %v", name, got, c.marks)
		}
	}
}

func TestCleanEscapesWhatSteersATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"checkout":        "checkout",
		"größe 用户":        "größe 用户",
		"a\x1b[2Jb":       `a\x1b[2Jb`,
		"line\nbreak":     `line\nbreak`,
		"right\u202eleft": `right\u202eleft`,
	} {
		if got := render.Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}
