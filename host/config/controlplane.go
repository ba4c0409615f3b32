package config

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dodona-project/dodona/host/limits"
)

// ControlPlane is what the host lets its callers send and hold, workers and checkers
// above all.
type ControlPlane struct {
	TLSDisabled            bool   // no identities, and loopback alone
	TLSCert, TLSKey, TLSCA string // files of this host's identity; empty = those of IdentityDir, or its own

	MaxMessageBytes      int           // of one message received
	MaxConcurrentStreams int           // calls at once on one connection
	MaxStreamDuration    time.Duration // of a stream of a worker or checker
	MaxCheckClaim        int           // tasks that a checker holds at once
	MaxRuntimeCounters   int           // proxies that a worker owns

	KeepaliveTime    time.Duration // without a byte, until the host asks whether the peer is there
	KeepaliveTimeout time.Duration // for the answer
	KeepaliveMinTime time.Duration // that a peer waits between two such questions
}

// Bounds of the settings.
const (
	leastMessage = 64 << 10 // no outcome batch and no runtime report of defaults is cut
	mostMessage  = 4 << 20  // of reports of calls; nothing longer is ever taken
)

// otherNames are keys of the file that mean a setting with another key: of files that
// several programs read.
var otherNames = map[string]string{
	"store.url":                "store", // for those who write store as a mapping, with redis beside the URL
	"controlPlane.listen":      "grpc.listen",
	"controlPlane.trustDomain": "trust_domain",
}

// other is the name of a setting that a file uses beside the one that is written.
func other(key, written string) string {
	if written != key {
		return key
	}
	for name, of := range otherNames {
		if of == key {
			return name
		}
	}
	return key
}

// others are sections of the file that other programs read.
var others = map[string]bool{"gateway": true, "checker": true, "controlPlane.gatewayTLS": true, "controlPlane.checkerTLS": true}

