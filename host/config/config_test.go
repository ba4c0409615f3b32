package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/config"
)

// load reads a file of that content, in a directory of its own.
func load(t *testing.T, content string, environ []string, flags map[string]string) (*config.Config, []config.Problem) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return loadFile(t, name, environ, flags)
}

func loadFile(t *testing.T, name string, environ []string, flags map[string]string) (*config.Config, []config.Problem) {
	t.Helper()
	c, err := config.Load(name, environ, flags)
	var wrong *config.Error
	switch {
	case err == nil:
		return c, nil
	case c != nil:
		t.Error("an error and a configuration")
	case !errors.As(err, &wrong):
		t.Fatalf("%v is no *config.Error", err)
	}
	return nil, wrong.Problems
}

func TestDefaults(t *testing.T) {
	c, problems := loadFile(t, "", nil, map[string]string{"dev": "true"})
	if problems != nil {
		t.Fatal(problems)
	}
	if c.GRPCListen != "127.0.0.1:7600" || c.BootstrapListen != "127.0.0.1:7601" || c.HTTPListen != "127.0.0.1:7602" ||
		c.Store != "embedded" || c.DataDir != "./.dona" || c.TrustDomain != "dona.local" || c.Heartbeat != 5*time.Second || c.RestartGrace != 10*time.Second ||
		c.PluginBackoff != (config.Backoff{Min: 250 * time.Millisecond, Max: time.Minute}) {
		t.Errorf("%+v", c)
	}
}

