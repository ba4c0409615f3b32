package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/host/spawn"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

const (
	hostSuffix = ".example"
	checkHost  = "ip" + hostSuffix
	username   = "ada"
	cluster    = "example"
)

// upstreams are named after their protocols. Of the first a proxy is killed, and of the
// last one is extracted.
var (
	upstreams = []string{"http", "https", "socks5"}
	sizes     = map[string]int{"http": 4, "https": 2, "socks5": 4}
)

// stage is everything that is running, and what was seen of it.
type stage struct {
	programs programs
	dir      string
	story    *story
	spawn    *spawn.Spawner
	password string

	grpc, http string // the host's addresses, the same after its restart
	host       *spawn.Child
	checker    *spawn.Child
	conn       *grpc.ClientConn
	pool       controlplanev1.PoolAdminClient
	proxies    []*proxy
	gateways   [2]*gateway
	admin      *http.Client // of this machine, without a proxy

	roots    string // file with what the targets are verified with
	clients  []client
	missing  []string // clients that this machine does not have
	load     *load
	stopLoad context.CancelFunc
	killLoad context.CancelFunc
	closeAll func()
	sending  sync.WaitGroup

	kills []kill
	facts facts
}

// proxy is an upstream proxy that was started.
type proxy struct {
	name, upstream string
	settings       proxySettings
	child          *spawn.Child
	target         *target
}

// gateway is a gateway that was started.
type gateway struct {
	name, listen, admin string
	lives               int
	child               *spawn.Child
}

