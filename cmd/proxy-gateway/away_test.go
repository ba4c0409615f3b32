package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

const plainLoopback = "controlPlane: {tls: {mode: disabled}}\ngateway: {upstreams: {allow: [loopback]}}\n"

// answered is a request that was sent while the control plane was away.
type answered struct {
	begin, end  time.Time
	status      int
	body, proxy string // Proxy-Status
}

// Without its control plane, whose clock is an hour off, a gateway goes on: with a proxy until
// that one's end, and with the others while its snapshot is valid. Then it leads nobody
// anywhere, not directly either, and says that it is not ready; what runs goes on, and is cut
// once its proxies may be somebody else's. All the while it talks to nobody but its
// control plane, clients and proxies, and has no file open to write to.
func TestControlPlaneAway(t *testing.T) {
	t.Parallel()
	const usable = 2 * time.Second
	content := world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT)
	short := proxytest.Start(t, proxytest.Options{
		Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5, Username: "user", Password: "secret", Hosts: map[string]string{"shop.example:80": greeter(t, "short")},
	})
	ends := short.Proxy()
	ends.ExpiresAt, ends.AssignmentEpoch, ends.UsableUntil = timestamppb.New(time.Now().Add(time.Hour)), 1, timestamppb.Now()
	long := content.GetProxies()[0]
	content.Proxies = append(content.Proxies, ends)
	host := startPlane(t, content)
	host.validity, host.maxStale, host.skew = 4*time.Second, 4*time.Second, -time.Hour
	host.usable = map[string]time.Duration{ends.GetProxyId(): usable, long.GetProxyId(): time.Hour}
	p := startGateway(t, plainLoopback, "-control-plane", host.address)
	eventually(t, "the gateway is ready", func() bool { code, _ := p.ask("/readyz"); return code == 200 })
	received := time.Now() // or before
	host.stop()
	host.mu.Lock()
	sent := host.sent // so it was received between these two
	host.mu.Unlock()
	conn, in := p.tunnel(t, "")

	var mu sync.Mutex
	var all []answered
	stop := make(chan struct{})
	var work sync.WaitGroup
	for range 3 {
		work.Go(func() {
			client := p.proxy(nil)
			for {
				select {
				case <-stop:
					return
				default:
				}
				a := answered{begin: time.Now()}
				answer, err := client.Get("http://shop.example/")
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				a.end, a.status, a.body, a.proxy = time.Now(), answer.StatusCode, string(text), answer.Header.Get("Proxy-Status")
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
			}
		})
	}
	known := []string{host.address, p.clients, p.admin, address(ends), address(long)}
	for looks := 0; time.Since(received) < host.validity+500*time.Millisecond; looks++ {
		p.look(t, known)
		if t.Failed() {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if code, text := p.ask("/readyz"); code != 503 || strings.Contains(text, "serving") {
		t.Errorf("/readyz answers %d %q", code, text)
	}
	close(stop)
	work.Wait()
	var lastShort, lastAny time.Time
	led := map[string]int{}
	for _, a := range all {
		led[a.body]++
		isShort := a.body == "hello short"
		switch {
		case a.status == 200 && isShort && a.begin.After(received.Add(usable)):
			t.Errorf("a request that began %v after the proxy's end was led through it", a.begin.Sub(received.Add(usable)))
		case a.status == 200 && a.begin.After(received.Add(host.validity)):
			t.Errorf("a request that began %v after the snapshot's end was led", a.begin.Sub(received.Add(host.validity)))
		case a.status != 200 && a.end.Before(sent.Add(host.validity)):
			t.Errorf("a request that ended %v before the snapshot's end was answered %d %s", sent.Add(host.validity).Sub(a.end), a.status, a.body)
		case a.status != 200 && (a.status != 503 || !strings.HasPrefix(a.proxy, "proxy-gateway; error=destination_unavailable")):
			t.Errorf("past the snapshot's end a request is answered %d, %s", a.status, a.proxy)
		case a.status == 200 && isShort && a.begin.After(lastShort):
			lastShort = a.begin
		}
		if a.status == 200 && a.begin.After(lastAny) {
			lastAny = a.begin
		}
	}
	if led["hello short"] == 0 || led["hello shop.example"] == 0 {
		t.Errorf("led are %v", led)
	}
	t.Logf("%d requests, %v; the last through the proxy that ends after %v began after %v, the last at all after %v of %v", len(all), led, usable, lastShort.Sub(sent), lastAny.Sub(sent), host.validity)

	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		t.Errorf("what ran gives %q, %v", line, err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what ran is not cut: %v", err)
	}
	took := time.Since(sent)
	t.Logf("what ran was cut after %v", took)
	if took < host.maxStale+10*time.Second-500*time.Millisecond {
		t.Errorf("what ran was cut after %v", took)
	}
	if code, _ := p.ask("/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	eventually(t, "no connection to a proxy is left", func() bool { return short.Open() == 0 && !slices.Contains(p.peers(t), address(long)) })
	p.look(t, known)
}

// A gateway that stands still while a snapshot comes goes by it for no longer than if it had
// read it at once: whose its proxies are after that it cannot know.
func TestStandsStill(t *testing.T) {
	t.Parallel()
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT))
	host.validity, host.maxStale = 4*time.Second, 4*time.Second
	p := startGateway(t, plainLoopback, "-control-plane", host.address)
	eventually(t, "the gateway is ready", func() bool { code, _ := p.ask("/readyz"); return code == 200 })
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stands still", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		return err != nil || strings.Contains(string(text), ") T ")
	})
	host.push()
	eventually(t, "a snapshot is sent", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return host.version == 2
	})
	over := time.Now().Add(host.validity) // or before
	time.Sleep(host.validity * 5 / 8)
	host.stop()
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	client := p.proxy(nil)
	for late := 0; late == 0 || time.Since(over) < time.Second; time.Sleep(5 * time.Millisecond) {
		began := time.Now()
		answer, err := client.Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if began.Before(over) {
			continue
		}
		if late++; answer.StatusCode != 503 {
			t.Fatalf("a request that began %v after the snapshot's end is answered %d", began.Sub(over), answer.StatusCode)
		}
	}
	if code, text := p.ask("/readyz"); code != 503 {
		t.Errorf("/readyz answers %d %q", code, text)
	}
}