// TestIdentities: a host issues them unless it is for development and was told nothing
// of it.
func TestIdentities(t *testing.T) {
	for _, tc := range []struct {
		flags map[string]string
		want  bool
	}{
		{map[string]string{"dev": "true"}, false},
		{map[string]string{"dev": "true", "bootstrap-listen": "127.0.0.1:0"}, true},
		{map[string]string{"dev": "true", "bootstrap-listen": "10.0.0.1:1", "bootstrap-reach": "plaintext-over-the-network"}, true},
	} {
		c, problems := load(t, "", nil, tc.flags)
		if problems != nil || c.Identities != tc.want {
			t.Errorf("%v: %v, %+v", tc.flags, problems, c)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := "dev: true\ntrust_domain: file.example\nlog:\n  level: warn\nsession:\n  heartbeat: 1s\n"
	c, problems := load(t, file, []string{"DONA_LOG_LEVEL=error", "DONA_HEARTBEAT=2s", "PATH=/bin", "DONA_HOST=127.0.0.1:1", "DONA_IDENTITY=/x", "DONA_BOOTSTRAP=127.0.0.1:1", "DONA_TOKEN=x"}, map[string]string{"heartbeat": "3s"})
	if problems != nil {
		t.Fatal(problems)
	}
	if c.TrustDomain != "file.example" || c.LogLevel != "error" || c.Heartbeat != 3*time.Second {
		t.Errorf("the file, the environment and the flag give %s, %s, %s", c.TrustDomain, c.LogLevel, c.Heartbeat)
	}
	c, problems = load(t, "dev: true\nplugins:\n  analysis:\n    prometheus:\n      required: true\n      deadline: 2s\n      maxConcurrency: 8\n      maxAddressSpaceMiB: 2048\n      restricted: true\n      env: {A: b}\n      override_builtin: true\n", nil, nil)
	if problems != nil {
		t.Fatal(problems)
	}
	if p := c.Plugins["analysis/prometheus"]; !p.Required || p.Deadline != 2*time.Second || p.MaxConcurrency != 8 || p.AddressSpace != 2<<30 || p.Env["A"] != "b" || !p.OverrideBuiltin || !p.Restricted {
		t.Errorf("the plugin's settings are %+v", p)
	}
}

// TestControlPlane reads a file that a host, a gateway and a checker share.
func TestControlPlane(t *testing.T) {
	c, problems := load(t, `
controlPlane:
  listen: 127.0.0.1:7000
  trustDomain: prod.example
  tls: {mode: mtls, cert: c.pem, key: k.pem, ca: b.pem}
  gatewayTLS: {cert: gc.pem, key: gk.pem, ca: b.pem}
  checkerTLS: {cert: cc.pem, key: ck.pem, ca: b.pem}
  maxMessageBytes: 65536
  maxConcurrentStreams: 100
  maxStreamDuration: 1h
  maxCheckClaim: 10
  maxRuntimeCounters: 20
  keepalive: {time: 30s, timeout: 5s, minTime: 2s}
gateway: {listen: "127.0.0.1:3128", limits: {idle: 1m}}
checker: {drain: 5s}
`, nil, map[string]string{"max-check-claim": "11"})
	if problems != nil {
		t.Fatal(problems)
	}
	want := config.ControlPlane{TLSCert: "c.pem", TLSKey: "k.pem", TLSCA: "b.pem", MaxMessageBytes: 65536, MaxConcurrentStreams: 100, MaxStreamDuration: time.Hour,
		MaxCheckClaim: 11, MaxRuntimeCounters: 20, KeepaliveTime: 30 * time.Second, KeepaliveTimeout: 5 * time.Second, KeepaliveMinTime: 2 * time.Second}
	if c.ControlPlane != want || c.GRPCListen != "127.0.0.1:7000" || c.TrustDomain != "prod.example" || c.Plaintext || !c.Identities {
		t.Errorf("%+v", c)
	}
	c, problems = load(t, "controlPlane: {tls: {mode: disabled}}\n", nil, nil)
	if problems != nil || !c.Plaintext || c.Identities {
		t.Errorf("without TLS: %v, %+v", problems, c)
	}
}

// TestBadFiles: each problem says where, which key, and what is allowed.
func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ name, file, where, key, text string }{
		{"unknown key", "dev: true\nnope: 1\n", ":2:1", "nope", "allowed here are"},
		{"unknown key below", "dev: true\nlog:\n  nope: 1\n", ":3:3", "log.nope", "allowed here are json, level"},
		{"key twice", "dev: true\ndev: true\n", ":2:1", "dev", "a second time"},
		{"wrong type", "dev: [1]\n", ":1:6", "dev", "single value"},
		{"not a mapping", "dev: true\nlog: 3\n", ":2:6", "log", "mapping"},
		{"a list", "- a\n", ":1:1", "", "mapping"},
		{"a boolean", "dev: maybe\n", ":1:6", "dev", "true and false"},
		{"an address", "dev: true\ngrpc:\n  listen: nowhere\n", ":3:11", "grpc.listen", "host:port"},
		{"a port", "dev: true\ngrpc:\n  listen: 127.0.0.1:70000\n", ":3:11", "grpc.listen", "host:port"},
		{"no unit", "dev: true\nsession:\n  heartbeat: 5\n", ":3:14", "session.heartbeat", "with a unit"},
		{"negative", "dev: true\nsession:\n  heartbeat: -5s\n", ":3:14", "session.heartbeat", "allowed are"},
		{"overflow", "dev: true\nsession:\n  heartbeat: 99999999999h\n", ":3:14", "session.heartbeat", "allowed are"},
		{"an anchor", "dev: &a true\n", ":1:1", "dev", "anchor"},
		{"an alias", "dev: true\nx: *a\n", "", "", "unknown anchor"},
		{"tabs", "dev:\n\t- a\n", "", "", "not YAML"},
		{"two documents", "dev: true\n---\ndev: true\n", "", "", "more than one document"},
		{"a store", "dev: true\nstore: x\n", ":2:8", "store", "embedded"},
		{"a store's URL", "dev: true\nstore: redis://x/y\n", ":2:8", "store", "is not a number"},
		{"a store's mapping", "dev: true\nstore: {url: \"redis://x\", nope: 1}\n", ":2:27", "store.nope", "allowed here are redis, url"},
		{"a password", "dev: true\nstore: {url: \"redis://a:b@x\"}\n", ":2:14", "store.url", "store.redis.password_file"},
		{"no password", "dev: true\nstore: redis://a@x\n", "default", "store.redis.password_file", "names the user"},
		{"replicas", "dev: true\nstore: {url: \"redis://x\", redis: {replicas: 17}}\n", ":2:45", "store.redis.replicas", "0 to 16"},
		{"redis without a server", "dev: true\nstore: {redis: {replicas: 1}}\n", ":2:27", "store.redis.replicas", "store is embedded"},
		{"a store twice", "dev: true\nstore: {url: \"redis://x\", url: embedded}\n", ":2:27", "store", "a second time"},
		{"a trust domain", "dev: true\ntrust_domain: Upper\n", ":2:15", "trust_domain", "a-z"},
		{"a log level", "dev: true\nlog: {level: loud}\n", ":2:14", "log.level", "trace"},
		{"an ops address", "dev: true\nhttp: {ops_listen: \"0.0.0.0:1\"}\n", ":2:20", "http.ops_listen", "loopback"},
		{"plaintext", "grpc: {plaintext: yes}\n", ":1:19", "grpc.plaintext", "anyone-who-connects-is-an-operator"},
		{"plaintext and an identity", "grpc: {plaintext: anyone-who-connects-is-an-operator}\nidentity: {dir: /x}\n", ":1:19", "grpc.plaintext", "either"},
		{"plaintext over the network", "grpc: {plaintext: anyone-who-connects-is-an-operator}\nhttp: {listen: \"10.0.0.1:1\"}\n", ":2:16", "http.listen", "loopback"},
		{"connections", "dev: true\ngrpc: {max_connections: -1}\n", ":2:25", "grpc.max_connections", "0 to"},
		{"an environment", "dev: true\nenvironment: a/b\n", ":2:14", "environment", "A-Z"},
		{"memory without a unit", "dev: true\nmemory: {limit: 1000}\n", ":2:17", "memory.limit", "MiB"},
		{"little memory", "dev: true\nmemory: {limit: 63MiB}\n", ":2:17", "memory.limit", "64MiB"},
		{"a long socket", "dev: true\ndebug: {socket: /" + strings.Repeat("x", 107) + "}\n", ":2:17", "debug.socket", "107"},
		{"not loopback", "dev: true\ngrpc: {listen: \"0.0.0.0:1\"}\n", ":2:16", "grpc.listen", "loopback"},
		{"one port twice", "dev: true\ngrpc: {listen: \"127.0.0.1:9\"}\nhttp: {listen: \"127.0.0.1:9\"}\n", ":3:16", "http.listen", "two ports"},
		{"bootstrap for all", "dev: true\nbootstrap: {listen: \"0.0.0.0:1\"}\n", ":2:21", "bootstrap.listen", "bootstrap.reach"},
		{"reach", "dev: true\nbootstrap: {reach: \"yes\"}\n", ":2:20", "bootstrap.reach", "plaintext-over-the-network"},
		{"bootstrap's port", "dev: true\nbootstrap: {listen: \"127.0.0.1:9\"}\nhttp: {listen: \"127.0.0.1:9\"}\n", ":2:21", "bootstrap.listen", "two ports"},
		{"a short life", "dev: true\nidentity: {ttl: 1m}\n", ":2:17", "identity.ttl", "identity.minTTL"},
		{"a long life", "dev: true\nidentity: {ttl: 25h}\n", ":2:17", "identity.ttl", "24h"},
		{"half an authority", "dev: true\nidentity: {ca_key: x}\n", "default", "identity.ca_cert", "belong together"},
		{"backoff", "dev: true\nplugins: {backoff: {min: 2m}}\n", ":2:26", "plugins.backoff.min", "more than"},
		{"plugin twice", "dev: true\nplugins:\n  strategy:\n    a: {}\n    a: {}\n", ":5:5", "plugins.strategy.a", "a second time"},
		{"plugin key", "dev: true\nplugins:\n  strategy:\n    a: {nope: 1}\n", ":4:9", "plugins.strategy.a.nope", "allowed here are"},
		{"plugin deadline", "dev: true\nplugins:\n  strategy:\n    a: {deadline: 2h}\n", ":4:19", "plugins.strategy.a.deadline", "1ms to 1m"},
		{"plugin address space", "dev: true\nplugins:\n  strategy:\n    a: {maxAddressSpaceMiB: 1023}\n", ":4:29", "plugins.strategy.a.maxAddressSpaceMiB", "1024 to 1048576"},
		{"plugin concurrency", "dev: true\nplugins:\n  strategy:\n    a: {maxConcurrency: 0}\n", ":4:25", "plugins.strategy.a.maxConcurrency", "1 to 1024"},
		{"plugin env", "dev: true\nplugins:\n  strategy:\n    a: {env: {\"A=B\": c}}\n", ":4:15", "plugins.strategy.a.env.A=B", "names without ="},
		{"restricted", "dev: true\nplugins:\n  strategy:\n    a: {restricted: 1}\n", ":4:21", "plugins.strategy.a.restricted", "true and false"},
		{"override", "dev: true\nplugins:\n  strategy:\n    a: {override_builtin: maybe}\n", ":4:27", "plugins.strategy.a.override_builtin", "true and false"},
		{"no plugin directory", "dev: true\nplugins:\n  dir: /nonexistent/plugins\n", ":3:8", "plugins.dir", "no such file or directory; make it, or leave the setting out"},
		{"a file for a plugin directory", "dev: true\nplugins:\n  dir: /dev/null\n", ":3:8", "plugins.dir", "is not a directory"},
		{"attached to nothing", "dev: true\nplugins:\n  attach: analysis/x\n", ":3:11", "plugins.attach", "KIND/NAME=SOCKET as the plugin prints it"},
		{"attached by a kind that is none", "dev: true\nplugins:\n  attach: filter/x=/s\n", ":3:11", "plugins.attach", "one of the kinds"},
		{"attached twice", "dev: true\nplugins:\n  attach: probe/x=/s,probe/x=/t\n", ":3:11", "plugins.attach", "names probe/x twice"},
		{"a message's bytes", "dev: true\ncontrolPlane: {maxMessageBytes: 65535}\n", ":2:33", "controlPlane.maxMessageBytes", "65536 to 4194304"},
		{"streams", "dev: true\ncontrolPlane: {maxConcurrentStreams: 7}\n", ":2:38", "controlPlane.maxConcurrentStreams", "8 to 100000"},
		{"a stream's life", "dev: true\ncontrolPlane: {maxStreamDuration: 0s}\n", ":2:35", "controlPlane.maxStreamDuration", "1s to 720h"},
		{"a claim", "dev: true\ncontrolPlane: {maxCheckClaim: 257}\n", ":2:31", "controlPlane.maxCheckClaim", "1 to 256"},
		{"counters", "dev: true\ncontrolPlane: {maxRuntimeCounters: 0}\n", ":2:36", "controlPlane.maxRuntimeCounters", "1 to 4096"},
		{"keepalive's time", "dev: true\ncontrolPlane: {keepalive: {time: 1}}\n", ":2:34", "controlPlane.keepalive.time", "1s to 1h0m0s"},
		{"keepalive's timeout", "dev: true\ncontrolPlane: {keepalive: {timeout: 2h}}\n", ":2:37", "controlPlane.keepalive.timeout", "100ms to 1h0m0s"},
		{"keepalive's shortest time", "dev: true\ncontrolPlane: {keepalive: {minTime: 16s}}\n", ":2:37", "controlPlane.keepalive.minTime", "100ms to 15s"},
		{"keepalive's key", "dev: true\ncontrolPlane: {keepalive: {nope: 1}}\n", ":2:28", "controlPlane.keepalive.nope", "allowed here are minTime, time, timeout"},
		{"controlPlane's key", "dev: true\ncontrolPlane: {nope: 1}\n", ":2:16", "controlPlane.nope", "allowed here are checkerTLS, gatewayTLS, keepalive, listen, maxCheckClaim, maxConcurrentStreams, maxMessageBytes, maxRuntimeCounters, maxStreamDuration, tls, trustDomain"},
		{"another name", "dev: true\ncontrolPlane: {listen: nowhere}\n", ":2:24", "controlPlane.listen", "host:port"},
		{"both names", "dev: true\ngrpc: {listen: \"127.0.0.1:1\"}\ncontrolPlane: {listen: \"127.0.0.1:2\"}\n", ":3:24", "controlPlane.listen", "is one setting with grpc.listen"},
		{"both names, the other way round", "dev: true\ncontrolPlane: {trustDomain: a.example}\ntrust_domain: b.example\n", ":3:15", "trust_domain", "is one setting with controlPlane.trustDomain"},
		{"a gateway's files that are none", "dev: true\ncontrolPlane: {gatewayTLS: 1}\n", ":2:28", "controlPlane.gatewayTLS", "mapping"},
		{"a mode of TLS", "controlPlane: {tls: {mode: tls}}\n", ":1:28", "controlPlane.tls.mode", "mtls and disabled"},
		{"no TLS over the network", "controlPlane: {listen: \"10.0.0.1:1\", tls: {mode: disabled}}\n", ":1:50", "controlPlane.tls.mode", "allowed is a loopback address"},
		{"a third of an identity", "controlPlane: {tls: {cert: a}}\n", ":1:28", "controlPlane.tls.cert", "belong together"},
		{"two identities", "controlPlane: {tls: {cert: a, key: b, ca: c}}\nidentity: {dir: /x}\n", ":1:28", "controlPlane.tls.cert", "identity.dir"},
		{"an identity without TLS", "controlPlane: {tls: {mode: disabled, cert: a, key: b, ca: c}}\n", ":1:44", "controlPlane.tls.cert", "nobody has an identity"},
		{"probe key", "dev: true\nplugins:\n  probe:\n    a: {nope: 1}\n", ":4:9", "plugins.probe.a.nope", "allowed here are"},
		{"plugin kind", "dev: true\nplugins:\n  nope: {}\n", ":3:3", "plugins.nope", "allowed here are analysis, attach, backoff, dir, probe, strategy"},
	} {
		c, problems := load(t, tc.file, nil, nil)
		if c != nil || len(problems) != 1 {
			t.Errorf("%s: %v, want one problem", tc.name, problems)
			continue
		}
		p := problems[0]
		if !strings.HasSuffix(p.Where, tc.where) || p.Key != tc.key || !strings.Contains(p.Text, tc.text) {
			t.Errorf("%s: %q at %q, %q; want %q at %q, %q", tc.name, p.Key, p.Where, p.Text, tc.key, tc.where, tc.text)
		}
	}
}

