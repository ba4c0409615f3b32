//go:build linux && faults

package plugins_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// Twenty plugins that end as soon as they start, with the product's own waits
// and budget: the host hardly notices, whatever time it takes. A minute by
// default, five with REPEAT set.
func TestTwentyCrashLoops(t *testing.T) {
	span := time.Minute
	if os.Getenv("REPEAT") != "" {
		span = 5 * time.Minute
	}
	c := cast{"sdk": "sdk"}
	for i := range 20 {
		c[fmt.Sprint("loop", i)] = []string{"crash", "crash-later", "exit", "words"}[i%4]
	}
	host := startHostProcess(t, ownProgram(t), hostSetup{Cast: c, Product: true})
	host.must("await sdk")

	host.must("keep-slowly sdk")
	host.must("span 4s")
	host.tell("counts") // the first calls warm up
	host.must("span 8s")
	alone := host.must("counts")
	calling := host.must("stats")
	host.must("span 4s")
	// What the calls themselves take is no part of what the loops take.
	calls := float64(host.must("stats").CPU-calling.CPU) / float64(4*time.Second)
	host.must("counts")
	before := host.must("settle")

	for i := range 20 {
		host.must(fmt.Sprint("ensure loop", i))
	}
	var worst hostReply
	began := time.Now()
	end := began.Add(span)
	for time.Now().Before(end) {
		host.must("span 2s")
		now := host.must("stats")
		worst.Descriptors = max(worst.Descriptors, now.Descriptors)
		worst.Goroutines = max(worst.Goroutines, now.Goroutines)
		worst.Zombies = max(worst.Zombies, now.Zombies)
		worst.Sockets = max(worst.Sockets, now.Sockets)
		worst.Processes = max(worst.Processes, now.Processes)
	}
	after := host.must("stats")
	during := host.must("counts")
	took := time.Since(began)
	used := after.CPU - before.CPU
	share := float64(used)/float64(took) - calls
	starts := 0
	for i := range 20 {
		s := host.must(fmt.Sprint("status loop", i))
		starts += int(s.Starts)
		if s.State == "" || s.State == "stopped" || s.Starts == 0 {
			t.Errorf("loop%d is %q after %d starts: %s", i, s.State, s.Starts, s.Reason)
		}
	}
	t.Logf("%d starts in %v: the host used %v of processor time, without the calls %.2f %% of a processor", starts, took, used, 100*share)
	t.Logf("before: %d descriptors, %d goroutines, %d sockets, %d processes", before.Descriptors, before.Goroutines, before.Sockets, before.Processes)
	t.Logf("at most: %d descriptors, %d goroutines, %d sockets, %d processes, %d zombies", worst.Descriptors, worst.Goroutines, worst.Sockets, worst.Processes, worst.Zombies)
	t.Logf("after: %d descriptors, %d goroutines, %d sockets, %d processes, %+d KiB", after.Descriptors, after.Goroutines, after.Sockets, after.Processes, after.RSS-before.RSS)
	t.Logf("well-behaved: p50 %v, p99 %v, max %v; alone: p50 %v, p99 %v, max %v", during.P50, during.P99, during.Max, alone.P50, alone.P99, alone.Max)
	if share > 0.03 {
		t.Errorf("the host used %.2f %% of a processor: allowed are 3", 100*share)
	}
	// Processes come and go; what is there at the end is what was there before and
	// at most one process per plugin that is just up.
	const up = 20
	if after.Goroutines > before.Goroutines+30*up || after.Descriptors > before.Descriptors+12*up || worst.Zombies > up {
		t.Errorf("grown: %+v, before %+v", after, before)
	}
	if during.Failed > 0 {
		t.Errorf("%d calls of the well-behaved plugin failed: %s", during.Failed, during.Error)
	}
	// Within a fifth of alone, and what a process that starts on the same
	// processors may take from a call: some 50 ms on an idle machine, more on a
	// busy one.
	if most := alone.P99*12/10 + 250*time.Millisecond; during.P99 > most {
		t.Errorf("p99 of the well-behaved plugin is %v: allowed are %v", during.P99, most)
	}
	if err := host.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	host.terminated()
	host.nothingLeft()
}
