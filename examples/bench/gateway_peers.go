package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elazarl/goproxy"

	"github.com/dodona-project/dodona/host/loopback"
)

const referenceEnv = "DODONA_BENCH_REFERENCE"

// Every proxy leads to the same upstream proxies in turn, has as many threads as it takes
// by itself, and keeps as many connections to them as there are clients.

func (s *stage) startOurs(address string) (pid int, stop func(), err error) {
	config, err := s.file("gateway.yaml", "controlPlane: {tls: {mode: disabled}}\ngateway:\n  upstreams: {allow: [loopback]}\n  limits: {drain: 1s}\n")
	if err != nil {
		return 0, nil, err
	}
	if s.metrics == "" {
		if s.metrics, err = loopback.Free(); err != nil {
			return 0, nil, err
		}
	}
	return s.program("proxy-gateway", s.dir+"/proxy-gateway", "-control-plane", s.host, "-cluster-id", "bench", "-worker-id", "gw", "-instance-id", fmt.Sprint("gw-", time.Now().UnixNano()),
		"-config", config, "-listen", address, "-admin-listen", s.metrics)
}

func (s *stage) startHAProxy(address string) (pid int, stop func(), err error) {
	var b strings.Builder
	fmt.Fprintf(&b, `global
	maxconn 8000
defaults
	mode http
	timeout connect 5s
	timeout client 5m
	timeout server 5m
	timeout http-request 30s
	timeout tunnel 5m
	http-reuse always
listen bench
	bind %s
	balance roundrobin
`, address)
	for i, at := range s.ups[:farProxies] {
		fmt.Fprintf(&b, "\tserver up%d %s\n", i, at)
	}
	config, err := s.file("haproxy.cfg", b.String())
	if err != nil {
		return 0, nil, err
	}
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return 0, nil, err
	}
	return s.program("haproxy", path, "-db", "-f", config)
}

func (s *stage) startSquid(address string) (pid int, stop func(), err error) {
	var b strings.Builder
	fmt.Fprintf(&b, `http_port %s
http_access allow all
never_direct allow all
cache deny all
access_log none
cache_log /dev/null
cache_store_log none
pid_filename none
coredump_dir none
visible_hostname bench
via off
forwarded_for delete
pinger_enable off
max_filedescriptors 16384
shutdown_lifetime 0 seconds
client_idle_pconn_timeout 5 minutes
`, address)
	for i, at := range s.ups[:farProxies] {
		host, port, _ := net.SplitHostPort(at)
		fmt.Fprintf(&b, "cache_peer %s parent %s 0 no-query no-digest no-netdb-exchange round-robin name=up%d\n", host, port, i)
	}
	config, err := s.file("squid.conf", b.String())
	if err != nil {
		return 0, nil, err
	}
	path, err := exec.LookPath("squid")
	if err != nil {
		return 0, nil, err
	}
	return s.program("squid", path, "-N", "-d", "1", "-f", config)
}

// startReference starts this program as the reference.
func (s *stage) startReference(address string) (pid int, stop func(), err error) {
	r, err := startReaders(referenceEnv, address+" "+strings.Join(s.ups[:farProxies], " "))
	if err != nil {
		return 0, nil, err
	}
	return r.cmd.Process.Pid, r.end, nil
}

// asReference turns this process into a forward proxy as one writes it with net/http and
// the library for such proxies.
func asReference() { asReaders(referenceEnv, serveReference) }

func serveReference(args string) error {
	words := strings.Fields(args)
	p := goproxy.NewProxyHttpServer()
	p.Logger = log.New(io.Discard, "", 0)
	log.SetOutput(io.Discard) // of what upstreams do wrong
	var next atomic.Uint64
	turn := func(n int) int { return int(next.Add(1) % uint64(n)) }
	var ups []*url.URL
	var connects []func(network, addr string) (net.Conn, error)
	for _, at := range words[1:] {
		up := &url.URL{Scheme: "http", Host: at}
		ups = append(ups, up)
		connects = append(connects, p.NewConnectDialToProxy(up.String()))
	}
	p.Tr = &http.Transport{
		Proxy:               func(*http.Request) (*url.URL, error) { return ups[turn(len(ups))], nil },
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     55 * time.Second,
	}
	p.ConnectDial = func(network, addr string) (net.Conn, error) {
		return connects[turn(len(connects))](network, addr)
	}
	l, err := net.Listen("tcp", words[0])
	if err != nil {
		return err
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute}
	go func() { _ = server.Serve(l) }()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