// TestSizes: what a memory limit reads as, and that dev has no caps.
func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"64MiB": 64 << 20, "2GiB": 2 << 30, "": 0} {
		if c, problems := loadFile(t, "", nil, map[string]string{"memory-limit": text}); problems != nil || c.MemoryLimit != want || c.Caps.Connections != 16384 {
			t.Errorf("%q: %+v, %v", text, c, problems)
		}
	}
	if c, _ := loadFile(t, "", nil, map[string]string{"dev": "true"}); c.Caps != (config.Caps{}) {
		t.Errorf("with dev the caps are %+v", c.Caps)
	}
}

func TestHarmlessFiles(t *testing.T) {
	for name, file := range map[string]string{
		"BOM": "\ufeffdev: true\n", "CRLF": "dev: true\r\nlog:\r\n  level: warn\r\n", "a comment": "# nothing\ndev: true # here\n",
	} {
		if c, problems := load(t, file, nil, nil); problems != nil || !c.Dev {
			t.Errorf("%s: %v", name, problems)
		}
	}
	if _, problems := load(t, "", nil, map[string]string{"dev": "true"}); problems != nil {
		t.Errorf("an empty file: %v", problems)
	}
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		dir: "not a regular file", fifo: "not a regular file", big: "allowed are at most", filepath.Join(dir, "none"): "no such file",
	} {
		_, problems := loadFile(t, name, nil, nil)
		if len(problems) != 1 || problems[0].Where != name || !strings.Contains(problems[0].Text, want) {
			t.Errorf("%s: %v, want %q", name, problems, want)
		}
	}
}

