// Package config reads, defaults and checks the host's configuration, and says
// what is wrong with it: all errors at once, each with file, line, column, key,
// reason and what is allowed. Nothing is started from a configuration that does
// not hold.
//
// Every setting has a key in the file, a flag and an environment variable
// (DONA_ and the key in upper case, dots as underscores). A flag wins over the
// environment, the environment over the file, the file over the default.
// [Settings] is the one table of them; docs/configuration.md is its page.
package config

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store/redis"
)

// Config is a checked configuration.
type Config struct {
	Dev             bool
	DataDir         string
	GRPCListen      string
	BootstrapListen string
	HTTPListen      string
	OpsListen       string // plaintext, on loopback; empty = none
	IdentityDir     string // with the host's own SVID; empty = the host issues it to itself
	Plaintext       bool   // gRPC without identities, and without --dev
	Caps            Caps   // none with dev
	ControlPlane    ControlPlane
	MemoryLimit     int64  // bytes; 0 = GOMEMLIMIT, or none
	DebugSocket     string // where pprof is served; empty = nowhere
	Environment     string // that workers and checkers have to be of; empty = any
	Store           string // "embedded", or a URL that Redis is parsed from
	Redis           redis.Target
	RedisReplicas   int // that hard writes wait for
	TrustDomain     string
	AttestationKey  string        // file of the key that reports are signed with; empty = in DataDir
	AuditKeep       time.Duration // that entries stay in the store
	AuditMaxEntries uint64        // of a chain in the store; 0 = any number
	LogLevel        string
	LogJSON         bool

	Heartbeat    time.Duration // that endpoints are told
	RestartGrace time.Duration // longest wait for remembered endpoints after a start

	Identities      bool // this host issues them: always without dev, with it when bootstrap.listen is set
	SVIDTTL         time.Duration
	SVIDMinTTL      time.Duration
	HostKeys        bool   // makes keys for workloads that send no request
	CACert, CAKey   string // files of the authority; empty = one of the data directory
	BootstrapPublic bool   // the bootstrap listener may be on another address than loopback

	CheckInterval time.Duration // between two checks of an endpoint that is well
	CheckTimeout  time.Duration // of one check

	PoolLists   string // directory of lists of proxies; empty = none
	PoolSecrets string // directory of credentials; empty = none
	PoolTokens  string // file of who may extract over HTTP; empty = only who has an identity

	PluginDir     string
	Attach        map[string]string // sockets by "<kind>/<name>", of plugins that others have started
	PluginBackoff Backoff
	Plugins       map[string]Plugin // by "<kind>/<name>"
}

// Caps bound what is open on the gRPC listener at once. 0 is no bound.
type Caps struct {
	Connections        int
	ConnectionsPerPeer int
	StreamsPerPeer     int
}

// Backoff bounds the wait before a plugin is started again.
type Backoff struct {
	Min, Max time.Duration
}

// Plugin configures how the host runs one plugin.
type Plugin struct {
	Required       bool              // the host is not ready without it
	Env            map[string]string // added to the plugin's environment
	Deadline       time.Duration     // cap of its calls; 0 = the kind's default
	MaxConcurrency int               // calls at once; 0 = what the plugin says
	AddressSpace   uint64            // bytes that it may have mapped; 0 = no limit

	Restricted      bool // with less than the host's user may do
	OverrideBuiltin bool // a file of the plugin directory runs in place of the built-in
}

// Setting is one row of the table.
type Setting struct {
	Key     string // in the file, dots for nesting
	Flag    string // without dashes; empty = no flag
	Default string
	Help    string
	Bool    bool

	set func(c *Config, value string) error
}

// Env is the setting's environment variable.
func (s Setting) Env() string {
	name := s.Flag
	if name == "" {
		name = s.Key
	}
	return "DONA_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(name))
}

const (
	plaintextWords = "anyone-who-connects-is-an-operator"
	maxSocketPath  = 107 // the system's bound
)

var trustDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,253}[a-z0-9])?$`)

// Settings lists every setting but those of single plugins.
func Settings() []Setting {
	return append([]Setting{
		{Key: "dev", Flag: "dev", Default: "false", Bool: true,
			Help: "development: loopback only, plaintext, no identities, gRPC reflection",
			set:  boolean(func(c *Config) *bool { return &c.Dev })},
		{Key: "data_dir", Flag: "data-dir", Default: "./.dona",
			Help: "directory of the embedded store; made with mode 0700",
			set:  text(func(c *Config) *string { return &c.DataDir })},
		{Key: "grpc.listen", Flag: "grpc-listen", Default: "127.0.0.1:7600",
			Help: "address of the gRPC services",
			set:  address(func(c *Config) *string { return &c.GRPCListen })},
		{Key: "bootstrap.listen", Flag: "bootstrap-listen", Default: "127.0.0.1:7601",
			Help: "address where identities are issued for tokens; with dev only when it is set",
			set:  address(func(c *Config) *string { return &c.BootstrapListen })},
		{Key: "bootstrap.reach", Flag: "bootstrap-reach", Default: "loopback",
			Help: "loopback, or plaintext-over-the-network: whoever reads along there can use a token before its owner",
			set: func(c *Config, v string) error {
				switch v {
				case "loopback", "plaintext-over-the-network":
					c.BootstrapPublic = v != "loopback"
					return nil
				}
				return fmt.Errorf("is %q: allowed are loopback and plaintext-over-the-network", short(v))
			}},
		{Key: "http.listen", Flag: "http-listen", Default: "127.0.0.1:7602",
			Help: "address of /metrics, /healthz and /readyz; TLS but with dev",
			set:  address(func(c *Config) *string { return &c.HTTPListen })},
		{Key: "http.ops_listen", Flag: "http-ops-listen", Default: "",
			Help: "one more address of the same three, plaintext and on loopback, for what scrapes and probes on this machine",
			set: func(c *Config, v string) error {
				if v == "" {
					c.OpsListen = ""
					return nil
				}
				if err := address(func(c *Config) *string { return &c.OpsListen })(c, v); err != nil || loopback(v) {
					return err
				}
				return fmt.Errorf("is %q: it is plaintext, so allowed are loopback addresses alone, such as 127.0.0.1:7603", short(v))
			}},
		{Key: "identity.dir", Flag: "identity-dir", Default: "",
			Help: "directory with cert.pem, key.pem and bundle.pem of this host, which are followed; not used with dev",
			set:  text(func(c *Config) *string { return &c.IdentityDir })},
		{Key: "environment", Flag: "environment", Default: "",
			Help: "environment that workers and checkers have to be of, the first part of their SPIFFE IDs; without it any",
			set: func(c *Config, v string) error {
				if err := limits.OptionalName(v); err != nil {
					return err
				}
				c.Environment = v
				return nil
			}},
		{Key: "grpc.plaintext", Flag: "grpc-plaintext", Default: "never",
			Help: "never, or anyone-who-connects-is-an-operator: no TLS and no identities, for networks where nobody else is; credentials of proxies go to loopback alone even so",
			set: func(c *Config, v string) error {
				if v != "never" && v != plaintextWords {
					return fmt.Errorf("is %q: allowed are never and %s", short(v), plaintextWords)
				}
				c.Plaintext = v == plaintextWords
				return nil
			}},
		{Key: "grpc.max_connections", Flag: "grpc-max-connections", Default: "16384",
			Help: "connections at once; 0 = no bound, as with dev",
			set:  number(func(c *Config) *int { return &c.Caps.Connections }, 1<<20)},
		{Key: "grpc.max_connections_per_peer", Flag: "grpc-max-connections-per-peer", Default: "64",
			Help: "connections at once of one identity from one address; 0 = no bound, as with dev",
			set:  number(func(c *Config) *int { return &c.Caps.ConnectionsPerPeer }, 1<<20)},
		{Key: "grpc.max_streams_per_peer", Flag: "grpc-max-streams-per-peer", Default: "1024",
			Help: "calls under way of one identity from one address; 0 = no bound, as with dev",
			set:  number(func(c *Config) *int { return &c.Caps.StreamsPerPeer }, 1<<20)},
		{Key: "memory.limit", Flag: "memory-limit", Default: "",
			Help: "memory in MiB or GiB, such as 512MiB, at whose 80, 90 and 95 % calls are refused; without it GOMEMLIMIT, or none",
			set: func(c *Config, v string) (err error) {
				c.MemoryLimit, err = size(v)
				return err
			}},
		{Key: "debug.socket", Flag: "debug-socket", Default: "",
			Help: "path of a unix socket of mode 0600 with Go's profiles (net/http/pprof)",
			set: func(c *Config, v string) error {
				if len(v) > maxSocketPath || strings.ContainsAny(v, "\n\x00") {
					return fmt.Errorf("is %q: allowed is a path of at most %d bytes without line breaks", short(v), maxSocketPath)
				}
				c.DebugSocket = v
				return nil
			}},
		{Key: "store", Flag: "store", Default: "embedded",
			Help: "where state is kept: embedded, or redis://host:port/db and its other forms",
			set:  setStore},
		{Key: "store.redis.cluster", Flag: "redis-cluster", Default: "default",
			Help: "hosts with one name share their data on the Redis server",
			set:  text(func(c *Config) *string { return &c.Redis.Cluster })},
		{Key: "store.redis.replicas", Flag: "redis-replicas", Default: "0",
			Help: "replicas that must have a hard write: all there are, the same on all hosts",
			set: func(c *Config, v string) error {
				n, err := strconv.Atoi(v)
				if err != nil || n < 0 || n > redis.MaxReplicas {
					return fmt.Errorf("is %q: allowed are 0 to %d", short(v), redis.MaxReplicas)
				}
				c.RedisReplicas = n
				return nil
			}},
		{Key: "store.redis.password_file", Flag: "redis-password-file", Default: "",
			Help: "file of mode 0600 with the password of the user in store",
			set:  text(func(c *Config) *string { return &c.Redis.PasswordFile })},
		{Key: "store.redis.sentinel_password_file", Flag: "redis-sentinel-password-file", Default: "",
			Help: "file of mode 0600 with the password of the Sentinels",
			set:  text(func(c *Config) *string { return &c.Redis.SentinelPasswordFile })},
		{Key: "store.redis.ca_file", Flag: "redis-ca-file", Default: "",
			Help: "certificates in PEM that vouch for the server, with rediss",
			set:  text(func(c *Config) *string { return &c.Redis.CAFile })},
		{Key: "store.redis.server_name", Flag: "redis-server-name", Default: "",
			Help: "name in the server's certificate, if not that in store",
			set:  text(func(c *Config) *string { return &c.Redis.ServerName })},
		{Key: "trust_domain", Flag: "trust-domain", Default: "dona.local",
			Help: "SPIFFE trust domain; part of every audit chain's beginning",
			set: func(c *Config, v string) error {
				if !trustDomain.MatchString(v) {
					return fmt.Errorf("is %q: allowed are 1 to 255 of a-z, 0-9 and ._-", short(v))
				}
				c.TrustDomain = v
				return nil
			}},
		{Key: "audit.key_file", Flag: "attestation-key", Default: "",
			Help: "file of mode 0600 with the key that attestations are signed with; without it, attestation.key in the data directory, made at the first start",
			set:  text(func(c *Config) *string { return &c.AttestationKey })},
		{Key: "audit.keep", Flag: "audit-keep", Default: "2160h",
			Help: "how long audit entries stay in the store; older ones move to segment files in the data directory",
			set:  duration(func(c *Config) *time.Duration { return &c.AuditKeep }, time.Minute, 87_600*time.Hour)},
		{Key: "audit.maxEntries", Flag: "audit-max-entries", Default: "1000000",
			Help: "audit entries of a chain that stay in the store; the oldest above it move; 0 = any number",
			set: func(c *Config, v string) error {
				n, err := strconv.ParseUint(v, 10, 63)
				if err != nil || n > 0 && n < 100 {
					return fmt.Errorf("is %q: allowed are 0 and numbers from 100 on", short(v))
				}
				c.AuditMaxEntries = n
				return nil
			}},
		{Key: "log.level", Flag: "log-level", Default: "info",
			Help: "trace, debug, info, warn or error",
			set: func(c *Config, v string) error {
				switch v {
				case "trace", "debug", "info", "warn", "error":
					c.LogLevel = v
					return nil
				}
				return fmt.Errorf("is %q: allowed are trace, debug, info, warn, error", short(v))
			}},
		{Key: "log.json", Flag: "log-json", Default: "false", Bool: true,
			Help: "log lines as JSON",
			set:  boolean(func(c *Config) *bool { return &c.LogJSON })},
		{Key: "session.heartbeat", Flag: "heartbeat", Default: "5s",
			Help: "heartbeat interval that endpoints are told; gone after three missed",
			set:  duration(func(c *Config) *time.Duration { return &c.Heartbeat }, 50*time.Millisecond, time.Minute)},
		{Key: "session.restart_grace", Flag: "restart-grace", Default: "10s",
			Help: "longest wait after a start for the endpoints known before",
			set:  duration(func(c *Config) *time.Duration { return &c.RestartGrace }, 0, 5*time.Minute)},
		{Key: "checks.interval", Flag: "check-interval", Default: "30s",
			Help: "between two checks of an endpoint that is well; a third of it while one is suspect, up to ten of it while one is out",
			set:  duration(func(c *Config) *time.Duration { return &c.CheckInterval }, 100*time.Millisecond, time.Hour)},
		{Key: "checks.timeout", Flag: "check-timeout", Default: "5s",
			Help: "how long an endpoint has to answer a check",
			set:  duration(func(c *Config) *time.Duration { return &c.CheckTimeout }, 10*time.Millisecond, time.Minute)},
		{Key: "pool.lists_dir", Flag: "pool-lists-dir", Default: "",
			Help: "directory below which upstreams of the egress plane have their lists of proxies; without it no source is a file",
			set:  text(func(c *Config) *string { return &c.PoolLists })},
		{Key: "pool.secrets_dir", Flag: "pool-secrets-dir", Default: "",
			Help: "directory below which a secretRef file:NAME has its credential, in a file of mode 0600; without it only env:NAME works",
			set:  text(func(c *Config) *string { return &c.PoolSecrets })},
		{Key: "pool.tokens_file", Flag: "pool-tokens-file", Default: "",
			Help: "file of mode 0600 with name:sha256 of each bearer token that may extract over HTTP; it is followed",
			set:  text(func(c *Config) *string { return &c.PoolTokens })},
		{Key: "identity.ttl", Flag: "identity-ttl", Default: "1h",
			Help: "how long an SVID is valid",
			set:  duration(func(c *Config) *time.Duration { return &c.SVIDTTL }, time.Second, 24*time.Hour)},
		{Key: "identity.minTTL", Flag: "identity-min-ttl", Default: "5m",
			Help: "an SVID that would be valid for less, because its authority ends, is not issued",
			set:  duration(func(c *Config) *time.Duration { return &c.SVIDMinTTL }, time.Second, 24*time.Hour)},
		{Key: "identity.host_keys", Flag: "identity-host-keys", Default: "false", Bool: true,
			Help: "make the key for a workload that sends no certificate request; it then crosses the wire",
			set:  boolean(func(c *Config) *bool { return &c.HostKeys })},
		{Key: "identity.ca_cert", Flag: "identity-ca-cert", Default: "",
			Help: "certificate of the authority, in PEM; without it one of the data directory, made at the first start",
			set:  text(func(c *Config) *string { return &c.CACert })},
		{Key: "identity.ca_key", Flag: "identity-ca-key", Default: "",
			Help: "file of mode 0600 with the authority's key, in PEM",
			set:  text(func(c *Config) *string { return &c.CAKey })},
		{Key: "plugins.dir", Flag: "plugin-dir", Default: "",
			Help: "directory of plugins that are files, and of plugins.lock, which pins them; with dev unpinned ones run, too",
			set:  text(func(c *Config) *string { return &c.PluginDir })},
		{Key: "plugins.attach", Flag: "attach", Default: "",
			Help: "KIND/NAME=SOCKET of a plugin that was started with --attach, such as by a debugger; more after commas; with dev only",
			set:  attach},
		{Key: "plugins.backoff.min", Flag: "plugins-backoff-min", Default: "250ms",
			Help: "shortest wait before a plugin that ended is started again",
			set:  duration(func(c *Config) *time.Duration { return &c.PluginBackoff.Min }, 10*time.Millisecond, time.Hour)},
		{Key: "plugins.backoff.max", Flag: "plugins-backoff-max", Default: "1m",
			Help: "longest wait before a plugin that ended is started again",
			set:  duration(func(c *Config) *time.Duration { return &c.PluginBackoff.Max }, 10*time.Millisecond, time.Hour)},
	}, controlPlane()...)
}

// Defaults returns the configuration of a host that is told nothing.
func Defaults() *Config {
	c := &Config{Plugins: map[string]Plugin{}}
	for _, s := range Settings() {
		if err := s.set(c, s.Default); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", s.Key, err)) // a wrong table, found by any test
		}
	}
	return c
}

// check judges what only several settings together show.
func (c *Config) check(where func(key string) string) (problems []Problem) {
	add := func(key, format string, args ...any) {
		problems = append(problems, Problem{Where: where(key), Key: key, Text: fmt.Sprintf(format, args...)})
	}
	if c.Dev {
		c.Caps = Caps{}
	}
	if c.Plaintext && !c.Dev && !loopback(c.HTTPListen) {
		add("http.listen", "is %q: with grpc.plaintext the host has no certificate, so it has to be a loopback address", short(c.HTTPListen))
	}
	if c.Plaintext && c.IdentityDir != "" {
		add("grpc.plaintext", "is set, and so is identity.dir: either callers have identities or they have none")
	}
	for key, listen := range map[string]string{"grpc.listen": c.GRPCListen, "http.listen": c.HTTPListen} {
		if c.Dev && !loopback(listen) {
			add(key, "is %q: with dev only loopback addresses are allowed, such as 127.0.0.1:7600", short(listen))
		}
	}
	if c.GRPCListen == c.HTTPListen && !strings.HasSuffix(c.GRPCListen, ":0") {
		add("http.listen", "is %q, as grpc.listen is: they need two ports", short(c.HTTPListen))
	}
	problems = append(problems, c.checkIdentities(where)...)
	problems = append(problems, c.checkControlPlane(where)...)
	if c.PluginBackoff.Min > c.PluginBackoff.Max {
		add("plugins.backoff.min", "is %s, more than plugins.backoff.max, %s", c.PluginBackoff.Min, c.PluginBackoff.Max)
	}
	if len(c.Attach) > 0 && !c.Dev {
		add("plugins.attach", "is set: nothing is known of what answers at a socket; allowed with dev only")
	}
	if c.PluginDir != "" {
		switch info, err := os.Stat(c.PluginDir); {
		case err != nil:
			add("plugins.dir", "is %q: %s; make it, or leave the setting out", short(c.PluginDir), unwrapped(err))
		case !info.IsDir():
			add("plugins.dir", "is %q: it is not a directory", short(c.PluginDir))
		}
	}
	if c.AttestationKey != "" {
		if _, err := os.Stat(c.AttestationKey); err != nil {
			add("audit.key_file", "is %q: %s; name the key that the hosts of this store share, or leave the setting out", short(c.AttestationKey), unwrapped(err))
		}
	}
	problems = append(problems, c.checkStore(where)...)
	if c.DataDir == "" || strings.ContainsAny(c.DataDir, "\n\x00") {
		add("data_dir", "is %q: allowed is a path without line breaks", short(c.DataDir))
	}
	return problems
}

// checkStore judges the settings of a shared store; without one, there must be
// none.
func (c *Config) checkStore(where func(key string) string) (problems []Problem) {
	if c.Store != "embedded" {
		if err := c.Redis.Check(); err != nil {
			key, text, _ := strings.Cut(err.Error(), ": ")
			problems = append(problems, Problem{Where: where(key), Key: key, Text: text})
		}
		return problems
	}
	for _, s := range Settings() {
		if strings.HasPrefix(s.Key, "store.redis.") && where(s.Key) != "default" {
			problems = append(problems, Problem{Where: where(s.Key), Key: s.Key, Text: "is set, but store is embedded: name the server there"})
		}
	}
	return problems
}

// checkIdentities judges the settings of what is issued and where.
func (c *Config) checkIdentities(where func(key string) string) (problems []Problem) {
	add := func(key, format string, args ...any) {
		problems = append(problems, Problem{Where: where(key), Key: key, Text: fmt.Sprintf(format, args...)})
	}
	if c.Identities {
		if !c.BootstrapPublic && !loopback(c.BootstrapListen) {
			add("bootstrap.listen", "is %q: only loopback addresses are allowed, such as 127.0.0.1:7601, because it is plaintext; bootstrap.reach says otherwise in words", short(c.BootstrapListen))
		}
		for key, other := range map[string]string{"grpc.listen": c.GRPCListen, "http.listen": c.HTTPListen} {
			if c.BootstrapListen == other && !strings.HasSuffix(other, ":0") {
				add("bootstrap.listen", "is %q, as %s is: they need two ports", short(c.BootstrapListen), key)
			}
		}
	}
	if c.SVIDTTL < c.SVIDMinTTL {
		add("identity.ttl", "is %s, less than identity.minTTL, %s", c.SVIDTTL, c.SVIDMinTTL)
	}
	if (c.CACert == "") != (c.CAKey == "") {
		add("identity.ca_cert", "and identity.ca_key belong together: set both or neither")
	}
	return problems
}
