package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// planes opens the stores that reports and extractions are measured on.
func planes() (all map[string]*plane, end func(), err error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, nil, err
	}
	disk, err := embedded.Open(filepath.Join(dir, "data"), embedded.Options{})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	addr, shared, stop, err := openRedis([]string{"--appendonly", "yes", "--appendfsync", "everysec"}, 1)
	if err != nil {
		_ = disk.Close()
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	end = func() {
		stop()
		_ = disk.Close()
		_ = os.RemoveAll(dir)
	}
	all = map[string]*plane{}
	for name, st := range map[string]store.Store{"embedded": disk, "Redis": shared[0]} {
		if all[name], err = openPlane(st); err != nil {
			end()
			return nil, nil, err
		}
	}
	all["Redis"].server = func() (time.Duration, error) { return redisCPU(addr) }
	return all, end, nil
}

// redisCPU is the user and system time that a server has used.
func redisCPU(addr string) (sum time.Duration, err error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2})
	defer func() { _ = c.Close() }()
	text, err := c.Info(context.Background(), "cpu").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, nil
}

// reportRows measures runtime reports of 512 counters.
func reportRows() ([]row, error) {
	all, end, err := planes()
	if err != nil {
		return nil, err
	}
	defer end()
	var rows []row
	for _, c := range []struct {
		name string
		goal float64
	}{{"embedded", 5000}, {"Redis", 3000}} {
		p := all[c.name]
		report, err := p.reporters()
		if err != nil {
			return nil, err
		}
		var each, servers []float64
		perReport := func(d time.Duration, n uint64) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }
		m, err := turns(poolTurns, func() (float64, error) {
			var of time.Duration
			if p.server != nil {
				var err error
				if of, err = p.server(); err != nil {
					return 0, err
				}
			}
			before, count := cpu(), p.sent()
			v, err := rate(reporters, poolTurn, report)
			sent := p.sent() - count
			each = append(each, perReport(cpu()-before, sent))
			if err == nil && p.server != nil {
				var now time.Duration
				now, err = p.server()
				servers = append(servers, perReport(now-of, sent))
			}
			return v, err
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows,
			row{fmt.Sprintf("runtime reports of %d counters by %d workers, %s, soft", counters, reporters, c.name), m[0], c.goal, "/s", "the goal", 1, true, nil},
			row{work: "the same", ours: median(each), unit: "µs CPU of the host a report"})
		if p.server != nil {
			rows = append(rows, row{work: "the same", ours: median(servers), unit: "µs CPU of the server a report"})
		}
	}
	return rows, nil
}

func (p *plane) sent() (n uint64) {
	for i := range p.reports {
		n += p.reports[i]
	}
	return n
}

// reporters registers workers and returns how each sends its next report.
func (p *plane) reporters() (func(i int) error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	requests := make([]*controlplanev1.ReportRuntimeRequest, reporters)
	for i := range requests {
		w, err := p.register(fmt.Sprint("w", i))
		if err != nil {
			return nil, err
		}
		var first *controlplanev1.WorkerSnapshot
		err = p.Watch(ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: w.id, SessionId: w.session}, func(u *controlplanev1.SnapshotUpdate) error {
			first = u.GetFull()
			return context.Canceled
		})
		if first == nil {
			return nil, err
		}
		p.reports[i] = 1
		if err := p.accept(w, first, p.reports[i]); err != nil {
			return nil, err
		}
		req := &controlplanev1.ReportRuntimeRequest{WorkerId: w.id, SessionId: w.session, SnapshotVersion: first.Version, OwnershipEpoch: first.OwnershipEpoch}
		for n := range counters {
			req.Counters = append(req.Counters, &controlplanev1.RuntimeCounter{ProxyId: fmt.Sprintf("%032x", n), Active: uint32(n%7 + 1)})
		}
		requests[i] = req
	}
	return func(i int) error {
		req := requests[i]
		p.reports[i]++
		req.ReportSequence = p.reports[i]
		req.Counters[int(p.reports[i])%counters].Active++
		_, err := p.ReportRuntime(context.Background(), req.WorkerId, req)
		return err
	}, nil
}

// extractRows measures extractions of one proxy, each durable and by a key of its own.
func extractRows() ([]row, error) {
	all, end, err := planes()
	if err != nil {
		return nil, err
	}
	defer end()
	var rows []row
	for _, name := range []string{"embedded", "Redis"} {
		p := all[name]
		const each = 1500
		next := 0
		m, err := turns(poolTurns, func() (float64, error) {
			if err := p.add(next, each); err != nil {
				return 0, err
			}
			var key atomic.Int64
			var all sync.WaitGroup
			failed := make(chan error, extractors)
			begin := time.Now()
			for range extractors {
				all.Go(func() {
					for n := key.Add(1); n <= each; n = key.Add(1) {
						if _, err := p.Extract(context.Background(), benchOperator, &controlplanev1.ExtractRequest{
							IdempotencyKey: fmt.Sprint(next, "-", n), Upstream: "dc", Count: 1}); err != nil {
							failed <- err
							return
						}
					}
				})
			}
			all.Wait()
			took := time.Since(begin)
			next += each
			select {
			case err := <-failed:
				return 0, err
			default:
			}
			return each / took.Seconds(), nil
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{work: fmt.Sprintf("extractions of one proxy by %d callers, %s, hard", extractors, name), ours: m[0], unit: "/s"})
	}
	return rows, nil
}
