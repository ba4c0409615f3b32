// Package settings reads what a proxy checker is started with: its command line, the
// variables of its environment and its file. It says what is wrong with them, and
// nothing is started from settings that do not hold.
package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/plugins"
)

// Settings are checked settings.
type Settings struct {
	Version bool // print it and end

	Addresses   []string // of the control plane
	CheckerID   string
	InstanceID  string
	MaxInFlight int
	Levels      []controlplanev1.CheckLevel

	AdminListen string // empty = nowhere
	PluginDir   string // empty = built-in probes only
	Plugins     map[plugins.ID]plugins.PluginConfig
	DrainLimit  time.Duration
	LogLevel    string

	TLS *Files // nil = plaintext, to a control plane on loopback
}

// Defaults.
const (
	DefaultMaxInFlight = 64
	DefaultLevels      = "basic,egress,target"
	defaultDrain       = 15 * time.Second
)

// Usage is an error of the command line.
type Usage struct{ Err error }

func (u *Usage) Error() string { return u.Err.Error() }

// Unwrap returns the reason.
func (u *Usage) Unwrap() error { return u.Err }

func usage(format string, args ...any) error { return &Usage{fmt.Errorf(format, args...)} }

// option is a flag and its variable, which may be none.
type option struct {
	flag, variable, help string
	value                *string
}

type given struct {
	Settings
	address, inFlight, levels, file string
}

func (g *given) options() []option {
	return []option{
		{"control-plane", "PROXY_POOL_CONTROL_PLANE_ADDRESS", "address of the control plane, or several separated by commas", &g.address},
		{"checker-id", "PROXY_POOL_CHECKER_ID", "logical checker; one process has it at a time", &g.CheckerID},
		{"instance-id", "PROXY_POOL_CHECKER_INSTANCE_ID", "this process", &g.InstanceID},
		{"max-in-flight", "PROXY_POOL_CHECKER_MAX_IN_FLIGHT", fmt.Sprintf("checks at once, 1 to %d (%d)", limits.CheckWindow, DefaultMaxInFlight), &g.inFlight},
		{"levels", "", "what to check, of basic,egress,target (all)", &g.levels},
		{"config", "PROXY_POOL_CONFIG", "file with settings in YAML", &g.file},
		{"admin-listen", "PROXY_POOL_ADMIN_LISTEN", "address of /healthz, /readyz and /metrics (none)", &g.AdminListen},
		{"plugin-dir", "PROXY_POOL_CHECKER_PLUGIN_DIR", "directory of probes that are files (none)", &g.PluginDir},
		{"log-level", "PROXY_POOL_LOG_LEVEL", "debug, info, warn or error (info)", &g.LogLevel},
	}
}

const identityVariable = "PROXY_POOL_AUTO_IDENTITY"

// Read reads settings. A flag wins over its variable, and that over the file. The error
// is flag.ErrHelp after help was printed, a *Usage, or says what is wrong with the file or
// the settings together.
func Read(args, environ []string, stdout io.Writer) (*Settings, error) {
	var g given
	flags := flag.NewFlagSet("proxy-checker", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&g.Version, "version", false, "")
	for _, o := range g.options() {
		flags.StringVar(o.value, o.flag, lookup(environ, o.variable), "")
	}
	var wrong error
	auto := false
	switch v := lookup(environ, identityVariable); v {
	case "true":
		auto = true
	case "", "false":
	default:
		wrong = usage("%s is %.40q: allowed are true and false", identityVariable, v)
	}
	flags.BoolVar(&auto, "auto-identity", auto, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		g.help(stdout)
		return nil, err
	case err != nil:
		return nil, usage("%w; proxy-checker -help lists the flags", err)
	case flags.NArg() > 0:
		return nil, usage("unexpected argument %.80q; proxy-checker -help lists the flags", flags.Arg(0))
	case g.Version:
		return &g.Settings, nil
	case wrong != nil:
		return nil, wrong
	}
	if err := g.complete(auto); err != nil {
		return nil, err
	}
	return &g.Settings, nil
}

