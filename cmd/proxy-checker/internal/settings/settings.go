// Package settings reads what a proxy checker is started with: its command line, the
// variables of its environment and its file. It says what is wrong with them, and
// nothing is started from settings that do not hold.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/plugins"
)

// Settings are checked settings.
type Settings struct {
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

	TLS *startup.ControlPlane // nil = plaintext, to a control plane on loopback
}

// Defaults.
const (
	DefaultMaxInFlight = 64
	DefaultLevels      = "basic,egress,target"
	defaultDrain       = 15 * time.Second
)

type given struct {
	Settings
	address, inFlight, levels, file string
}

func (g *given) command() startup.Command {
	return startup.Command{
		Name:     "proxy-checker",
		About:    "checks upstream proxies, and endpoints of services, for a control plane.",
		Identity: "checker and instance",
		Options: []startup.Option{
			{Flag: "control-plane", Variable: "PROXY_POOL_CONTROL_PLANE_ADDRESS", Help: "address of the control plane, or several separated by commas", Value: &g.address},
			{Flag: "checker-id", Variable: "PROXY_POOL_CHECKER_ID", Help: "logical checker; one process has it at a time", Value: &g.CheckerID},
			{Flag: "instance-id", Variable: "PROXY_POOL_CHECKER_INSTANCE_ID", Help: "this process", Value: &g.InstanceID},
			{Flag: "max-in-flight", Variable: "PROXY_POOL_CHECKER_MAX_IN_FLIGHT", Help: fmt.Sprintf("checks at once, 1 to %d (%d)", limits.CheckWindow, DefaultMaxInFlight), Value: &g.inFlight},
			{Flag: "levels", Help: "what to check, of basic,egress,target (all)", Value: &g.levels},
			{Flag: "config", Variable: "PROXY_POOL_CONFIG", Help: "file with settings in YAML", Value: &g.file},
			{Flag: "admin-listen", Variable: "PROXY_POOL_ADMIN_LISTEN", Help: "address of /healthz, /readyz and /metrics (none)", Value: &g.AdminListen},
			{Flag: "plugin-dir", Variable: "PROXY_POOL_CHECKER_PLUGIN_DIR", Help: "directory of probes that are files (none)", Value: &g.PluginDir},
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
	if err := g.numbers(); err != nil {
		return err
	}
	needed := g.command().Options[:3]
	if auto {
		needed = needed[:1] // the certificate has the rest
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
	g.Plugins, g.DrainLimit, g.PluginDir = f.plugins, f.drain, cmp.Or(g.PluginDir, f.dir)
	if !f.control.Plain {
		g.TLS = &f.control
	}
	if auto {
		if err := f.control.Identify(&g.CheckerID, &g.InstanceID); err != nil {
			return err
		}
	}
	if err := limits.Name(g.CheckerID); err != nil {
		return startup.Usagef("-checker-id %w", err)
	}
	if err := limits.ID(g.InstanceID); err != nil {
		return startup.Usagef("-instance-id %w", err)
	}
	var address error
	g.Addresses, address = f.control.Addresses(g.address)
	return errors.Join(address, startup.Listen("admin-listen", g.AdminListen), startup.LogLevel(&g.LogLevel))
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
			return startup.Usagef("-max-in-flight is %.40q: allowed are 1 to %d", g.inFlight, limits.CheckWindow)
		}
		g.MaxInFlight = n
	}
	if g.levels == "" {
		g.levels = DefaultLevels
	}
	for word := range strings.SplitSeq(g.levels, ",") {
		level, ok := levelNames[strings.TrimSpace(word)]
		if !ok {
			return startup.Usagef("-levels has %.40q: allowed are basic, egress and target, separated by commas", word)
		}
		if slices.Contains(g.Levels, level) {
			return startup.Usagef("-levels has %s twice", strings.TrimSpace(word))
		}
		g.Levels = append(g.Levels, level)
	}
	return nil
}
