package rollout

import (
	"math/bits"
	"slices"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// Latencies are counted in buckets that double every eight: values below 8 µs
// have a bucket each, above that a bucket is at most 1/8 of its lower end wide.
// The last one holds everything from about 17 hours up.
const (
	perDoubling = 8
	subBits     = 3
	topBits     = 36 // 2^36 µs is about 19 hours
	buckets     = (topBits - subBits + 1) * perDoubling
)

// bucketOf is the bucket of a latency in microseconds.
func bucketOf(us uint64) int {
	if us < perDoubling {
		return int(us)
	}
	exp := bits.Len64(us) - 1 // at least subBits
	if exp >= topBits {
		return buckets - 1
	}
	return (exp-subBits+1)*perDoubling + int(us>>(exp-subBits))&(perDoubling-1)
}

// bucketLow is the smallest latency of a bucket; that of bucket i+1 is the
// first above bucket i.
func bucketLow(i int) uint64 {
	if i < perDoubling {
		return uint64(i)
	}
	exp := i/perDoubling + subBits - 1
	return uint64(perDoubling+i%perDoubling) << (exp - subBits)
}

func record(h *statev1.Histogram, us uint64, count uint64, success bool) {
	h.Requests += count
	if !success {
		h.Errors += count
	}
	at := bucketOf(us)
	if at >= len(h.Counts) {
		h.Counts = append(h.Counts, make([]uint64, at+1-len(h.Counts))...)
	}
	h.Counts[at] += count
}

func addTo(sum, h *statev1.Histogram) {
	sum.Requests += h.GetRequests()
	sum.Errors += h.GetErrors()
	if short := len(h.GetCounts()) - len(sum.Counts); short > 0 {
		sum.Counts = append(sum.Counts, make([]uint64, short)...)
	}
	for i, n := range h.GetCounts() {
		sum.Counts[i] += n
	}
}

// quantile is the latency that the share q of the calls does not exceed, in
// microseconds, exact to 1/8; 0 when there are none. Inside a bucket calls are
// taken to be spread evenly.
func quantile(h *statev1.Histogram, q float64) uint64 {
	var total uint64
	for _, n := range h.GetCounts() {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := min(total, max(1, uint64(q*float64(total)+0.999999)))
	var below uint64
	for i, n := range h.GetCounts() {
		if below+n < rank {
			below += n
			continue
		}
		low := bucketLow(i)
		width := bucketLow(i+1) - low
		return low + uint64(float64(width-1)*float64(rank-below)/float64(n))
	}
	return bucketLow(len(h.GetCounts()))
}

// pluginWindow is a histogram as analysis plugins get it: cumulative, and only
// where it rises.
func pluginWindow(h *statev1.Histogram) *pluginv1.Window {
	w := &pluginv1.Window{Requests: h.GetRequests(), Errors: h.GetErrors()}
	var sum uint64
	for i, n := range h.GetCounts() {
		if n == 0 {
			continue
		}
		sum += n
		w.UpperUs = append(w.UpperUs, bucketLow(i+1)-1)
		w.Counts = append(w.Counts, sum)
	}
	return w
}

// dropBefore drops the seconds at or before oldest.
func dropBefore(w *statev1.Window, oldest int64) {
	w.Buckets = slices.DeleteFunc(w.Buckets, func(b *statev1.Bucket) bool { return b.GetSecond() <= oldest })
}
