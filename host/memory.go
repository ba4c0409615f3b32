package host

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
)

// inUse are what the Go runtime cannot give back: what the last collection found
// alive, stacks, and its own. What a next collection frees is not part of it, so a
// heap that may grow to its limit is not taken for one that has to.
var inUse = []string{
	"/gc/heap/live:bytes", "/memory/classes/heap/stacks:bytes", "/memory/classes/os-stacks:bytes", "/memory/classes/other:bytes",
	"/memory/classes/metadata/mcache/inuse:bytes", "/memory/classes/metadata/mspan/inuse:bytes", "/memory/classes/metadata/other:bytes",
	"/memory/classes/profiling/buckets:bytes",
}

// memory is what this process needs, and what it may; 0 = all it wants.
func memory() (used, limit uint64) {
	most := debug.SetMemoryLimit(-1)
	if most == math.MaxInt64 {
		return 0, 0
	}
	samples := make([]metrics.Sample, len(inUse))
	for i, name := range inUse {
		samples[i].Name = name
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			used += s.Value.Uint64()
		}
	}
	return used, uint64(most)
}
