package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/host/loopback"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

const (
	checkedProxies = 10_000
	deadProxies    = checkedProxies / 10 // from the beginning, and as many are killed later
	checkEvery     = 30 * time.Second    // the usual interval of BASIC checks
	checkJitter    = checkEvery / 5
	checkLate      = time.Second // that a check may come later than the longest wait
	checkedFor     = 75 * time.Second
	clockTicks     = 100 // of /proc, a second
)

// checkerJob has a checker check many proxies for a host, each program a process, and
// then kills some of the proxies.
func checkerJob() (rows []row, err error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	crowd, err := proxytest.NewCrowd(77, checkedProxies)
	if err != nil {
		return nil, err
	}
	defer crowd.Close()
	for i := range deadProxies {
		crowd.Kill(i * 10)
	}
	c := &checkup{dir: dir, crowd: crowd}
	defer c.end()
	if err := c.start(); err != nil {
		return nil, err
	}
	if rows, err = c.measure(); err != nil {
		return nil, err
	}
	more, err := c.kill()
	return append(rows, more...), err
}

// checkup is a host and a checker that are processes, and the proxies that they check.
type checkup struct {
	dir           string
	crowd         *proxytest.Crowd
	host, checker *exec.Cmd
	http          string
	pools         controlplanev1.PoolAdminClient
	close         func()
}

func (c *checkup) end() {
	for _, p := range []*exec.Cmd{c.checker, c.host} {
		if p != nil {
			_ = p.Process.Signal(os.Interrupt)
			_ = p.Wait()
		}
	}
	if c.close != nil {
		c.close()
	}
}

