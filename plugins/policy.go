package plugins

import (
	"math/rand/v2"
	"time"
)

// The decisions of the supervisor, without clocks or processes.

// recent returns the times not older than window.
func recent(times []time.Time, now time.Time, window time.Duration) []time.Time {
	kept := times[:0:0]
	for _, t := range times {
		if now.Sub(t) < window {
			kept = append(kept, t)
		}
	}
	return kept
}

// quarantined says whether a plugin that ended at these times has to stay away
// until an operator resets it.
func quarantined(exits []time.Time, now time.Time, l Limits) bool {
	return len(recent(exits, now, l.QuarantineIn)) >= l.QuarantineAt
}

// restartDelay draws the wait before the next start: between Min and a ceiling
// that doubles with every exit, so that plugins that fell together do not come
// back together.
func restartDelay(exits int, b Backoff, random func() float64) time.Duration {
	ceiling := b.Min
	for range exits {
		if ceiling *= 2; ceiling >= b.Max {
			ceiling = b.Max
			break
		}
	}
	return b.Min + time.Duration(random()*float64(ceiling-b.Min))
}

func random() float64 { return rand.Float64() }

// A budget is the number of restarts that all plugins together may have within
// a window. It is not safe for concurrent use.
type budget struct {
	most   int
	window time.Duration
	spent  []time.Time
}

// take spends one restart now and returns 0, or says how long to wait.
func (b *budget) take(now time.Time) time.Duration {
	b.spent = recent(b.spent, now, b.window)
	if len(b.spent) < b.most {
		b.spent = append(b.spent, now)
		return 0
	}
	return b.window - now.Sub(b.spent[0])
}
