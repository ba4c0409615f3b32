package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/balancer/leastrequest"
	"google.golang.org/grpc/balancer/ringhash"
	"google.golang.org/grpc/balancer/roundrobin"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// pickJob measures the choice among endpoints alone, beside the balancer of gRPC
// that does the most similar.
func pickJob() ([]row, error) {
	units := make([]string, 1024)
	keyed := make([]context.Context, len(units))
	for i := range units {
		units[i] = fmt.Sprintf("user-%d", i)
		keyed[i] = withKey(units[i])
	}
	var rows []row
	const n = 1000
	for _, c := range []struct {
		algorithm donav1.Algorithm
		what      string // what the peer is
		peer      string
		config    string
	}{
		{donav1.Algorithm_ALGORITHM_ROUND_ROBIN, "grpc-go round_robin", roundrobin.Name, `{}`},
		{donav1.Algorithm_ALGORITHM_RANDOM, "", "", ""},
		{donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, "grpc-go least_request", leastrequest.Name, `{"choiceCount": 2}`},
		{donav1.Algorithm_ALGORITHM_TIERED, "", "", ""},
		{donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, "grpc-go ring_hash by header, loads not bounded", ringhash.Name, `{"minRingSize": 4096, "maxRingSize": 4096, "requestHashHeader": "` + hashHeader + `"}`},
		{donav1.Algorithm_ALGORITHM_PEAK_EWMA, "grpc-go least_request, which measures nothing", leastrequest.Name, `{"choiceCount": 2}`},
	} {
		ours, err := picks(c.algorithm, n, units)
		if err != nil {
			return nil, err
		}
		sides := []func() (float64, error){nsPerOp(200_000, ours())}
		if c.peer != "" {
			pick, err := grpcBalancer(c.peer, c.config, n)
			if err != nil {
				return nil, err
			}
			next := 0
			sides = append(sides, nsPerOp(200_000, func() {
				next++
				pick(keyed[next%len(keyed)])
			}))
		}
		m, err := turns(repeats, sides...)
		if err != nil {
			return nil, err
		}
		r := row{work: fmt.Sprintf("%s, %d endpoints", c.algorithm.String()[len("ALGORITHM_"):], n), ours: m[0], unit: "ns", what: c.what}
		if len(m) > 1 {
			r.peer = m[1]
		}
		rows = append(rows, r)
		two, err := twoPickers(c.algorithm, n, units)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{"the same, 2 goroutines, each", two, goalOfPick, "ns", "the goal", 1, false, nil})
	}
	return rows, nil
}

// goalOfPick is in nanoseconds, for two goroutines at once.
const goalOfPick = 60

// twoPickers measures a pick while another goroutine picks among the same endpoints.
func twoPickers(a donav1.Algorithm, n int, units []string) (float64, error) {
	op, err := picks(a, n, units)
	if err != nil {
		return 0, err
	}
	m, err := turns(repeats, func() (float64, error) {
		done := make(chan float64)
		for range 2 {
			go func() {
				took, _ := nsPerOp(500_000, op())()
				done <- took
			}()
		}
		return (<-done + <-done) / 2, nil
	})
	if err != nil {
		return 0, err
	}
	return m[0], nil
}

// picks returns how a goroutine gets one pick, begin, observe and end. A look at the
// clock for the latency is the caller's own, as in an application.
func picks(a donav1.Algorithm, n int, units []string) (ops func() func(), err error) {
	p := &donav1.Plan{Algorithm: a}
	switch a {
	case donav1.Algorithm_ALGORITHM_CONSISTENT_HASH:
		p.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_UNIT}
	case donav1.Algorithm_ALGORITHM_TIERED:
		p.GroupTiers = map[string]uint32{"zone-1": 1}
	}
	candidates := make([]plan.Candidate, n)
	for i := range candidates {
		candidates[i] = plan.Candidate{ID: fmt.Sprintf("ep-%05d", i), Group: fmt.Sprintf("zone-%d", i%4), Weight: 100, Load: &plan.Load{}}
		if i%2 == 0 {
			candidates[i].Load.Begin()
		}
	}
	k, err := plan.New(p, candidates, 0)
	if err != nil {
		return nil, err
	}
	hashed, timed := p.Hash != nil, a == donav1.Algorithm_ALGORITHM_PEAK_EWMA
	return func() func() {
		next := rand.IntN(len(units))
		return func() {
			next++
			var key uint64
			if hashed {
				key = plan.Key(units[next%len(units)])
			}
			i, ok := k.Pick(key, nil)
			if !ok {
				panic("nothing to pick")
			}
			load := candidates[i].Load
			load.Begin()
			if timed {
				load.Observe(time.Duration(next%16+1)*time.Millisecond, true)
			}
			load.End()
		}
	}, nil
}