// controlPlane lists the settings below controlPlane.
func controlPlane() []Setting {
	whole := func(at func(*ControlPlane) *int, least, most int) func(*Config, string) error {
		return func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < least || n > most {
				return fmt.Errorf("is %q: allowed are %d to %d", short(v), least, most)
			}
			*at(&c.ControlPlane) = n
			return nil
		}
	}
	lasting := func(at func(*ControlPlane) *time.Duration, least, most time.Duration) func(*Config, string) error {
		return duration(func(c *Config) *time.Duration { return at(&c.ControlPlane) }, least, most)
	}
	file := func(at func(*ControlPlane) *string) func(*Config, string) error {
		return text(func(c *Config) *string { return at(&c.ControlPlane) })
	}
	return []Setting{
		{Key: "controlPlane.tls.mode", Flag: "tls-mode", Default: "mtls",
			Help: "mtls; or disabled: no TLS and no identities, with grpc.listen and http.listen on loopback alone",
			set: func(c *Config, v string) error {
				if v != "mtls" && v != "disabled" {
					return fmt.Errorf("is %q: allowed are mtls and disabled", short(v))
				}
				c.ControlPlane.TLSDisabled = v == "disabled"
				return nil
			}},
		{Key: "controlPlane.tls.cert", Flag: "tls-cert", Default: "",
			Help: "certificate of this host in PEM, in place of identity.dir; with it tls.key and tls.ca",
			set:  file(func(c *ControlPlane) *string { return &c.TLSCert })},
		{Key: "controlPlane.tls.key", Flag: "tls-key", Default: "",
			Help: "file of mode 0600 with its key, in PEM",
			set:  file(func(c *ControlPlane) *string { return &c.TLSKey })},
		{Key: "controlPlane.tls.ca", Flag: "tls-ca", Default: "",
			Help: "authorities of the trust domain, in PEM, that callers are verified with",
			set:  file(func(c *ControlPlane) *string { return &c.TLSCA })},
		{Key: "controlPlane.maxMessageBytes", Flag: "max-message-bytes", Default: "4194304",
			Help: "bytes of one message received, 65536 to 4194304; some calls take less",
			set:  whole(func(c *ControlPlane) *int { return &c.MaxMessageBytes }, leastMessage, mostMessage)},
		{Key: "controlPlane.maxConcurrentStreams", Flag: "max-concurrent-streams", Default: "250",
			Help: "calls at once on one connection, 8 to 100000; the client lets more wait",
			set:  whole(func(c *ControlPlane) *int { return &c.MaxConcurrentStreams }, 8, 100_000)},
		{Key: "controlPlane.maxStreamDuration", Flag: "max-stream-duration", Default: "24h",
			Help: "how long a stream of a worker or checker lasts, 1s to 720h: it ends UNAVAILABLE, and the next one is opened, maybe on another host",
			set:  lasting(func(c *ControlPlane) *time.Duration { return &c.MaxStreamDuration }, time.Second, 720*time.Hour)},
		{Key: "controlPlane.maxCheckClaim", Flag: "max-check-claim", Default: strconv.Itoa(limits.CheckWindow),
			Help: "tasks that a checker is given at once, 1 to 256, whatever it asks for",
			set:  whole(func(c *ControlPlane) *int { return &c.MaxCheckClaim }, 1, limits.CheckWindow)},
		{Key: "controlPlane.maxRuntimeCounters", Flag: "max-runtime-counters", Default: strconv.Itoa(limits.RuntimeCounters),
			Help: "proxies that a worker owns at most, 1 to 4096; the same on all hosts",
			set:  whole(func(c *ControlPlane) *int { return &c.MaxRuntimeCounters }, 1, limits.RuntimeCounters)},
		{Key: "controlPlane.keepalive.time", Flag: "keepalive-time", Default: "20s",
			Help: "after which silence the host asks whether a peer is still there",
			set:  lasting(func(c *ControlPlane) *time.Duration { return &c.KeepaliveTime }, time.Second, time.Hour)},
		{Key: "controlPlane.keepalive.timeout", Flag: "keepalive-timeout", Default: "10s",
			Help: "how long the peer has to answer",
			set:  lasting(func(c *ControlPlane) *time.Duration { return &c.KeepaliveTimeout }, 100*time.Millisecond, time.Hour)},
		{Key: "controlPlane.keepalive.minTime", Flag: "keepalive-min-time", Default: "10s",
			Help: "a peer that asks more often than this whether the host is there is hung up on",
			set:  lasting(func(c *ControlPlane) *time.Duration { return &c.KeepaliveMinTime }, 100*time.Millisecond, 15*time.Second)}, // clients here ask every 20 s
	}
}

// checkControlPlane judges what several of the settings say together.
func (c *Config) checkControlPlane(where func(key string) string) (problems []Problem) {
	add := func(key, format string, args ...any) {
		problems = append(problems, Problem{Where: where(key), Key: key, Text: fmt.Sprintf(format, args...)})
	}
	p := c.ControlPlane
	if p.TLSDisabled && !c.Dev && !loopback(c.GRPCListen) {
		add("controlPlane.tls.mode", "is disabled, and grpc.listen is %q: allowed is a loopback address, such as 127.0.0.1:7600; grpc.plaintext allows others in words", short(c.GRPCListen))
	}
	set := 0
	for _, name := range []string{p.TLSCert, p.TLSKey, p.TLSCA} {
		if name != "" {
			set++
		}
	}
	switch {
	case set == 0:
	case set < 3:
		add("controlPlane.tls.cert", "and controlPlane.tls.key and controlPlane.tls.ca belong together: set all of them or none")
	case c.IdentityDir != "":
		add("controlPlane.tls.cert", "is set, and so is identity.dir: this host has one identity, so leave one of them out")
	case c.Plaintext && !c.Dev:
		add("controlPlane.tls.cert", "is set, but nobody has an identity with controlPlane.tls.mode disabled or grpc.plaintext: leave one of them out")
	}
	return problems
}
