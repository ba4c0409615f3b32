// Package limits holds every limit and name grammar of the public interface,
// in one place: the numbers that requests, reports and plugins' answers are
// checked against. It does no I/O and imports nothing of Dodona.
package limits

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Numbers. Each is tested at n and n+1 by the package that enforces it.
const (
	Services            = 5_000
	EndpointsPerService = 10_000
	FlagsPerService     = 1_000
	SnapshotBytes       = 4 << 20 // encoded, per service

	NameLen        = 128 // variants, regions, zones, flags, ids
	ServiceNameLen = 63
	Labels         = 32
	LabelKeyLen    = 63
	LabelValueLen  = 256
	HostLen        = 253

	StatsItems     = 4_096
	ReportAhead    = 5 * time.Second // a report's time may be this far ahead of the host's clock
	ReportBehind   = 5 * time.Minute // or this old
	StatsVariants  = 1_000           // variants of a service with a window of their own, the rest is "other"
	CountPerItem   = 1 << 31         // calls folded into one item
	LatencyUs      = 1 << 53         // of one call; a larger one is no measurement
	UnitLen        = 1 << 10         // bytes of a flag unit
	RequestIDLen   = 128
	CodeLen        = 32
	UnitDigestLen  = 32
	RejectedLen    = 256
	RegionsPerRule = 64

	RolloutSteps    = 50
	MinStepSeconds  = 1
	MaxStepSeconds  = 24 * 60 * 60
	MaxMinRequests  = 1 << 30
	AnalysisQueries = 16
	QueryLen        = 4 << 10
	URLLen          = 2 << 10
	QueryTimeoutMS  = 5_000
	ReasonLen       = 4 << 10
	TargetingRules  = 100   // as sdk/dona/match has it
	TargetingValues = 1_000 // the same
	AttributeLen    = 128
	ValueLen        = 1 << 10 // as sdk/dona/match has it
	PatternSteps    = 10_000  // the same: of the patterns of a flag
	PluginConfigLen = 64 << 10

	ArtifactsPerService = 10_000
	ReleasesPerService  = 10_000
	NonceLen            = 128
	DeploymentsKept     = 20 // of a service, the live one included; older ended ones are in the audit log only
	ReleaseConfigKeyLen = 128
	ReleaseConfigLen    = 64 << 10 // keys and values of one release together
	MaxReadySeconds     = 24 * 60 * 60
	ListLen             = 1_000   // items that one answer lists, the newest first
	ListBytes           = 4 << 20 // or as many as fit
	IngressesPerService = 100
	PathPrefixLen       = 1 << 10 // as sdk/dona/ingress has it
	ConsumersPerService = 500     // an audit entry names them all

	Checkers     = 1_000 // outside the hosts and inside
	CheckWindow  = 256   // tasks that a checker holds at once
	Probes       = 256   // that a checker announces
	Observations = 1_000 // of one report

	Workers            = 1_000  // of the egress plane
	RuntimeCounters    = 4_096  // proxies that a worker owns, and counters of one report
	OutcomesPerBatch   = 512    // or as many as counters, if that is less
	OutcomeBatches     = 16     // of one call
	ProxiesPerUpstream = 10_000 // those that expired included, until they are forgotten
	ExtractedAtOnce    = 100
	IdempotencyKeyLen  = 128
	PoolConfigLen      = 1 << 20
	ProxyListLen       = 1 << 20
	ProxyPage          = 1_000
	SecretRefLen       = 256

	Tokens    = 10_000 // that have not expired
	TokenUses = 10_000 // of one
	TokenTTL  = 30 * 24 * time.Hour
)

// Service checks a service name: [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
func Service(s string) error {
	ok := len(s) >= 1 && len(s) <= ServiceNameLen && s[0] != '-' && s[len(s)-1] != '-'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return fmt.Errorf("is %s: allowed are 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit", QuoteOrEmpty(s))
	}
	return nil
}

