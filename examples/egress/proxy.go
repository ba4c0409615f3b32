package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"os"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// proxyMode is the first argument of this program when it is an upstream proxy.
const proxyMode = "upstream-proxy"

// proxySettings is the second one, as JSON, without the password: arguments can be read
// by everybody on the machine.
type proxySettings struct {
	Address  string                        `json:"address"`
	Protocol controlplanev1.Proxy_Protocol `json:"protocol"`
	Username string                        `json:"username"`
	Password string                        `json:"password_file"`
	Hosts    map[string]string             `json:"hosts"` // what it is asked for, and where that is
	// Certificate is the file of an HTTPS proxy's, with its key; it has the same in each life.
	Certificate string `json:"certificate"`
	Ready       string `json:"ready"` // file that is there once it listens; with its certificate, if it has one
}

// serveProxy is a proxy until its stdin ends.
func serveProxy(settings string, stdin io.Reader) error {
	var s proxySettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return err
	}
	password, err := os.ReadFile(s.Password)
	if err != nil {
		return err
	}
	options := proxytest.Options{Protocol: s.Protocol, Username: s.Username, Password: string(password), Hosts: s.Hosts}
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
		if err != nil {
			return err
		}
		options.Certificate = &pair
	}
	p, err := proxytest.Listen(s.Address, options)
	if err != nil {
		return err
	}
	defer p.Close()
	// By another name first, so that nobody reads half of it.
	if err := os.WriteFile(s.Ready+".part", p.Certificate(), 0o600); err != nil {
		return err
	}
	if err := os.Rename(s.Ready+".part", s.Ready); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return fmt.Errorf("stdin: %w", err)
	}
	return nil
}
