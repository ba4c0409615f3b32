package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

const (
	swapEvery = 100 * time.Millisecond
	swapTurn  = 2 * time.Second
	pacedRate = 1000 // requests a second, of all clients
)

// swapRows measures what a request has of changes: of its routing's weights, which are a
// publication and a new snapshot each, and of drains, which take a proxy away and give it
// back. Requests come at fixed times, or the changes would only move them.
func (s *stage) swapRows() (rows []row, text string, err error) {
	if err := s.publish(s.document(1, 1)); err != nil {
		return nil, "", err
	}
	usable := func() error {
		n, err := s.metric("proxy_gateway_proxies")
		if err == nil && n < farProxies+farOthers {
			err = fmt.Errorf("%.0f proxies of %d", n, farProxies+farOthers)
		}
		return err
	}
	if err := s.until("the gateway to have all proxies", usable); err != nil {
		return nil, "", err
	}
	weight, next := 1, 0
	publish := func() error {
		weight = 3 - weight
		return s.publish(s.document(weight, 1))
	}
	ids, err := s.proxyIDs()
	if err != nil {
		return nil, "", err
	}
	drain := func() error {
		next++
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		_, err := s.pool.BeginDrain(ctx, &controlplanev1.BeginDrainRequest{ProxyId: ids[next%len(ids)], Reason: "bench"})
		if status.Code(err) == codes.FailedPrecondition { // it has not come back yet
			return nil
		}
		return err
	}
	var calls [3]float64
	p99 := func(k int, change func() error) func() (float64, error) {
		return func() (v float64, err error) {
			before, err := s.metric("proxy_gateway_snapshot_version")
			if err != nil {
				return 0, err
			}
			v, err = s.changing(change)
			if err != nil {
				return 0, err
			}
			after, err := s.metric("proxy_gateway_snapshot_version")
			calls[k] += (after - before) / swapTurn.Seconds() / repeats
			return v, err
		}
	}
	m, err := turns(repeats, p99(0, nil), p99(1, publish), p99(2, drain))
	if err != nil {
		return nil, "", err
	}
	const without = "no changes"
	work := fmt.Sprintf("p99 of requests, %d a second, ", pacedRate)
	return []row{
		{work + fmt.Sprintf("%.1f snapshots a second by publications", calls[1]), m[1], m[0], "ms", without, 1.2, false, nil},
		{work + fmt.Sprintf("%.1f snapshots a second by drains", calls[2]), m[2], m[0], "ms", without, 1.2, false, nil},
	}, "", nil
}

// changing is the p99 of requests in milliseconds while something is changed ten times a
// second, or nothing is.
func (s *stage) changing(change func() error) (float64, error) {
	end := make(chan struct{})
	var work sync.WaitGroup
	var failed error
	if change != nil {
		work.Go(func() {
			tick := time.NewTicker(swapEvery)
			defer tick.Stop()
			for failed == nil {
				select {
				case <-end:
					return
				case <-tick.C:
					failed = change()
				}
			}
		})
	}
	f, err := s.turn(s.proxies[0], "get", pacedRate, swapTurn)
	close(end)
	work.Wait()
	return f.p99, errors.Join(err, failed)
}

// proxyIDs are the proxies as the host calls them.
func (s *stage) proxyIDs() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	reply, err := s.pool.ListProxies(ctx, &controlplanev1.ListProxiesRequest{})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, p := range reply.GetProxies() {
		ids = append(ids, p.GetProxy().GetProxyId())
	}
	return ids, nil
}