// start starts a program that writes to a log of its own, or on in one that there is.
func (s *stage) start(name, program string, args ...string) (*spawn.Child, error) {
	log, err := os.OpenFile(s.logOf(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return s.spawn.Start(name, program, args, nil, log)
}

func (s *stage) logOf(name string) string { return filepath.Join(s.dir, name+".log") }

// until waits for something; a program that ends meanwhile ends the wait.
func (s *stage) until(ctx context.Context, limit time.Duration, what string, is func(context.Context) error, needs ...*spawn.Child) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		ask, stop := context.WithTimeout(ctx, 2*time.Second)
		err := is(ask)
		stop()
		if err == nil {
			return nil
		}
		for _, c := range needs {
			if dead, how := c.Ended(); dead {
				return fmt.Errorf("was waiting for %s, and %s ended (%s); %s", what, c.Name(), how, spawn.Tail(s.logOf(c.Name())))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("was waiting for %s: %w", what, err)
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// startTargets starts what the proxies lead to.
func (s *stage) startTargets() error {
	names := []string{checkHost}
	for _, u := range upstreams {
		names = append(names, u+hostSuffix)
	}
	certificate, pem, err := newCertificate(names)
	if err != nil {
		return err
	}
	s.roots = filepath.Join(s.dir, "targets.pem")
	if err := os.WriteFile(s.roots, pem, 0o600); err != nil {
		return err
	}
	s.clients, s.missing, s.closeAll = newClients(s.dir, s.roots, pem)
	for _, u := range upstreams {
		for range sizes[u] {
			if err := s.addProxy(u, certificate); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) addProxy(upstream string, certificate tls.Certificate) error {
	n := len(s.proxies) + 1
	t, err := startTarget(fmt.Sprintf("203.0.113.%d", n), certificate)
	if err != nil {
		return err
	}
	p := &proxy{name: fmt.Sprintf("proxy-%d", n), upstream: upstream, target: t}
	s.proxies = append(s.proxies, p)
	address, err := loopback.Free()
	if err != nil {
		return err
	}
	p.settings = proxySettings{
		Address: address, Protocol: controlplanev1.Proxy_Protocol(controlplanev1.Proxy_Protocol_value["PROTOCOL_"+strings.ToUpper(upstream)]),
		Username: username, Password: filepath.Join(s.dir, "password"), Ready: filepath.Join(s.dir, p.name+".ready"),
		Hosts: map[string]string{checkHost + ":80": t.plain, upstream + hostSuffix + ":80": t.plain, upstream + hostSuffix + ":443": t.tls},
	}
	if p.settings.Protocol != controlplanev1.Proxy_PROTOCOL_HTTPS {
		return nil
	}
	ip, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	p.settings.Certificate = filepath.Join(s.dir, p.name+".pem")
	return writeCertificate(p.settings.Certificate, []string{ip})
}

// startProxy starts a proxy, once more after it was killed.
func (s *stage) startProxy(p *proxy) error {
	settings, err := json.Marshal(p.settings)
	if err != nil {
		return err
	}
	if err := os.Remove(p.settings.Ready); err != nil && !os.IsNotExist(err) {
		return err
	}
	p.child, err = s.start(p.name, s.programs.self, proxyMode, string(settings))
	return err
}

func (s *stage) proxyReady(ctx context.Context, p *proxy) error {
	return s.until(ctx, 20*time.Second, p.name+" to listen", func(context.Context) error {
		_, err := os.Stat(p.settings.Ready)
		return err
	}, p.child)
}

// writeFiles makes the password of the proxies and the programs' files. The proxies run.
func (s *stage) writeFiles() error {
	var roots []byte
	for _, p := range s.proxies {
		pem, err := os.ReadFile(p.settings.Ready)
		if err != nil {
			return err
		}
		roots = append(roots, pem...)
	}
	for name, text := range map[string]string{
		"proxies.pem":  string(roots),
		"gateway.yaml": "controlPlane: {tls: {mode: disabled}}\ngateway:\n  upstreams: {allow: [loopback], ca: proxies.pem}\n  limits: {drain: 2s}\n",
		"checker.yaml": "controlPlane: {tls: {mode: disabled}}\nchecker: {drain: 1s}\nplugins: {probe: {proxy: {env: {PROBE_ALLOW: loopback}}}}\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	secrets := filepath.Join(s.dir, "secrets")
	if err := os.Mkdir(secrets, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(secrets, "vendor"), []byte(username+":"+s.password+"\n"), 0o600)
}

// document is what is published: an upstream for each protocol, and a routing to it.
func (s *stage) document() (string, error) {
	var doc strings.Builder
	fmt.Fprintf(&doc, "cluster: {id: %s}\nupstreams:\n", cluster)
	for _, u := range upstreams {
		var lines []string
		var roots bytes.Buffer
		for _, p := range s.proxies {
			if p.upstream != u {
				continue
			}
			lines = append(lines, p.settings.Address)
			pem, err := os.ReadFile(p.settings.Ready)
			if err != nil {
				return "", err
			}
			roots.Write(pem)
		}
		fmt.Fprintf(&doc, "  - name: %s\n    protocol: %s\n    allowAddresses: [loopback]\n    secretRef: file:vendor\n    source: {type: static, proxies: [%s]}\n", u, u, strings.Join(lines, ", "))
		fmt.Fprintf(&doc, "    check:\n      egress: {url: \"http://%s/\"}\n", checkHost)
		if roots.Len() > 0 {
			fmt.Fprintf(&doc, "      probeConfig: {proxy_tls: {ca: %q}}\n", roots.String())
		}
	}
	fmt.Fprint(&doc, "routings:\n")
	for _, u := range upstreams {
		fmt.Fprintf(&doc, "  - {name: %s, match: {hosts: [%s]}, upstreams: [{name: %s}], onUnavailable: wait}\n", u, u+hostSuffix, u)
	}
	return doc.String(), nil
}

// startHost starts the host, and waits until it answers.
func (s *stage) startHost(ctx context.Context) (err error) {
	s.host, err = s.start("dona-host", s.programs.host, "--dev", "--data-dir", filepath.Join(s.dir, "data"), "--grpc-listen", s.grpc, "--http-listen", s.http,
		"--pool-secrets-dir", filepath.Join(s.dir, "secrets"), "--check-interval", "1s")
	if err != nil {
		return err
	}
	return s.until(ctx, 20*time.Second, "the host to answer", func(ctx context.Context) error {
		_, err := s.pool.GetAvailability(ctx, &controlplanev1.GetAvailabilityRequest{})
		return err
	}, s.host)
}

func (s *stage) startChecker() (err error) {
	s.checker, err = s.start("proxy-checker", s.programs.checker, "-control-plane", s.grpc, "-checker-id", "checker-1", "-instance-id", "checker-1-a", "-config", filepath.Join(s.dir, "checker.yaml"))
	return err
}

// startGateway starts a gateway, or one that was killed again: the same worker, in
// another process.
func (s *stage) startGateway(g *gateway) (err error) {
	g.lives++
	g.child, err = s.start(g.name, s.programs.gateway, "-control-plane", s.grpc, "-cluster-id", cluster, "-worker-id", g.name, "-instance-id", fmt.Sprintf("%s-%d", g.name, g.lives),
		"-config", filepath.Join(s.dir, "gateway.yaml"), "-listen", g.listen, "-admin-listen", g.admin)
	return err
}

func (s *stage) gatewayReady(ctx context.Context, g *gateway) error {
	return s.until(ctx, 20*time.Second, g.name+" to be ready", func(ctx context.Context) error { return g.ready(ctx, s.admin) }, g.child)
}

// ready asks the gateway itself; nil when it is.
func (g *gateway) ready(ctx context.Context, client *http.Client) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.admin+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %d %s", answer.StatusCode, bytes.TrimSpace(text))
	}
	return nil
}

// dialHost makes a connection that comes back quickly.
func dialHost(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}))
}

// list is the proxies as the host knows them, by the names that they have here.
func (s *stage) list(ctx context.Context) (map[string]*controlplanev1.ProxyStatus, error) {
	reply, err := s.pool.ListProxies(ctx, &controlplanev1.ListProxiesRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]*controlplanev1.ProxyStatus{}
	for _, status := range reply.GetProxies() {
		if p := s.find(status.GetProxy()); p != nil {
			out[p.name] = status
		}
	}
	return out, nil
}

func (s *stage) find(far *controlplanev1.Proxy) *proxy {
	for _, p := range s.proxies {
		if p.settings.Address == fmt.Sprintf("%s:%d", far.GetHost(), far.GetPort()) {
			return p
		}
	}
	return nil
}

// newPassword is the proxies', another one in each run.
func newPassword() string { return rand.Text() }

// leave ends the programs, each while those that it talks to are there.
func (s *stage) leave() (problems []string) {
	for _, c := range []*spawn.Child{s.gateways[0].child, s.gateways[1].child, s.checker, s.host} {
		if c.Stop(stopIn) {
			problems = append(problems, fmt.Sprintf("%s did not end within %s and was killed", c.Name(), stopIn))
		} else if _, how := c.Ended(); how != "exit status 0" {
			problems = append(problems, fmt.Sprintf("%s ended with %s; %s", c.Name(), how, spawn.Tail(s.logOf(c.Name()))))
		}
	}
	return problems
}

// end brings everything home and says what did not go. With gently, processes are asked
// to end, and what they leave undone counts.
func (s *stage) end(gently bool) (problems []string) {
	if !gently && s.killLoad != nil {
		s.killLoad()
	}
	if s.stopLoad != nil {
		s.stopLoad()
	}
	s.sending.Wait()
	if s.killLoad != nil {
		s.killLoad()
	}
	if s.closeAll != nil {
		s.closeAll()
	}
	if gently {
		problems = s.leave()
	} else {
		s.spawn.KillAll()
	}
	for _, name := range s.spawn.StopAll(stopIn) {
		problems = append(problems, fmt.Sprintf("%s did not end within %s and was killed", name, stopIn))
	}
	s.spawn.Close()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	for _, p := range s.proxies {
		p.target.close()
	}
	return problems
}
