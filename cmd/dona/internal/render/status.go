package render

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// endpointLines is how many endpoints a status names before it counts the rest.
const endpointLines = 20

// Status draws everything a host says about one service.
func (s Style) Status(reply *donav1.StatusReply) []string {
	c := reply.GetConfig()
	out := []string{fmt.Sprintf("%s  version %d, %s, %s", s.Bold(Clean(c.GetService())), c.GetVersion(),
		count(len(c.GetEndpoints()), "endpoint"), count(int(reply.GetWatchers().GetConnected()), "watcher"))}
	section := func(lines []string) {
		if len(lines) > 0 {
			out = append(append(out, ""), lines...)
		}
	}
	if reply.GetRollout() != nil {
		section(s.Block(RolloutOf(reply)))
	} else if len(c.GetQuarantinedVariants()) > 0 {
		section([]string{"quarantined  " + s.Bad(list(c.GetQuarantinedVariants(), ""))})
	}
	if d := reply.GetDeployments(); len(d) > 0 {
		section([]string{"deployment " + strings.TrimPrefix(DeploymentLine(c.GetService(), d[0]), Clean(c.GetService())+" ")})
	}
	section(s.variants(reply))
	section(s.endpoints(c.GetEndpoints()))
	section(s.health(reply.GetChecks()))
	section(s.Flags(c.GetFlags(), reply.GetExposures()))
	section(s.exposures(reply.GetExposures()))
	section(s.Policy(reply))
	if len(reply.GetIngresses()) > 0 {
		section(s.Ingresses(reply.GetIngresses()))
	}
	if reply.GetShared() != nil {
		section(s.Shared(reply))
	}
	section(s.watchers(c.GetVersion(), reply.GetWatchers()))
	if reply.GetAuditSequence() > 0 {
		section([]string{s.Dim(fmt.Sprintf("audit: %d entries, head %s", reply.GetAuditSequence(), Clean(reply.GetAuditHead())))})
	}
	return out
}

// watchers says how far the clients are that watch, and why some are not.
func (s Style) watchers(version uint64, w *donav1.WatcherSummary) []string {
	if w.GetConnected() == 0 {
		return nil
	}
	line := fmt.Sprintf("%-10s %d of %d on version %d", "watchers", w.GetOnCurrentVersion(), w.GetConnected(), version)
	if len(w.GetRejected()) == 0 {
		return []string{line}
	}
	out := []string{line + ", " + s.Warn(fmt.Sprintf("%d rejected", max(int(w.GetRejectedClients()), len(w.GetRejected()))))}
	for _, a := range w.GetRejected() {
		out = append(out, fmt.Sprintf("%-10s version %d: %s", "", a.GetVersion(), Clean(a.GetRejectedReason())))
	}
	return out
}

// exposureLines is how many rows of exposures a status shows before it counts the
// rest.
const exposureLines = 20

// exposures shows what requests saw of the flags in the rolling window.
func (s Style) exposures(exposures []*donav1.ExposureCount) []string {
	if len(exposures) == 0 {
		return nil
	}
	t := &table{right: columns(3, 4)}
	t.add("SEEN OF", "VARIANT", "REASON", "VERSION", "COUNT/60 s")
	for _, e := range exposures[:min(len(exposures), exposureLines)] {
		t.add(Clean(e.GetFlag()), dash(e.GetVariant()), strings.ToLower(strings.TrimPrefix(e.GetReason().String(), "REASON_")),
			strconv.FormatUint(e.GetConfigVersion(), 10), strconv.FormatUint(e.GetCount(), 10))
	}
	lines := t.lines(s)
	if more := len(exposures) - exposureLines; more > 0 {
		lines = append(lines, s.Dim(fmt.Sprintf("and %d more (--json names all)", more)))
	}
	return lines
}

// variants shows per variant the weight, the endpoints and the health of the
// rolling window.
func (s Style) variants(reply *donav1.StatusReply) []string {
	type row struct {
		endpoints int
		weight    string
		stats     *donav1.VariantStats
	}
	rows := map[string]*row{}
	get := func(variant string) *row {
		if rows[variant] == nil {
			rows[variant] = &row{weight: "-"}
		}
		return rows[variant]
	}
	c := reply.GetConfig()
	for _, e := range c.GetEndpoints() {
		get(e.GetVariant()).endpoints++
	}
	for _, w := range c.GetWeights() {
		get(w.GetVariant()).weight = fmt.Sprintf("%d %%", w.GetWeight())
	}
	window := uint32(60)
	for _, v := range reply.GetStats() {
		get(v.GetVariant()).stats = v
		window = cmp.Or(v.GetWindowSeconds(), window)
	}
	if len(rows) == 0 {
		return nil
	}
	t := &table{right: columns(1, 2, 3, 4, 5, 6, 7)}
	t.add("VARIANT", "WEIGHT", "ENDPOINTS", fmt.Sprintf("REQUESTS/%d s", window), "ERRORS", "P50", "P95", "P99")
	for _, variant := range sorted(rows) {
		r := rows[variant]
		t.add(Clean(variant), r.weight, strconv.Itoa(r.endpoints), strconv.FormatUint(r.stats.GetRequests(), 10),
			errorShare(r.stats), micros(r.stats.GetP50Us()), micros(r.stats.GetP95Us()), micros(r.stats.GetP99Us()))
	}
	return t.lines(s)
}

