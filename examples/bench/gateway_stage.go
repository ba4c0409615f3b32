package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/host/spawn"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

const (
	startLimit = 30 * time.Second // for a program to do what it is for
	stopLimit  = 10 * time.Second
)

// stage is everything that runs while gateways are measured: the far process and that of
// the clients, a control plane with a checker, and the proxies beside each other.
type stage struct {
	dir     string
	spawn   *spawn.Spawner
	far     *readers
	ups     []string // addresses of the upstream proxies
	clients *readers

	conn    *grpc.ClientConn
	pool    controlplanev1.PoolAdminClient
	host    string // its address
	metrics string // address of our gateway's
	proxies []*contender
}

// contender is a proxy that is measured.
type contender struct {
	name    string
	address string
	start   func(address string) (pid int, stop func(), err error)
	pid     int
	stop    func()
}

// newStage starts everything. Whatever was started is ended by end, also after an error.
func newStage() (s *stage, err error) {
	s = &stage{}
	if s.dir, err = os.MkdirTemp("", "dona-bench-*"); err != nil {
		return s, err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { // Squid is another user
		return s, err
	}
	environ := spawn.Environ(os.Environ(), s.dir)
	s.spawn = spawn.New(environ)
	s.endOnSignal()
	if s.far, err = startReaders(farEnv, "1"); err != nil {
		return s, err
	}
	line, err := s.far.line()
	if err != nil {
		return s, err
	}
	s.ups = strings.Fields(line)
	if s.clients, err = startReaders(loadEnv, "1"); err != nil {
		return s, err
	}
	if err := s.startPlane(); err != nil {
		return s, err
	}
	s.proxies = []*contender{
		{name: "ours", start: s.startOurs},
		{name: "HAProxy", start: s.startHAProxy},
		{name: "Squid", start: s.startSquid},
		{name: "net/http + goproxy", start: s.startReference},
	}
	for _, p := range s.proxies {
		if p.address, err = loopback.Free(); err != nil {
			return s, err
		}
		if err := s.begin(p); err != nil {
			return s, err
		}
	}
	return s, nil
}

// endOnSignal ends what was started when this program is interrupted.
func (s *stage) endOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		s.spawn.KillAll()
		_ = os.RemoveAll(s.dir)
		os.Exit(130)
	}()
}

