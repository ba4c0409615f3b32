// Package settings reads what a proxy gateway is started with: its command line, the
// variables of its environment and its file. It says what is wrong with them, all at
// once, and nothing is started from settings that do not hold.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Settings are checked settings.
type Settings struct {
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

	TLS *startup.ControlPlane // nil = plaintext, to a control plane on loopback
}

// Defaults that are not those of package forward.
const (
	DefaultListen = "127.0.0.1:3128"
	defaultDrain  = 30 * time.Second
)

type given struct {
	Settings
	file string
}

func (g *given) command() startup.Command {
	return startup.Command{
		Name:     "proxy-gateway",
		About:    "leads clients' requests through the upstream proxies that a control plane assigns to it.",
		Identity: "worker and instance",
		Options: []startup.Option{
			{Flag: "control-plane", Variable: "PROXY_POOL_CONTROL_PLANE_ADDRESS", Help: "address of the control plane, or several separated by commas", Value: &g.ControlPlane},
			{Flag: "cluster-id", Variable: "PROXY_POOL_CLUSTER_ID", Help: "cluster that snapshots have to be of", Value: &g.ClusterID},
			{Flag: "worker-id", Variable: "PROXY_POOL_WORKER_ID", Help: "logical worker; one process has it at a time", Value: &g.WorkerID},
			{Flag: "instance-id", Variable: "PROXY_POOL_INSTANCE_ID", Help: "this process", Value: &g.InstanceID},
			{Flag: "zone", Variable: "PROXY_POOL_ZONE", Help: "availability zone of this process", Value: &g.Zone},
			{Flag: "config", Variable: "PROXY_POOL_CONFIG", Help: "file with settings in YAML", Value: &g.file},
			{Flag: "listen", Variable: "PROXY_POOL_LISTEN", Help: "address for clients (" + DefaultListen + ")", Value: &g.Listen},
			{Flag: "admin-listen", Variable: "PROXY_POOL_ADMIN_LISTEN", Help: "address of /healthz, /readyz and /metrics (none)", Value: &g.AdminListen},
			{Flag: "log-level", Variable: "PROXY_POOL_LOG_LEVEL", Help: "debug, info, warn or error (info)", Value: &g.LogLevel},
		},
	}
}

// Command is the command line of this program, as startup.Command.Refuse needs it.
func Command() startup.Command { return new(given).command() }

// Read reads settings. A flag wins over its variable, and that over the file. Errors are
// those of startup.Command.Parse, or say what is wrong with the file or the settings
// together.
func Read(args, environ []string, stdout io.Writer) (*Settings, error) {
	var g given
	auto, err := g.command().Parse(args, environ, stdout)
	if err != nil {
		return nil, err
	}
	if err := g.complete(auto); err != nil {
		return nil, err
	}
	return &g.Settings, nil
}

// complete reads the file, derives what is to be derived, and checks it all.
func (g *given) complete(auto bool) error {
	needed := g.command().Options[:4]
	if auto {
		needed = needed[:2] // the certificate has the rest
	}
	for _, o := range needed {
		if err := o.Given(); err != nil {
			return err
		}
	}
	f, err := readFile(g.file)
	if err != nil {
		return err
	}
	g.Listen = cmp.Or(g.Listen, f.listen, DefaultListen)
	g.Clients, g.Limits, g.AllowUpstream, g.UpstreamCA, g.DrainLimit = f.clients, f.limits, f.allow, f.roots, f.drain
	if !f.control.Plain {
		g.TLS = &f.control
	}
	if auto {
		if err := f.control.Identify(&g.WorkerID, &g.InstanceID); err != nil {
			return err
		}
	}
	if err := g.names(); err != nil {
		return err
	}
	return g.check(f)
}

// names looks at who this gateway says it is.
func (g *given) names() error {
	zone := error(nil)
	if g.Zone != "" {
		zone = limits.Name(g.Zone)
	}
	for _, n := range []struct {
		flag string
		err  error
	}{{"cluster-id", limits.Name(g.ClusterID)}, {"worker-id", limits.Name(g.WorkerID)}, {"instance-id", limits.ID(g.InstanceID)}, {"zone", zone}} {
		if n.err != nil {
			return startup.Usagef("-%s %w", n.flag, n.err)
		}
	}
	return nil
}

// check looks at settings that do not go together.
func (g *given) check(f *file) error {
	_, address := f.control.Addresses(g.ControlPlane)
	var open error
	if host, _, err := net.SplitHostPort(g.Listen); err == nil && !startup.Loopback(host) && len(g.Clients) == 0 && !f.anybody {
		open = fmt.Errorf("-listen is %s, which others reach, and gateway.clients has nobody: list clients, or set gateway.anybody to true if whoever reaches it may use it", g.Listen)
	}
	var same error
	if _, port, _ := net.SplitHostPort(g.Listen); g.Listen == g.AdminListen && port != "0" {
		same = startup.Usagef("-admin-listen is %s, as -listen is: clients and /metrics need an address each", g.Listen)
	}
	return errors.Join(address, startup.Listen("listen", g.Listen), startup.Listen("admin-listen", g.AdminListen), same, open, startup.LogLevel(&g.LogLevel))
}