// greeter is a target that greets by a name.
func greeter(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello "+name) })}
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		done.Wait()
	})
	return l.Addr().String()
}

func address(p *controlplanev1.Proxy) string {
	return net.JoinHostPort(p.GetHost(), strconv.Itoa(int(p.GetPort())))
}

// look checks what the process has open: files to read, and connections of which one end is
// known.
func (p *process) look(t *testing.T, known []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	dir := fmt.Sprintf("/proc/%d", p.Process.Pid)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil || !strings.HasPrefix(to, "/") || to == os.DevNull {
			continue // closed meanwhile, or no file
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", fd.Name()))
		if err != nil {
			continue
		}
		_, flags, _ := strings.Cut(string(info), "flags:")
		mode, err := strconv.ParseUint(strings.Fields(flags)[0], 8, 64)
		if err != nil || mode&syscall.O_ACCMODE != syscall.O_RDONLY {
			t.Errorf("it has %s open to write to: flags %o, %v", to, mode, err)
		}
	}
	for _, peer := range p.peers(t) {
		if !slices.Contains(known, peer) {
			t.Errorf("it has a connection to %s", peer)
		}
	}
	if text, err := os.ReadFile(dir + "/io"); err == nil {
		for _, line := range strings.Split(string(text), "\n") {
			if n, ok := strings.CutPrefix(line, "write_bytes: "); ok && n != "0" {
				t.Errorf("it has %s bytes written to disk", n)
			}
		}
	}
}

// peers are the far ends of the process's TCP connections, and the near ones of those that
// were made to it.
func (p *process) peers(t *testing.T) (out []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", p.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && strings.HasPrefix(to, "socket:[") {
			mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			cells := strings.Fields(lines.Text())
			const listens = "0A"
			if len(cells) < 10 || !mine[cells[9]] || cells[3] == listens {
				continue
			}
			near, far := endpoint(t, cells[1]), endpoint(t, cells[2])
			if near == p.clients || near == p.admin {
				far = near
			}
			out = append(out, far)
		}
		_ = f.Close()
	}
	return out
}

// endpoint reads an address as the system writes it.
func endpoint(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+4 <= len(raw); i += 4 { // words of this machine
		slices.Reverse(raw[i : i+4])
	}
	a, _ := netip.AddrFromSlice(raw)
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(n)).String()
}
