package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	gatewayClients = 32
	gatewayTurn    = 700 * time.Millisecond

	idleFirst   = 200  // tunnels that are open before memory is looked at
	idleTunnels = 3000 // further ones
	idleTurns   = 3

	goalOfIdle = 12 << 10 // bytes
)

// gatewayJob measures the gateway, as the program that it is, beside other forward proxies
// in front of the same upstream proxies.
func gatewayJob() (rows []row, text string, err error) {
	s, err := newStage()
	defer func() { s.end() }()
	if err != nil {
		return nil, "", err
	}
	var more strings.Builder
	for _, part := range []func() ([]row, string, error){s.loadRows, s.idleRows, s.swapRows, s.answers} {
		r, t, err := part()
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, r...)
		more.WriteString(t)
	}
	picks, err := proxyPicks()
	return append(rows, picks...), more.String(), err
}

// figures are what one turn of load gave: CPU time of the proxy an operation in µs,
// operations a second, and milliseconds.
type figures struct{ cpu, rate, p50, p99 float64 }

// loadRows measures three kinds of work.
func (s *stage) loadRows() (rows []row, text string, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d clients, each as fast as it goes:\n\n| work | proxy | CPU each | each second | p50 | p99 |\n|---|---|---|---|---|---|\n", gatewayClients)
	for _, work := range []struct {
		do, name string
		peer     int // that the goal is of
		goal     float64
	}{
		{"get", "keep-alive request in absolute form, 1 KiB", 3, 0.5},
		{"exchange", "1 KiB there and back inside a tunnel", 1, 1.1},
		{"connect", "new connection, CONNECT, a request inside, 1 KiB", 3, 0.8},
	} {
		all := make([][4][]float64, len(s.proxies))
		for range repeats {
			for i, p := range s.proxies {
				f, err := s.turn(p, work.do, 0, gatewayTurn)
				if err != nil {
					return nil, "", fmt.Errorf("%s, %s: %w", work.do, p.name, err)
				}
				for k, v := range []float64{f.cpu, f.rate, f.p50, f.p99} {
					all[i][k] = append(all[i][k], v)
				}
			}
		}
		var cpus []float64
		for i, p := range s.proxies {
			cpus = append(cpus, median(all[i][0]))
			fmt.Fprintf(&b, "| %s | %s | %s µs | %s | %s ms | %s ms |\n", work.name, p.name, figure(cpus[i]), figure(median(all[i][1])), figure(median(all[i][2])), figure(median(all[i][3])))
		}
		for i := 1; i < len(s.proxies); i++ {
			r := row{work: work.name, ours: cpus[0], peer: cpus[i], unit: "µs CPU", what: s.proxies[i].name}
			if i == work.peer {
				r.limit = work.goal
			}
			rows = append(rows, r)
		}
	}
	return rows, b.String() + "\n", nil
}

// turn has the clients work through a proxy for a while.
func (s *stage) turn(p *contender, do string, rate int, long time.Duration) (f figures, err error) {
	if _, err := s.tell(order{Do: do, Proxy: p.address, Conns: gatewayClients}); err != nil {
		return f, err
	}
	before, err := cpuOf(p.pid)
	if err != nil {
		return f, err
	}
	result, err := s.tell(order{Do: "go", For: long, Rate: rate})
	if err != nil {
		return f, err
	}
	after, err := cpuOf(p.pid)
	if err != nil {
		return f, err
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	f = figures{float64(after-before) / float64(time.Microsecond) / float64(result.N), float64(result.N) / result.Took.Seconds(), ms(result.P50), ms(result.P99)}
	_, err = s.tell(order{Do: "end"})
	return f, err
}

// idleRows measures the memory of a tunnel in which nothing happens, of programs that have
// just been started.
func (s *stage) idleRows() (rows []row, text string, err error) {
	all := make([][]float64, len(s.proxies))
	for range idleTurns {
		for i, p := range s.proxies {
			v, err := s.idle(p)
			if err != nil {
				return nil, "", fmt.Errorf("idle tunnels, %s: %w", p.name, err)
			}
			all[i] = append(all[i], v)
		}
	}
	work := fmt.Sprintf("memory (PSS) of an idle tunnel, of %d", idleTunnels)
	ours := median(all[0])
	rows = append(rows, row{work, ours, goalOfIdle, "bytes", "the goal", 1, false, nil})
	for i := 1; i < len(s.proxies); i++ {
		rows = append(rows, row{work: work, ours: ours, peer: median(all[i]), unit: "bytes", what: s.proxies[i].name})
	}
	return rows, "", nil
}

func (s *stage) idle(p *contender) (float64, error) {
	s.halt(p)
	if err := s.begin(p); err != nil {
		return 0, err
	}
	at := func(n int) (float64, error) {
		if _, err := s.tell(order{Do: "idle", Proxy: p.address, Conns: n}); err != nil {
			return 0, err
		}
		return settled(p.pid)
	}
	before, err := at(idleFirst)
	if err != nil {
		return 0, err
	}
	after, err := at(idleTunnels)
	if err != nil {
		return 0, err
	}
	_, err = s.tell(order{Do: "end"})
	return (after - before) / idleTunnels, err
}

// settled is a process's memory once it has stayed for a second.
func settled(pid int) (float64, error) {
	last, since := math.Inf(1), time.Now()
	for begin := time.Now(); time.Since(begin) < startLimit; time.Sleep(100 * time.Millisecond) {
		v, err := memoryOf(pid)
		if err != nil {
			return 0, err
		}
		if math.Abs(v-last) > v/200 {
			last, since = v, time.Now()
		}
		if time.Since(since) > time.Second {
			return v, nil
		}
	}
	return last, nil
}