func (s *stage) end() {
	for _, p := range s.proxies {
		s.halt(p)
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.spawn != nil {
		for _, name := range s.spawn.StopAll(stopLimit) {
			fmt.Fprintf(os.Stderr, "bench: %s did not end in time and was killed\n", name)
		}
		s.spawn.Close()
	}
	for _, r := range []*readers{s.clients, s.far} {
		if r != nil {
			r.end()
		}
	}
	_ = os.RemoveAll(s.dir)
}

// begin starts a proxy and waits until it leads a request to its target.
func (s *stage) begin(p *contender) (err error) {
	if p.pid, p.stop, err = p.start(p.address); err != nil {
		return err
	}
	return s.until(p.name+" to answer", func() error {
		c := &loadClient{proxy: p.address}
		if err := c.dial(); err != nil {
			return err
		}
		defer c.close()
		return c.get()
	})
}

func (s *stage) halt(p *contender) {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

func (s *stage) until(what string, is func() error) error {
	for begin := time.Now(); ; time.Sleep(25 * time.Millisecond) {
		err := is()
		if err == nil {
			return nil
		}
		if time.Since(begin) > startLimit {
			return fmt.Errorf("was waiting for %s: %w", what, err)
		}
	}
}

// program starts a program whose output goes to a file of its own.
func (s *stage) program(name, path string, args ...string) (pid int, stop func(), err error) {
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return 0, nil, err
	}
	c, err := s.spawn.Start(name, path, args, nil, log)
	if err != nil {
		return 0, nil, err
	}
	return c.PID(), func() { c.Stop(stopLimit) }, nil
}

// file writes a file of the stage's and returns its path.
func (s *stage) file(name, text string) (string, error) {
	path := filepath.Join(s.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// startPlane builds our programs and starts a host, with a configuration that has the
// upstream proxies, and a checker, without which none of them is used.
func (s *stage) startPlane() (err error) {
	build := exec.Command("go", "build", "-C", "../..", "-trimpath", "-o", s.dir+"/", "./cmd/dona-host", "./cmd/proxy-gateway", "./cmd/proxy-checker")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("our programs are not built: %w\n%s", err, text)
	}
	if s.host, err = loopback.Free(); err != nil {
		return err
	}
	operators, err := loopback.Free()
	if err != nil {
		return err
	}
	if _, _, err = s.program("dona-host", s.dir+"/dona-host", "--dev", "--data-dir", s.dir+"/data", "--grpc-listen", s.host, "--http-listen", operators); err != nil {
		return err
	}
	if s.conn, err = grpc.NewClient(s.host, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	s.pool = controlplanev1.NewPoolAdminClient(s.conn)
	if err := s.until("the host to take a configuration", func() error { return s.publish(s.document(1, 0)) }); err != nil {
		return err
	}
	config, err := s.file("checker.yaml", "controlPlane: {tls: {mode: disabled}}\nplugins: {probe: {proxy: {env: {PROBE_ALLOW: loopback}}}}\n")
	if err != nil {
		return err
	}
	_, _, err = s.program("proxy-checker", s.dir+"/proxy-checker", "-control-plane", s.host, "-checker-id", "c", "-instance-id", "c-1", "-config", config)
	return err
}

// document is a configuration of the first upstream proxies, and of the others by a
// weight beside them; 0 leaves them out.
func (s *stage) document(first, others int) string {
	upstream := func(name string, at []string) string {
		return fmt.Sprintf("  - {name: %s, protocol: http, allowAddresses: [loopback], capacityPerProxy: 60000, source: {type: static, proxies: [%q]}}\n", name, strings.Join(at, `", "`))
	}
	text := "cluster: {id: bench}\nupstreams:\n" + upstream("far", s.ups[:farProxies])
	refs := fmt.Sprintf("{name: far, weight: %d}", first)
	if others > 0 {
		text += upstream("others", s.ups[farProxies:])
		refs += fmt.Sprintf(", {name: others, weight: %d}", others)
	}
	return strings.ReplaceAll(text, `\"`, `"`) + "routings:\n  - {name: all, upstreams: [" + refs + "]}\n"
}

func (s *stage) publish(document string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	_, err := s.pool.PublishConfig(ctx, &controlplanev1.PublishConfigRequest{Yaml: document})
	return err
}

// metric is a figure that our gateway tells of itself.
func (s *stage) metric(name string) (float64, error) {
	answer, err := http.Get("http://" + s.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the gateway has no metric %s", name)
}

// tell has the clients' process do something.
func (s *stage) tell(o order) (outcome, error) {
	if err := json.NewEncoder(s.clients.stdin).Encode(o); err != nil {
		return outcome{}, err
	}
	line, err := s.clients.line()
	if err != nil {
		return outcome{}, err
	}
	var result outcome
	if err := json.Unmarshal([]byte(line), &result); err != nil {
		return outcome{}, err
	}
	if result.Error != "" {
		return result, errors.New(result.Error)
	}
	return result, nil
}

// cpuOf is the user and system time that a process has used, in all its threads.
func cpuOf(pid int) (time.Duration, error) {
	var t unix.Timespec
	clock := int32(^pid<<3 | 2) // as clock_getcpuclockid makes it
	err := unix.ClockGettime(clock, &t)
	return time.Duration(t.Nano()), err
}

// memoryOf is a process's share of memory (PSS), in bytes.
func memoryOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kb * 1024, err
		}
	}
	return 0, errors.New("smaps_rollup has no Pss")
}
