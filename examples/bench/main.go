// Command bench measures Dodona beside its peers: both sides of each ratio in
// one run, by turns, with the same payloads; medians of at least eight repeats.
// It is a module of its own, so that the peers never enter the product's.
//
// make bench runs every job and writes docs/performance.md; make bench JOB=store
// runs one and only prints; make bench-gateway measures the gateway, with programs that
// nothing else needs, and writes its part of the page.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/dodona-project/dodona/plugins"
)

// row is one line of the table.
type row struct {
	work  string
	ours  float64
	peer  float64 // 0 = nothing to compare with
	unit  string
	what  string  // what the peer is
	limit float64 // goal for the ratio; 0 = none
	least bool    // the ratio has to be at least limit; else at most
	pairs *ratio  // measured in pairs; nil: it is ours / peer
}

// ratio is the middle of many ratios, each of two figures measured together.
type ratio struct {
	middle      float64
	least, most float64 // of the middles of the pairs
}

func (r row) ratio() float64 {
	switch {
	case r.peer == 0:
		return 0
	case r.pairs != nil:
		return r.pairs.middle
	}
	return r.ours / r.peer
}

func (r row) verdict() string {
	switch {
	case r.limit == 0 || r.peer == 0:
		return ""
	case r.least && r.ratio() >= r.limit, !r.least && r.ratio() <= r.limit:
		return "reached"
	}
	return "missed"
}

func (r row) goal() string {
	switch {
	case r.limit == 0:
		return ""
	case r.least:
		return fmt.Sprintf("≥ %g", r.limit)
	}
	return fmt.Sprintf("≤ %g", r.limit)
}

// job is one measurement; its name is what JOB takes.
type job struct {
	name string
	does string
	run  func() (rows []row, text string, err error) // text follows the table of rows

	alone bool // only when it is named: it needs programs that the others do not
}

// only makes a run of a job that has nothing but rows.
func only(rows func() ([]row, error)) func() ([]row, string, error) {
	return func() ([]row, string, error) {
		r, err := rows()
		return r, "", err
	}
}

var jobs = []job{
	{"decision", "a whole decision: residency, 10 flags, weights, pick, done", only(decisionJob), false},
	{"pick", "one pick and done of each algorithm, endpoints of equal weight, half of them busy", only(pickJob), false},
	{"flag", "one flag of a hundred: a targeting rule and a bucket, the evaluation alone", only(flagJob), false},
	{"outcomes", "how one call went, on its way to a host", only(outcomesJob), false},
	{"snapshot", "a full snapshot of about 78 KB, one change, a burst, to 1,000 watchers in another process", only(snapshotJob), false},
	{"memory", "what an idle watcher takes of the heap, 10,000 of them in another process", only(memoryRows), false},
	{"store", "compare-and-set of a record of 256 bytes, durable", only(storeJob), false},
	{"audit", "append an entry of about 300 bytes, durable; verify a chain", only(auditJob), false},
	{"redis", "compare-and-set of a record of 256 bytes on a Redis server", only(redisJob), false},
	{"pool", "snapshots of workers, runtime reports, extractions, a pick of a proxy", only(poolJob), false},
	{"checker", "10,000 proxies that a checker checks every 30 s, all of them real processes", only(checkerJob), false},
	{"svid", "the check of a certificate request and the SVID for it, P-256", only(svidJob), false},
	{"gateway", "proxy-gateway beside other forward proxies, all in front of the same upstream proxies", gatewayJob, true},
	{"plugin", "a unary call of 128 bytes to a plugin process over a unix socket; starts, memory, instances", only(pluginJob), false},
}

func main() {
	plugins.Dispatch(benchPlugins()) // a plugin's process never gets past this line
	asClient()                       // nor does the one that reads snapshots
	asVersionReader()                // nor the one that follows versions
	asServer()                       // nor the plain gRPC server
	asFar()                          // nor the upstream proxies
	asLoad()                         // nor their clients
	asReference()                    // nor the forward proxy that is a peer
	name := flag.String("job", "", "run this job only")
	file := flag.String("write", "", "write the tables to this file, when all jobs ran or one that runs only when it is named")
	flag.Parse()
	if err := run(*name, *file); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(name, file string) error {
	made := map[string]string{}
	var names []string
	keep := name == ""
	for _, j := range jobs {
		names = append(names, j.name)
		if name != j.name && (name != "" || j.alone) {
			continue
		}
		keep = keep || j.alone
		begin := time.Now()
		fmt.Printf("%s: %s\n", j.name, j.does)
		rows, more, err := j.run()
		if err != nil {
			return fmt.Errorf("%s: %w", j.name, err)
		}
		text := table(j, rows, more)
		fmt.Println(text + fmt.Sprintf("(%.0f s)\n", time.Since(begin).Seconds()))
		made[j.name] = text
	}
	if len(made) == 0 {
		return fmt.Errorf("there is no job %q: known are %s", name, strings.Join(names, ", "))
	}
	if file == "" || !keep {
		return nil
	}
	return write(file, made, name == "")
}

func table(j job, rows []row, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s: %s\n\n", j.name, j.does)
	if j.alone {
		b.WriteString(madeBy("make bench-" + j.name))
	}
	b.WriteString("| work | ours | peer | | ratio | goal | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		peer, ratio := "", ""
		if r.peer != 0 {
			peer, ratio = figure(r.peer)+" "+r.unit, fmt.Sprintf("%.2f", r.ratio())
			if r.pairs != nil {
				ratio += fmt.Sprintf(" (%.2f to %.2f)", r.pairs.least, r.pairs.most)
			}
		}
		fmt.Fprintf(&b, "| %s | %s %s | %s | %s | %s | %s | %s |\n", r.work, figure(r.ours), r.unit, peer, r.what, ratio, r.goal(), r.verdict())
	}
	if b.WriteString("\n"); more != "" {
		b.WriteString(more + "\n")
	}
	return b.String()
}

func figure(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

const (
	beginMark = "<!-- figures: written by make bench -->"
	endMark   = "<!-- end of figures -->"
)

// write replaces the figures of the jobs that ran, and nothing else of the page. Every
// date before the first job is of a run of all.
func write(file string, made map[string]string, all bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	figures, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return errors.New(file + " has no place for figures between its two marks")
	}
	parts := strings.Split(figures, "\n### ")
	head := parts[0] + "\n"
	for _, part := range parts[1:] {
		name, _, _ := strings.Cut(part, ":")
		if made[name] == "" {
			made[name] = "### " + strings.TrimRight(part, "\n") + "\n\n"
		}
	}
	if all {
		head = "\n" + madeBy("make bench")
	}
	var b strings.Builder
	for _, j := range jobs {
		b.WriteString(made[j.name])
	}
	return os.WriteFile(file, []byte(before+beginMark+head+b.String()+endMark+after), 0o644)
}

// madeBy says what made figures, when and where.
func madeBy(command string) string {
	return fmt.Sprintf("Made by `%s` on %s: %s, %d cores, %s, %s.\n\n",
		command, time.Now().UTC().Format("2006-01-02"), cpuName(), runtime.NumCPU(), kernel(), runtime.Version())
}

func cpuName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	out, err := exec.Command("uname", "-sr").Output()
	if err != nil {
		return runtime.GOOS
	}
	words := strings.Fields(string(out))
	release, _, _ := strings.Cut(words[1], "-")
	return words[0] + " " + release
}