// Name checks a variant, region, zone, flag, routing or upstream:
// [A-Za-z0-9][A-Za-z0-9._-]{0,127}
func Name(s string) error { return name(s, "") }

// OptionalName is Name, or empty.
func OptionalName(s string) error {
	if s == "" {
		return nil
	}
	return Name(s)
}

// ID checks an endpoint, instance, client or reporter id:
// [A-Za-z0-9][A-Za-z0-9._:-]{0,127}
func ID(s string) error { return name(s, ":") }

func name(s, also string) error {
	ok := len(s) >= 1 && len(s) <= NameLen && alnum(s[0])
	for i := 1; ok && i < len(s); i++ {
		c := s[i]
		ok = alnum(c) || c == '.' || c == '_' || c == '-' || strings.IndexByte(also, c) >= 0
	}
	if !ok {
		return fmt.Errorf("is %s: allowed are 1 to 128 of A-Z, a-z, 0-9 and ._%s-, beginning with a letter or digit", QuoteOrEmpty(s), also)
	}
	return nil
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Version checks an artifact's version: [A-Za-z0-9][A-Za-z0-9._+-]{0,127}
func Version(s string) error { return name(s, "+") }

// Digest checks sha256: and 64 hex digits.
func Digest(s string) error {
	hex, ok := strings.CutPrefix(s, "sha256:")
	ok = ok && len(hex) == 64
	for i := 0; ok && i < len(hex); i++ {
		c := hex[i]
		ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	}
	if !ok {
		return fmt.Errorf("is %s: allowed is sha256: and 64 hex digits", QuoteOrEmpty(s))
	}
	return nil
}

// Label checks one label.
func Label(key, value string) error {
	if key == "" || len(key) > LabelKeyLen {
		return fmt.Errorf("has a key of %d bytes: allowed are 1 to %d", len(key), LabelKeyLen)
	}
	if err := Text(key, LabelKeyLen); err != nil {
		return err
	}
	return Text(value, LabelValueLen)
}

// Address checks host:port, the host a DNS name or an IP address of at most 253
// bytes, the port 1 to 65535.
func Address(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("is %s: allowed is host:port", QuoteOrEmpty(s))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
		return fmt.Errorf("has port %s: allowed are 1 to 65535", Quote(port))
	}
	ok := host != "" && len(host) <= HostLen
	if ok && net.ParseIP(host) == nil {
		for i := 0; ok && i < len(host); i++ {
			ok = alnum(host[i]) || host[i] == '.' || host[i] == '-' || host[i] == '_'
		}
		ok = ok && alnum(host[0])
	}
	if !ok {
		return fmt.Errorf("has host %s: allowed are an IP address or a DNS name of at most %d bytes", QuoteOrEmpty(host), HostLen)
	}
	return nil
}

// Text checks text for people: valid UTF-8, no control characters, at most max
// bytes.
func Text(s string, max int) error {
	if len(s) > max {
		return fmt.Errorf("has %d bytes: allowed are at most %d", len(s), max)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("is not valid UTF-8")
	}
	for _, r := range s {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("has the control character %U: not allowed", r)
		}
	}
	return nil
}

// Quote quotes input for an error message: escaped, and never more than 64
// bytes of it.
func Quote(s string) string { return quote(s, 48) }

// Brief is Quote for an error message that quotes two things: the two together are
// never more than 64 bytes.
func Brief(s string) string { return quote(s, 32) }

func quote(s string, most int) string {
	if len(s) <= most {
		return strconv.QuoteToASCII(s)
	}
	cut := s[:most]
	for len(cut) > 0 && !utf8.RuneStart(s[len(cut)]) {
		cut = cut[:len(cut)-1]
	}
	return strconv.QuoteToASCII(cut) + "…"
}

// QuoteOrEmpty is Quote, and the word empty for what is.
func QuoteOrEmpty(s string) string {
	if s == "" {
		return "empty"
	}
	return Quote(s)
}
