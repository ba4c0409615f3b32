package startup_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

// A flag wins over its variable, and nothing is guessed.
func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args, env []string
		value     string
		auto      bool
		wrong     string
	}{
		{nil, nil, "", false, ""},
		{nil, []string{"X=variable"}, "variable", false, ""},
		{[]string{"-x", "flag"}, []string{"X=variable"}, "flag", false, ""},
		{[]string{"-auto-identity"}, nil, "", true, ""},
		{nil, []string{"PROXY_POOL_AUTO_IDENTITY=true"}, "", true, ""},
		{[]string{"-auto-identity=false"}, []string{"PROXY_POOL_AUTO_IDENTITY=true"}, "", false, ""},
		{nil, []string{"PROXY_POOL_AUTO_IDENTITY=yes"}, "", false, "allowed are true and false"},
		{[]string{"-y"}, nil, "", false, "p -help lists the flags"},
		{[]string{"word"}, nil, "", false, `unexpected argument "word"`},
	} {
		var x string
		c := startup.Command{Name: "p", Options: []startup.Option{{Flag: "x", Variable: "X", Value: &x}}}
		auto, err := c.Parse(tc.args, tc.env, new(bytes.Buffer))
		var usage *startup.Usage
		switch {
		case tc.wrong != "":
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v %v: %v, want %q", tc.args, tc.env, err, tc.wrong)
			}
		case err != nil || x != tc.value || auto != tc.auto:
			t.Errorf("%v %v: %q, %v, %v", tc.args, tc.env, x, auto, err)
		}
	}
}

// What does not start says so where people and scripts look for it.
func TestRefuse(t *testing.T) {
	for _, tc := range []struct {
		err      error
		code     int
		out, say string
	}{
		{flag.ErrHelp, startup.ExitOK, "", ""},
		{startup.ErrVersion, startup.ExitOK, "p ", ""},
		{startup.Usagef("-x is wrong"), startup.ExitUsage, "", "p: -x is wrong\n"},
		{fmt.Errorf("f:1:1: x"), startup.ExitConfig, "", "nothing was started:\nf:1:1: x\n"},
	} {
		var out, errs bytes.Buffer
		code := startup.Command{Name: "p"}.Refuse(tc.err, &out, &errs)
		if code != tc.code || !strings.HasPrefix(out.String(), tc.out) || !strings.HasSuffix(errs.String(), tc.say) || (tc.say == "") != (errs.Len() == 0) {
			t.Errorf("%v: %d, %q, %q", tc.err, code, out.String(), errs.String())
		}
	}
}

// TestControlPlane: where an identity lies and whose it is, and that plaintext stays on
// this machine.
func TestControlPlane(t *testing.T) {
	dir := t.TempDir()
	ca := svidtest.NewCA(t, "prod.example")
	ca.Source("/prod/worker/w7").Write(t, filepath.Join(dir, "w7"))
	ca.Source("/svc/web").Write(t, filepath.Join(dir, "web"))
	read := func(text string) (*startup.ControlPlane, error) {
		name := filepath.Join(dir, "p.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &startup.ControlPlane{Key: "gatewayTLS", Kind: "worker"}
		if err := startup.ReadFile(name, strict.Fields{"controlPlane": c.Fields(name)}); err != nil {
			return c, err
		}
		return c, c.Check()
	}
	identity := func(who string) string {
		return fmt.Sprintf("controlPlane: {checkerTLS: {}, gatewayTLS: {cert: %[1]s/cert.pem, key: %[1]s/key.pem, ca: %[1]s/bundle.pem}}", who)
	}
	c, err := read(identity("w7")) // beside the file
	if err != nil {
		t.Fatal(err)
	}
	id, instance := "", ""
	if err := c.Identify(&id, &instance); err != nil || id != "w7" || instance != "w7" {
		t.Errorf("it is %q %q: %v", id, instance, err)
	}
	id, instance = "w7", "i"
	if err := c.Identify(&id, &instance); err != nil || instance != "i" {
		t.Errorf("instance %q: %v", instance, err)
	}
	id = "w8"
	if err := c.Identify(&id, &instance); err == nil || !strings.Contains(err.Error(), "finds worker w7") {
		t.Errorf("another worker: %v", err)
	}
	if _, err := c.Addresses("192.0.2.1:7600,host.example:1"); err != nil {
		t.Errorf("over the network: %v", err)
	}
	if c, err = read(identity("web")); err != nil {
		t.Fatal(err)
	}
	id = ""
	if err := c.Identify(&id, &instance); err == nil || !strings.Contains(err.Error(), "has 0 URIs") {
		t.Errorf("a service's certificate: %v", err)
	}
	for text, want := range map[string]string{
		"controlPlane: {}":                                     "controlPlane.gatewayTLS: cert, key and ca have to be set",
		"controlPlane: {tls: {mode: none}}":                    "allowed: mtls, disabled",
		"controlPlane: {gatewayTLS: {certt: x}}":               "p.yaml:1:29: controlPlane.gatewayTLS.certt: is not a setting",
		strings.Replace(identity("w7"), "ca: w7", "ca: no", 1): "controlPlane.gatewayTLS.ca: ",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "w7", "key.pem"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := read(identity("w7")); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
	for name, want := range map[string]string{dir: "is not a regular file", filepath.Join(dir, "none"): "none: no such file"} {
		if err := startup.ReadFile(name, strict.Fields{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	plain, err := read("controlPlane: {tls: {mode: disabled}}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := plain.Addresses("127.0.0.1:1, localhost:2,[::1]:3"); err != nil || len(got) != 3 || got[1] != "localhost:2" {
		t.Errorf("%q: %v", got, err)
	}
	for _, address := range []string{"192.0.2.1:1", "127.0.0.1:1,192.0.2.1:1", "127.0.0.1"} {
		if _, err := plain.Addresses(address); err == nil {
			t.Errorf("%s was taken", address)
		}
	}
}

func TestEnded(t *testing.T) {
	var log bytes.Buffer
	if code := startup.Ended(context.Background(), startup.Logger(&log, "info"), errors.New("why")); code != startup.ExitFailed || !strings.Contains(log.String(), "why") {
		t.Errorf("%d, %s", code, log.String())
	}
	if code := startup.Ended(context.Background(), startup.Logger(&log, "info"), nil); code != startup.ExitOK {
		t.Errorf("%d", code)
	}
}
