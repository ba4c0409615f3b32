// Package settings reads what a proxy gateway is started with: its command line, the
// variables of its environment and its file. It says what is wrong with them, all at
// once, and nothing is started from settings that do not hold.
package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Settings are checked settings.
type Settings struct {
	Version bool // print it and end

	ControlPlane string // host:port, or several separated by commas
	ClusterID    string
	WorkerID     string
	InstanceID   string
	Zone         string

	Listen      string
	AdminListen string // empty = nowhere
	Clients     []clients.Client
	Limits      forward.Limits
	DrainLimit  time.Duration
	LogLevel    string

	AllowUpstream []target.Class // of addresses that proxies have only where it is allowed
	UpstreamCA    string         // file of what HTTPS proxies are verified with; empty = the system's

	TLS *Files // nil = plaintext, to a control plane on loopback
}

// Defaults that are not those of package forward.
const (
	DefaultListen = "127.0.0.1:3128"
	defaultDrain  = 30 * time.Second
)

// Usage is an error of the command line.
type Usage struct{ Err error }

func (u *Usage) Error() string { return u.Err.Error() }

// Unwrap returns the reason.
func (u *Usage) Unwrap() error { return u.Err }

func usage(format string, args ...any) error { return &Usage{fmt.Errorf(format, args...)} }

// option is a flag and its variable.
type option struct {
	flag, variable, help string
	value                *string
}

type given struct {
	Settings
	file string
}

func (g *given) options() []option {
	return []option{
		{"control-plane", "PROXY_POOL_CONTROL_PLANE_ADDRESS", "address of the control plane, or several separated by commas", &g.ControlPlane},
		{"cluster-id", "PROXY_POOL_CLUSTER_ID", "cluster that snapshots have to be of", &g.ClusterID},
		{"worker-id", "PROXY_POOL_WORKER_ID", "logical worker; one process has it at a time", &g.WorkerID},
		{"instance-id", "PROXY_POOL_INSTANCE_ID", "this process", &g.InstanceID},
		{"zone", "PROXY_POOL_ZONE", "availability zone of this process", &g.Zone},
		{"config", "PROXY_POOL_CONFIG", "file with settings in YAML", &g.file},
		{"listen", "PROXY_POOL_LISTEN", "address for clients (" + DefaultListen + ")", &g.Listen},
		{"admin-listen", "PROXY_POOL_ADMIN_LISTEN", "address of /healthz, /readyz and /metrics (none)", &g.AdminListen},
		{"log-level", "PROXY_POOL_LOG_LEVEL", "debug, info, warn or error (info)", &g.LogLevel},
	}
}

const identityVariable = "PROXY_POOL_AUTO_IDENTITY"

// Read reads settings. A flag wins over its variable, and that over the file. The error
// is flag.ErrHelp after help was printed, a *Usage, or says what is wrong with the file or
// the settings together.
func Read(args, environ []string, stdout io.Writer) (*Settings, error) {
	var g given
	flags := flag.NewFlagSet("proxy-gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&g.Version, "version", false, "")
	for _, o := range g.options() {
		flags.StringVar(o.value, o.flag, lookup(environ, o.variable), "")
	}
	var wrong error
	identity := false
	switch v := lookup(environ, identityVariable); v {
	case "true":
		identity = true
	case "", "false":
	default:
		wrong = usage("%s is %.40q: allowed are true and false", identityVariable, v)
	}
	flags.BoolVar(&identity, "auto-identity", identity, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		g.help(stdout)
		return nil, err
	case err != nil:
		return nil, usage("%w; proxy-gateway -help lists the flags", err)
	case flags.NArg() > 0:
		return nil, usage("unexpected argument %.80q; proxy-gateway -help lists the flags", flags.Arg(0))
	case g.Version:
		return &g.Settings, nil
	case wrong != nil:
		return nil, wrong
	}
	if err := g.complete(identity); err != nil {
		return nil, err
	}
	return &g.Settings, nil
}

// complete reads the file, derives what is to be derived, and checks it all.
func (g *given) complete(identity bool) error {
	g.DrainLimit = defaultDrain
	f, err := readFile(g.file)
	if err != nil {
		return err
	}
	if g.Listen == "" {
		g.Listen = f.listen
	}
	if g.Listen == "" {
		g.Listen = DefaultListen
	}
	g.Clients, g.Limits, g.AllowUpstream, g.UpstreamCA = f.clients, f.limits, f.allow, f.roots
	if f.drain > 0 {
		g.DrainLimit = f.drain
	}
	plain := f.mode == "disabled"
	if !plain {
		g.TLS = &f.tls
	}
	if identity {
		if plain {
			return usage("-auto-identity takes the worker's id from its certificate, and controlPlane.tls.mode is disabled: set it to mtls, or give -worker-id and -instance-id")
		}
		id, err := f.tls.WorkerID()
		if err != nil {
			return usage("-auto-identity: %w", err)
		}
		if g.WorkerID != "" && g.WorkerID != id {
			return usage("-auto-identity finds worker %s in the certificate, and -worker-id is %.80q: leave one of them out", id, g.WorkerID)
		}
		g.WorkerID = id
		if g.InstanceID == "" {
			g.InstanceID = id
		}
	}
	for _, o := range g.options()[:4] {
		if *o.value == "" {
			return usage("-%s is missing: give it, or %s in the environment", o.flag, o.variable)
		}
	}
	return g.check(plain, f)
}

// check looks at settings that do not go together.
func (g *given) check(plain bool, f *file) error {
	var wrong []error
	if plain {
		for _, address := range strings.Split(g.ControlPlane, ",") {
			if host, _, err := net.SplitHostPort(strings.TrimSpace(address)); err == nil && !isLoopback(host) {
				wrong = append(wrong, fmt.Errorf("control plane %.80s is not on loopback, and controlPlane.tls.mode is disabled: credentials of proxies would cross a network in the clear; set it to mtls", address))
			}
		}
	}
	for _, l := range []struct{ name, address string }{{"listen", g.Listen}, {"admin-listen", g.AdminListen}} {
		if l.address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(l.address); err != nil {
			wrong = append(wrong, fmt.Errorf("-%s is %.80q: allowed is host:port", l.name, l.address))
		}
	}
	if host, _, err := net.SplitHostPort(g.Listen); err == nil && !isLoopback(host) && len(g.Clients) == 0 && !f.anybody {
		wrong = append(wrong, fmt.Errorf("-listen is %s, which others reach, and gateway.clients has nobody: list clients, or set gateway.anybody to true if whoever reaches it may use it", g.Listen))
	}
	switch g.LogLevel {
	case "":
		g.LogLevel = "info"
	case "debug", "info", "warn", "error":
	default:
		wrong = append(wrong, fmt.Errorf("-log-level is %.40q: allowed are debug, info, warn and error", g.LogLevel))
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
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

func (g *given) help(w io.Writer) {
	_, _ = fmt.Fprint(w, "proxy-gateway leads clients' requests through the upstream proxies that a control plane assigns to it.\n\n")
	for _, o := range g.options() {
		_, _ = fmt.Fprintf(w, "  -%-15s %s [%s]\n", o.flag, o.help, o.variable)
	}
	_, _ = fmt.Fprintf(w, "  -%-15s %s [%s]\n", "auto-identity", "take worker and instance from the certificate; with mtls only", identityVariable)
	_, _ = fmt.Fprintf(w, "  -%-15s %s\n", "version", "print the version")
}
