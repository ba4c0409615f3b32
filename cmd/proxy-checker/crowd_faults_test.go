//go:build faults && linux

package main

import (
	"slices"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// TestCrowd: two thousand proxies every six seconds, a tenth of them dead, are as many
// checks a second as ten thousand have at the usual interval. No check is missed and none
// is made twice, what dies is known after three checks, and all that was seen counts.
func TestCrowd(t *testing.T) {
	const (
		all, interval = 2000, 6 * time.Second
		soonest       = interval - interval/5
		latest        = interval + interval/5
		busy          = 5 * time.Second // that this machine may take
	)
	crowd, err := proxytest.NewCrowd(78, all)
	fatal(t, err)
	t.Cleanup(crowd.Close)
	dead := func(i int) bool { return i%10 == 0 }
	for i := range all {
		if dead(i) {
			crowd.Kill(i)
		}
	}
	p := startPlane(t, map[string]string{"check-interval": interval.String(), "check-timeout": "5s"})
	c := startChecker(t, p, "paris", "-max-in-flight", "256", "-log-level", "info")
	p.publishAt(crowd.Addresses(), "check: {maxInFlight: 128}")
	count := func(state string) int {
		resp, err := p.pools.GetAvailability(p.ctx, &controlplanev1.GetAvailabilityRequest{})
		fatal(t, err)
		return int(resp.Upstreams[0].ByState[state])
	}
	eventually(t, "the living are available", func() bool { return count("AVAILABLE") == all*9/10 })
	eventually(t, "the dead are unhealthy", func() bool { return count("UNHEALTHY") == all/10 })
	from := time.Now()
	for time.Since(from) < 4*interval {
		if n := count("AVAILABLE"); n != all*9/10 {
			t.Fatalf("%d are available, and nothing has changed", n)
		}
		<-time.After(200 * time.Millisecond)
	}
	var gaps []time.Duration
	for i := range all {
		asked := crowd.Asked(i)
		if dead(i) != (len(asked) == 0) {
			t.Fatalf("proxy %d was asked %d times", i, len(asked))
		}
		if dead(i) {
			continue
		}
		for n := range asked[1:] {
			gap := asked[n+1].Sub(asked[n])
			gaps = append(gaps, gap)
			if asked[n+1].Before(from) {
				continue // by other waits: it was not available yet
			}
			if gap < soonest-100*time.Millisecond {
				t.Errorf("proxy %d is checked again after %v, at the soonest after %v", i, gap, soonest)
			}
			if gap > latest+busy {
				t.Errorf("proxy %d is checked again after %v, at the latest after %v", i, gap, latest)
			}
		}
		if silent := time.Since(asked[len(asked)-1]); silent > latest+busy {
			t.Errorf("proxy %d is not checked for %v", i, silent)
		}
	}
	slices.Sort(gaps)
	t.Logf("%d gaps: %v to %v, the middle %v", len(gaps), gaps[0], gaps[len(gaps)-1], gaps[len(gaps)/2])

	for i := range all {
		if i%10 == 1 {
			crowd.Kill(i)
		}
	}
	killed := time.Now()
	eventually(t, "those that were killed are unhealthy", func() bool { return count("UNHEALTHY") == all/5 })
	t.Logf("a tenth was killed, and known to be unhealthy after %v", time.Since(killed))
	if n := count("AVAILABLE"); n != all*8/10 {
		t.Errorf("%d are available", n)
	}
	for _, m := range []string{"proxy_checker_observations_refused_total", "proxy_checker_observations_lost_total", "proxy_checker_tasks_surplus_total"} {
		if v := c.metric(m); v != "0" {
			t.Errorf("%s is %s", m, v)
		}
	}
}