func errorShare(v *donav1.VariantStats) string {
	if v.GetErrors() == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%.1f %%)", v.GetErrors(), 100*float64(v.GetErrors())/float64(max(v.GetRequests(), 1)))
}

func micros(us uint64) string {
	if us == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", float64(us)/1000)
}

func (s Style) endpoints(endpoints []*donav1.Endpoint) []string {
	if len(endpoints) == 0 {
		return nil
	}
	t := &table{right: columns(5)}
	t.add("ENDPOINT", "ADDRESS", "VARIANT", "REGION", "ZONE", "LB WEIGHT")
	sortedEndpoints := slices.SortedFunc(slices.Values(endpoints), func(a, b *donav1.Endpoint) int {
		return cmp.Or(cmp.Compare(a.GetVariant(), b.GetVariant()), cmp.Compare(a.GetId(), b.GetId()))
	})
	for i, e := range sortedEndpoints {
		if i == endpointLines {
			break
		}
		weight := strconv.FormatUint(uint64(e.GetLbWeight()), 10)
		if e.GetLbWeight() == 0 {
			weight = "draining"
		}
		t.add(Clean(e.GetId()), Clean(e.GetAddress()), Clean(e.GetVariant()), dash(e.GetRegion()), dash(e.GetZone()), weight)
	}
	lines := t.lines(s)
	if more := len(endpoints) - endpointLines; more > 0 {
		lines = append(lines, s.Dim(fmt.Sprintf("and %d more (--json names all)", more)))
	}
	return lines
}

// Policy shows what an operator set for a service, and the plan in use.
func (s Style) Policy(reply *donav1.StatusReply) []string {
	p := reply.GetPolicy()
	residency := p.GetResidency()
	if residency == nil {
		residency = reply.GetConfig().GetResidency()
	}
	line := func(name, value string) string { return fmt.Sprintf("%-10s %s", name, value) }
	regions := "any region"
	if len(residency.GetAllowedRegions()) > 0 {
		regions = "only " + list(residency.GetAllowedRegions(), "")
	}
	if residency.GetRuleId() != "" {
		regions += " (rule " + Clean(residency.GetRuleId()) + ")"
	}
	out := []string{
		line("residency", regions),
		line("strategy", orDefault(p.GetStrategy(), "default")+config(p.GetStrategyConfig())),
	}
	if plan := reply.GetConfig().GetPlan(); plan != nil || reply.GetPlanNote() != "" {
		text := "none yet"
		if plan != nil {
			text = strings.TrimPrefix(plan.GetAlgorithm().String(), "ALGORITHM_")
			if plan.GetStrategy() != "" {
				text += " by " + Clean(plan.GetStrategy())
			}
		}
		if reply.GetPlanNote() != "" {
			text += ": " + Clean(reply.GetPlanNote())
		}
		out = append(out, line("plan", text))
	}
	return append(out, line("probe", orDefault(p.GetProbe(), "none")+config(p.GetProbeConfig())))
}

func config(c *structpb.Struct) string {
	if len(c.GetFields()) == 0 {
		return ""
	}
	raw, err := protojson.Marshal(c)
	if err != nil {
		return ""
	}
	return "  " + Clean(strings.ReplaceAll(string(raw), `, "`, `,"`))
}

// Overview is the table of all services.
func (s Style) Overview(replies []*donav1.StatusReply) []string {
	t := &table{right: columns(1, 2, 3)}
	t.paint = func(row, col int) string {
		if r := replies[row-1].GetRollout(); col == 5 && r != nil {
			return stateColor(r.GetState())
		}
		return ""
	}
	t.add("SERVICE", "VERSION", "ENDPOINTS", "FLAGS", "WEIGHTS", "ROLLOUT")
	for _, r := range replies {
		c := r.GetConfig()
		weights := make([]string, 0, len(c.GetWeights()))
		for _, w := range c.GetWeights() {
			weights = append(weights, fmt.Sprintf("%s %d %%", Clean(w.GetVariant()), w.GetWeight()))
		}
		rollout := "-"
		if st := r.GetRollout(); st != nil {
			rollout = fmt.Sprintf("%s %s", Clean(st.GetCanaryVariant()), State(st.GetState()))
			if !Ended(st.GetState()) && st.GetState() != donav1.RolloutStatus_STATE_PENDING {
				rollout += fmt.Sprintf(" at %d %%", st.GetStepPercent())
			}
		}
		t.add(Clean(c.GetService()), strconv.FormatUint(c.GetVersion(), 10), strconv.Itoa(len(c.GetEndpoints())),
			strconv.Itoa(len(c.GetFlags())), orDefault(strings.Join(weights, ", "), "-"), rollout)
	}
	return t.lines(s)
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func dash(text string) string { return orDefault(Clean(text), "-") }

func orDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return Clean(text)
}
