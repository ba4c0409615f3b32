package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// A password is changed by replacing its file, while the gateway runs.
func TestPasswordsAreReadAgain(t *testing.T) {
	t.Parallel()
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL))
	password := filepath.Join(t.TempDir(), "alice")
	write := func(text string) {
		if err := os.WriteFile(password+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(password+".new", password); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n")
	p := startGateway(t, strings.Replace(plainLoopback, "gateway: {", "gateway: {clients: [{name: alice, passwordFile: "+password+"}], ", 1), "-control-plane", host.address)
	asks := func(word string) int {
		answer, err := p.proxy(url.UserPassword("alice", word)).Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	if got := asks("old"); got != http.StatusOK {
		t.Fatalf("answered %d", got)
	}
	write("new\n")
	eventually(t, "the new password is taken", func() bool { return asks("new") == http.StatusOK })
	if got := asks("old"); got != http.StatusProxyAuthRequired {
		t.Errorf("the old password is answered %d", got)
	}
}

// Nobody is led to where the gateway itself listens, whatever the policy allows.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	content := world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL)
	policy := &controlplanev1.TargetPolicy{AllowPrivate: true}
	for port := uint32(1); port <= 65535; port++ {
		policy.AllowPorts = append(policy.AllowPorts, port)
	}
	content.Routings[0].TargetPolicy = policy
	host := startPlane(t, content)
	p := startGateway(t, plainLoopback, "-control-plane", host.address)
	for _, to := range []string{p.clients, p.admin} {
		conn, err := net.Dial("tcp", p.clients)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", to)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		_ = conn.Close()
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(string(text), "this gateway itself listens there") {
			t.Errorf("CONNECT %s is answered %d: %s", to, answer.StatusCode, text)
		}
	}
}

// A gateway whose control plane does not take it any more goes on for as long as its snapshot is
// valid, and then ends with an error.
func TestRefusedByItsControlPlane(t *testing.T) {
	t.Parallel()
	host := startPlane(t, world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL))
	host.validity = 6 * time.Second
	p := startGateway(t, plainLoopback, "-control-plane", host.address)
	host.mu.Lock()
	host.refuses = true
	valid := host.sent.Add(host.validity) // or a moment longer
	host.mu.Unlock()
	host.push()
	eventually(t, "it is refused", func() bool { return strings.Contains(p.stderr.String(), "not this one") })
	if answer, err := p.proxy(nil).Get("http://shop.example/"); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("answered %v, %v", answer, err)
	} else {
		_ = answer.Body.Close()
	}
	err := p.Wait()
	if early := time.Until(valid); early > 0 {
		t.Errorf("it ended %v before its snapshot did", early)
	}
	if err == nil || p.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
}