// start builds both programs and runs them, and publishes the proxies.
func (c *checkup) start() error {
	build := exec.Command("go", "build", "-o", c.dir, "./cmd/dona-host", "./cmd/proxy-checker")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	var ports [2]string
	for i := range ports {
		var err error
		if ports[i], err = loopback.Free(); err != nil {
			return err
		}
	}
	c.http = ports[1]
	settings := filepath.Join(c.dir, "checker.yaml")
	if err := os.WriteFile(settings, []byte("controlPlane: {tls: {mode: disabled}}\nplugins: {probe: {proxy: {env: {PROBE_ALLOW: loopback}}}}\n"), 0o600); err != nil {
		return err
	}
	var err error
	if c.host, err = c.run("dona-host", "--dev", "--data-dir", filepath.Join(c.dir, "data"), "--grpc-listen", ports[0], "--http-listen", c.http,
		"--check-interval", checkEvery.String()); err != nil {
		return err
	}
	conn, err := grpc.NewClient(ports[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	c.close = func() { _ = conn.Close() }
	c.pools = controlplanev1.NewPoolAdminClient(conn)
	if err := c.until("the host to answer", time.Minute, func(ctx context.Context) (bool, error) {
		_, err := c.pools.GetAvailability(ctx, &controlplanev1.GetAvailabilityRequest{})
		return err == nil, nil
	}); err != nil {
		return err
	}
	if _, err := c.pools.PublishConfig(context.Background(), &controlplanev1.PublishConfigRequest{Yaml: fmt.Sprintf(`
cluster: {id: bench}
upstreams:
  - {name: dc, protocol: http, allowAddresses: [loopback], source: {type: static, proxies: [%s]}, check: {maxInFlight: 128}}
routings:
  - {name: all, upstreams: [{name: dc}]}
`, strings.Join(c.crowd.Addresses(), ", "))}); err != nil {
		return err
	}
	c.checker, err = c.run("proxy-checker", "-control-plane", ports[0], "-checker-id", "bench", "-instance-id", "bench-1", "-config", settings, "-max-in-flight", "256")
	return err
}

func (c *checkup) run(program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(c.dir, program), args...)
	log, err := os.Create(filepath.Join(c.dir, program+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	return cmd, cmd.Start()
}

func (c *checkup) until(what string, limit time.Duration, is func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		ok, err := is(ctx)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %s", limit, what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// counts is how many proxies are in each state.
func (c *checkup) counts(ctx context.Context) (available, unhealthy int, err error) {
	resp, err := c.pools.GetAvailability(ctx, &controlplanev1.GetAvailabilityRequest{})
	if err != nil {
		return 0, 0, err
	}
	for _, u := range resp.Upstreams {
		available += int(u.ByState["AVAILABLE"])
		unhealthy += int(u.ByState["UNHEALTHY"])
	}
	return available, unhealthy, nil
}

// measure waits until all is settled and then looks at what the proxies see.
func (c *checkup) measure() ([]row, error) {
	began := time.Now()
	if err := c.until("all living proxies to be available", 5*time.Minute, func(ctx context.Context) (bool, error) {
		available, _, err := c.counts(ctx)
		return available == checkedProxies-deadProxies, err
	}); err != nil {
		return nil, err
	}
	first := time.Since(began)
	if err := c.until("all dead proxies to be unhealthy", 5*time.Minute, func(ctx context.Context) (bool, error) {
		_, unhealthy, err := c.counts(ctx)
		return unhealthy == deadProxies, err
	}); err != nil {
		return nil, err
	}
	leasedBefore, lateBefore, err := c.leases()
	if err != nil {
		return nil, err
	}
	hostBefore, checkerBefore := treeCPU(c.host.Process.Pid), treeCPU(c.checker.Process.Pid)
	from := time.Now()
	time.Sleep(checkedFor) // the measurement
	took := time.Since(from)
	host, checker := treeCPU(c.host.Process.Pid)-hostBefore, treeCPU(c.checker.Process.Pid)-checkerBefore
	var gaps []time.Duration
	missed, doubled, checks := 0, 0, 0
	for i := range checkedProxies {
		if i%10 == 0 {
			continue // dead
		}
		last := from.Add(-checkEvery)
		for _, at := range c.crowd.Asked(i) {
			if at.After(from) {
				checks++
				gap := at.Sub(last)
				if last.After(from) {
					gaps = append(gaps, gap)
				}
				if last.After(from) && gap < checkEvery-checkJitter-checkLate {
					doubled++
				}
			}
			last = at
		}
		if time.Since(last) > checkEvery+checkJitter+checkLate {
			missed++
		}
	}
	if len(gaps) == 0 {
		return nil, errors.New("no proxy was checked twice")
	}
	slices.Sort(gaps)
	most := checkEvery + checkJitter + checkLate
	for _, g := range gaps {
		if g > most {
			missed++
		}
	}
	leased, late, err := c.leases()
	if err != nil {
		return nil, err
	}
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
	work := fmt.Sprintf("%d proxies, %d of them dead, %d checks a second", checkedProxies, deadProxies, int(float64(checks)/took.Seconds()))
	return []row{
		{work: "from the publication until all living proxies are available", ours: first.Seconds(), unit: "s"},
		{work + ": the longest time between two checks", gaps[len(gaps)-1].Seconds(), most.Seconds(), "s", "the interval, its jitter and a second", 1, false, nil},
		{work: "the same, p50", ours: gaps[len(gaps)/2].Seconds(), unit: "s"},
		{work: "checks that came later than that, or not at all", ours: float64(missed), unit: ""},
		{work: "checks that came before their time", ours: float64(doubled), unit: ""},
		{work: "tasks that were leased more than 0.5 s after they were due, of a thousand", ours: 1000 * (late - lateBefore) / (leased - leasedBefore), unit: ""},
		{work: "CPU of the host, of one core", ours: percent(host), unit: "%"},
		{work: "CPU of the checker with its probe's process, of one core", ours: percent(checker), unit: "%"},
	}, nil
}

// kill kills as many more, and waits until it is known.
func (c *checkup) kill() ([]row, error) {
	for i := range deadProxies {
		c.crowd.Kill(i*10 + 1)
	}
	began := time.Now()
	var half time.Duration
	if err := c.until("the killed proxies to be unhealthy", 5*time.Minute, func(ctx context.Context) (bool, error) {
		available, unhealthy, err := c.counts(ctx)
		if half == 0 && available <= checkedProxies-deadProxies*3/2 {
			half = time.Since(began)
		}
		return unhealthy == 2*deadProxies, err
	}); err != nil {
		return nil, err
	}
	return []row{
		{work: fmt.Sprintf("%d more are killed: until half of them take no traffic", deadProxies), ours: half.Seconds(), unit: "s"},
		{work: "until all of them are UNHEALTHY", ours: time.Since(began).Seconds(), unit: "s"},
	}, nil
}

// leases is how many tasks were leased, and how many of them late, as the host's metrics
// have it.
func (c *checkup) leases() (all, late float64, err error) {
	resp, err := http.Get("http://" + c.http + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	value := func(name string) (v float64) {
		for line := range strings.Lines(string(text)) {
			if number, ok := strings.CutPrefix(strings.TrimSpace(line), "dona_check_overdue_seconds_"+name+" "); ok {
				v, err = strconv.ParseFloat(number, 64)
				return v
			}
		}
		err = fmt.Errorf("the host has no dona_check_overdue_seconds_%s", name)
		return 0
	}
	all = value("count")
	return all, all - value(`bucket{le="0.5"}`), err
}

// treeCPU is the user and system time of a process and of those that it started.
func treeCPU(pid int) (sum time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	for _, f := range fields[11:15] { // its own, and of children that ended
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += time.Duration(n) * time.Second / clockTicks
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		children, _ := os.ReadFile(name)
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				sum += treeCPU(n)
			}
		}
	}
	return sum
}