// complete reads the file, derives what is to be derived, and checks it all.
func (g *given) complete(auto bool) error {
	if err := g.numbers(); err != nil {
		return err
	}
	needed := g.options()[:3]
	if auto {
		needed = needed[:1] // the certificate has the rest
	}
	for _, o := range needed {
		if *o.value == "" {
			return usage("-%s is missing: give it, or %s in the environment", o.flag, o.variable)
		}
	}
	f, err := readFile(g.file)
	if err != nil {
		return err
	}
	g.Plugins, g.DrainLimit = f.plugins, f.drain
	if g.PluginDir == "" {
		g.PluginDir = f.dir
	}
	if !f.plain {
		g.TLS = &f.tls
	}
	if auto {
		if f.plain {
			return usage("-auto-identity takes the checker's id from its certificate, and controlPlane.tls.mode is disabled: set it to mtls, or give -checker-id and -instance-id")
		}
		id, err := f.tls.CheckerID()
		if err != nil {
			return usage("-auto-identity: %w", err)
		}
		if g.CheckerID != "" && g.CheckerID != id {
			return usage("-auto-identity finds checker %s in the certificate, and -checker-id is %.80q: leave one of them out", id, g.CheckerID)
		}
		g.CheckerID = id
		if g.InstanceID == "" {
			g.InstanceID = id
		}
	}
	if err := limits.Name(g.CheckerID); err != nil {
		return usage("-checker-id %w", err)
	}
	if err := limits.ID(g.InstanceID); err != nil {
		return usage("-instance-id %w", err)
	}
	return g.check(f.plain)
}

// levelNames are the levels by the words of the flag.
var levelNames = map[string]controlplanev1.CheckLevel{
	"basic":  controlplanev1.CheckLevel_CHECK_LEVEL_BASIC,
	"egress": controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS,
	"target": controlplanev1.CheckLevel_CHECK_LEVEL_TARGET,
}

// numbers reads the flags that are not text.
func (g *given) numbers() error {
	g.MaxInFlight = DefaultMaxInFlight
	if g.inFlight != "" {
		n, err := strconv.Atoi(g.inFlight)
		if err != nil || n < 1 || n > limits.CheckWindow {
			return usage("-max-in-flight is %.40q: allowed are 1 to %d", g.inFlight, limits.CheckWindow)
		}
		g.MaxInFlight = n
	}
	if g.levels == "" {
		g.levels = DefaultLevels
	}
	for word := range strings.SplitSeq(g.levels, ",") {
		level, ok := levelNames[strings.TrimSpace(word)]
		if !ok {
			return usage("-levels has %.40q: allowed are basic, egress and target, separated by commas", word)
		}
		if slices.Contains(g.Levels, level) {
			return usage("-levels has %s twice", strings.TrimSpace(word))
		}
		g.Levels = append(g.Levels, level)
	}
	return nil
}

// check looks at settings that do not go together.
func (g *given) check(plain bool) error {
	var wrong []error
	for address := range strings.SplitSeq(g.address, ",") {
		address = strings.TrimSpace(address)
		host, _, err := net.SplitHostPort(address)
		switch {
		case err != nil:
			wrong = append(wrong, usage("-control-plane is %.80q: allowed is host:port, or several separated by commas", address))
		case plain && !isLoopback(host):
			wrong = append(wrong, fmt.Errorf("control plane %.80s is not on loopback, and controlPlane.tls.mode is disabled: credentials of proxies would cross a network in the clear; set it to mtls", address))
		}
		g.Addresses = append(g.Addresses, address)
	}
	if g.AdminListen != "" {
		if _, _, err := net.SplitHostPort(g.AdminListen); err != nil {
			wrong = append(wrong, usage("-admin-listen is %.80q: allowed is host:port", g.AdminListen))
		}
	}
	switch g.LogLevel {
	case "":
		g.LogLevel = "info"
	case "debug", "info", "warn", "error":
	default:
		wrong = append(wrong, usage("-log-level is %.40q: allowed are debug, info, warn and error", g.LogLevel))
	}
	return errors.Join(wrong...)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func lookup(environ []string, name string) string {
	if name == "" {
		return ""
	}
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

func (g *given) help(w io.Writer) {
	_, _ = fmt.Fprint(w, "proxy-checker checks upstream proxies, and endpoints of services, for a control plane.\n\n")
	for _, o := range g.options() {
		variable := ""
		if o.variable != "" {
			variable = " [" + o.variable + "]"
		}
		_, _ = fmt.Fprintf(w, "  -%-15s %s%s\n", o.flag, o.help, variable)
	}
	_, _ = fmt.Fprintf(w, "  -%-15s %s [%s]\n", "auto-identity", "take checker and instance from the certificate; with mtls only", identityVariable)
	_, _ = fmt.Fprintf(w, "  -%-15s %s\n", "version", "print the version")
}