// What answers at a socket is anybody's, so that only a host for development asks it.
func TestAttachNeedsDev(t *testing.T) {
	c, problems := loadFile(t, "", nil, map[string]string{"dev": "true", "attach": "analysis/x=/s/a,probe/y=/s/b"})
	if problems != nil || len(c.Attach) != 2 || c.Attach["probe/y"] != "/s/b" {
		t.Errorf("with dev: %v", problems)
	}
	_, problems = loadFile(t, "", nil, map[string]string{"attach": "analysis/x=/s/a"})
	if !slices.ContainsFunc(problems, func(p config.Problem) bool {
		return p.Where == "--attach" && p.Key == "plugins.attach" && strings.Contains(p.Text, "dev only")
	}) {
		t.Errorf("without: %v", problems)
	}
}

func TestPluginDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, dev := range []string{"true", "false"} {
		c, problems := loadFile(t, "", nil, map[string]string{"dev": dev, "identity-dir": dir, "plugin-dir": dir})
		if slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Key == "plugins.dir" }) || problems == nil && c.PluginDir != dir {
			t.Errorf("with dev %s: %v", dev, problems)
		}
		_, problems = loadFile(t, "", nil, map[string]string{"dev": dev, "identity-dir": dir, "plugin-dir": "/nonexistent/plugins"})
		if !slices.ContainsFunc(problems, func(p config.Problem) bool {
			return p.Where == "--plugin-dir" && p.Key == "plugins.dir" && strings.Contains(p.Text, "no such file")
		}) {
			t.Errorf("with dev %s, without the directory: %v", dev, problems)
		}
	}
}

// TestAllAtOnce: every problem of all three places in one answer, the first 20
// in words.
func TestAllAtOnce(t *testing.T) {
	var file strings.Builder
	for i := range 30 {
		fmt.Fprintf(&file, "nope%d: 1\n", i)
	}
	_, err := config.Load("", []string{"DONA_NOPE=1", "DONA_LOG_LEVEL=loud"}, map[string]string{"heartbeat": "x"})
	for _, want := range []string{"DONA_NOPE", "DONA_LOG_LEVEL", "--heartbeat"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %s", err, want)
		}
	}
	_, problems := load(t, file.String(), nil, nil)
	text := (&config.Error{Problems: problems}).Error()
	if len(problems) != 30 || strings.Count(text, "\n") != 20 || !strings.HasSuffix(text, "and 10 more") {
		t.Errorf("%d problems, told as\n%s", len(problems), text)
	}
}

// TestPage compares docs/configuration.md with the table of settings.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range config.Settings() {
		def := s.Default
		if def == "" {
			def = "(empty)"
		}
		row := fmt.Sprintf("| `%s` | `--%s` | `%s` | `%s` | %s |", s.Key, s.Flag, s.Env(), def, s.Help)
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("docs/configuration.md lacks the row\n%s", row)
		}
	}
	if got, want := strings.Count(string(page), "| `DONA_"), len(config.Settings()); got != want {
		t.Errorf("docs/configuration.md has %d settings, there are %d", got, want)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("dev: true\nplugins: {strategy: {a: {env: {A: b}}}}\n")
	f.Add("a: &a [*a, *a]\n")
	f.Fuzz(func(t *testing.T, content string) {
		c, problems := load(t, content, nil, map[string]string{"dev": "true"})
		if (c == nil) == (problems == nil) {
			t.Errorf("%v and %v", c, problems)
		}
	})
}
