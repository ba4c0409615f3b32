package plugins

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Options say what a Host runs and how. The zero value of a field means its
// default.
type Options struct {
	Logger      hclog.Logger // default: none
	HostVersion string       // told to plugins

	// RunDir is where the host makes its run directory: sockets and private
	// temporary files of plugins. It is created 0700, and must belong to the
	// user of the process and to nobody else. Several hosts may share one.
	// Default: dona-<uid> in the temporary directory, or in /tmp where the path
	// of that one is too long for sockets, as on macOS.
	RunDir string

	// Exe is the program that Dispatch turns into built-ins and the watchdog.
	// Default: this program, as it is running and not as the file is now.
	Exe string

	Builtins []*plugin.Plugin
	Catalog  Catalog             // finds plugins that are not built in; default: there are none
	Plugins  map[ID]PluginConfig // settings per plugin; one for an unknown plugin is refused

	// Attached are plugins that somebody else has started, such as a debugger, with
	// the socket that each listens on: see plugin.Serve. They take the place of
	// built-ins and files of their names. For development only: nothing is known of
	// what answers there.
	Attached map[ID]string

	Backoff Backoff
	Limits  Limits

	Registerer prometheus.Registerer // default: metrics are kept and shown nowhere
	// OnEvent is told what belongs into the audit log, in order, on one
	// goroutine of the host. It may take its time: plugins do not wait for it.
	OnEvent func(Event)
}

// MinAddressSpace is the least cap on a plugin's address space, in bytes: with
// less the runtime of a Go program does not start.
const MinAddressSpace = 1 << 30

// PluginConfig are the settings of one plugin.
type PluginConfig struct {
	Required       bool              // start with the host, and the host is not ready without it
	Env            map[string]string // added to its environment; values are masked in logs
	Deadline       time.Duration     // cap on one call; default: that of the kind
	MaxConcurrency int               // cap on calls in flight; default: what the plugin asks for
	AddressSpace   uint64            // cap on what it may have mapped, in bytes, at least MinAddressSpace; default: none. Linux only

	// Restricted starts it with less than the host's user may do; see package
	// restrict. The program has to run Dispatch.
	Restricted bool

	// OverrideBuiltin has the catalog's file of this name run in place of the
	// built-in. Without it the built-in runs and the file is left alone.
	OverrideBuiltin bool
}

// Backoff bounds the wait before a restart. The wait is drawn between Min and a
// ceiling that doubles with every exit of the last ten minutes, up to Max.
type Backoff struct {
	Min time.Duration // default 250 ms
	Max time.Duration // default 60 s
}

// Limits are the clocks of the supervisor. Programs leave them alone; tests of
// faults shorten them.
type Limits struct {
	Handshake     time.Duration // default 10 s
	Describe      time.Duration // default 2 s
	Configure     time.Duration // default 5 s
	FirstHealth   time.Duration // default 5 s
	DrainReload   time.Duration // default 30 s
	DrainStop     time.Duration // default 1 s, at host stop
	Kill          time.Duration // default 2 s: from asking to SIGKILL
	QuarantineAt  int           // default 5 exits
	QuarantineIn  time.Duration // default 10 min
	RestartBudget int           // default 10 restarts a minute, all plugins together
	BudgetWindow  time.Duration // default 1 min
	MissedInRow   int           // default 3 missed deadlines, then the process is replaced
}

// Deadlines of the kinds. That of a probe is the most one may have: each call
// brings its own, the timeout of its check and a second for the answer.
const (
	CompileDeadline  = 250 * time.Millisecond
	EvaluateDeadline = 5 * time.Second
	CheckDeadline    = 61 * time.Second
)

func kindDeadline(k Kind) time.Duration {
	switch k {
	case KindStrategy:
		return CompileDeadline
	case KindProbe:
		return CheckDeadline
	}
	return EvaluateDeadline
}

func or[T comparable](v *T, fallback T) {
	var zero T
	if *v == zero {
		*v = fallback
	}
}

func (o *Options) fill() {
	or(&o.Backoff.Min, 250*time.Millisecond)
	or(&o.Backoff.Max, max(60*time.Second, o.Backoff.Min))
	or(&o.Limits.Handshake, 10*time.Second)
	or(&o.Limits.Describe, 2*time.Second)
	or(&o.Limits.Configure, 5*time.Second)
	or(&o.Limits.FirstHealth, 5*time.Second)
	or(&o.Limits.DrainReload, 30*time.Second)
	or(&o.Limits.DrainStop, time.Second)
	or(&o.Limits.Kill, 2*time.Second)
	or(&o.Limits.QuarantineAt, 5)
	or(&o.Limits.QuarantineIn, 10*time.Minute)
	or(&o.Limits.RestartBudget, 10)
	or(&o.Limits.BudgetWindow, time.Minute)
	or(&o.Limits.MissedInRow, 3)
	or(&o.RunDir, defaultRunDir(os.TempDir()))
	if o.Catalog == nil {
		o.Catalog = noCatalog{}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
}

// check refuses options that could not work, before anything is started. listed
// is what the catalog has.
func (o *Options) check(listed []ID) error {
	switch {
	case o.Backoff.Min < 0 || o.Backoff.Max < o.Backoff.Min:
		return fmt.Errorf("plugins.backoff: min %v and max %v: allowed is 0 < min <= max", o.Backoff.Min, o.Backoff.Max)
	case !filepath.IsAbs(o.RunDir):
		return fmt.Errorf("plugin run directory %q: allowed is an absolute path", o.RunDir)
	}
	if n, most := len(o.RunDir), maxSocketPath-runDirOverhead; n > most {
		return fmt.Errorf("plugin run directory %q has %d bytes: allowed are at most %d, because the path of a unix socket below it may have %d; choose a shorter one",
			clip(o.RunDir, 160), n, most, maxSocketPath)
	}
	known, builtin := make(map[ID]bool), make(map[ID]bool)
	for _, p := range o.Builtins {
		id := ID{kindOf(p.Kind()), p.Name()}
		if _, ok := wireKinds[id.Kind]; !ok {
			return fmt.Errorf("built-in plugin %s: allowed kinds are %s", id, KindWords)
		}
		if known[id] {
			return fmt.Errorf("built-in plugin %s is listed twice", id)
		}
		known[id], builtin[id] = true, true
	}
	for _, id := range listed {
		known[id] = true
	}
	for _, id := range sortedIDs(o.Attached) {
		if _, ok := wireKinds[id.Kind]; !ok || !nameGrammar.MatchString(id.Name) {
			return fmt.Errorf("attached plugin %s: allowed are KIND/NAME with one of the kinds %s", id, KindWords)
		}
		if !filepath.IsAbs(o.Attached[id]) {
			return fmt.Errorf("attached plugin %s: the socket is %q: allowed is an absolute path, as the plugin prints it", id, clip(o.Attached[id], 160))
		}
		known[id] = true
	}
	_, none := o.Catalog.(noCatalog)
	for _, id := range sortedIDs(o.Plugins) {
		c := o.Plugins[id]
		if err := c.check(id, known[id]); err != nil {
			return err
		}
		switch {
		case c.OverrideBuiltin && !builtin[id]:
			return fmt.Errorf("plugins.%s.%s.override_builtin is true: there is no built-in of this name; remove the line", id.Kind, id.Name)
		case c.OverrideBuiltin && none:
			return fmt.Errorf("plugins.%s.%s.override_builtin is true: there is no plugin directory to take the file from; set plugins.dir", id.Kind, id.Name)
		}
	}
	return nil
}

func (c PluginConfig) check(id ID, known bool) error {
	switch {
	case !known:
		return fmt.Errorf("plugins.%s.%s: there is no such plugin", id.Kind, id.Name)
	case c.Deadline < 0 || c.Deadline > time.Minute:
		return fmt.Errorf("plugins.%s.%s.deadline is %v: allowed are 0 (default) to 1m", id.Kind, id.Name, c.Deadline)
	case c.AddressSpace > 0 && c.AddressSpace < MinAddressSpace:
		return fmt.Errorf("plugins.%s.%s.maxAddressSpaceMiB is %d: allowed are 0 (none) and from %d: Go's runtime needs as much", id.Kind, id.Name, c.AddressSpace>>20, MinAddressSpace>>20)
	case c.MaxConcurrency < 0 || c.MaxConcurrency > wire.MaxConcurrency:
		return fmt.Errorf("plugins.%s.%s.maxConcurrency is %d: allowed are 0 (default) to %d", id.Kind, id.Name, c.MaxConcurrency, wire.MaxConcurrency)
	}
	for k, v := range c.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("plugins.%s.%s.env: %q: a name is not empty and has no =, and neither name nor value has a NUL byte", id.Kind, id.Name, clip(k, 64))
		}
		if reservedEnv(k) {
			return fmt.Errorf("plugins.%s.%s.env: %s is set by the host: choose another name", id.Kind, id.Name, k)
		}
	}
	return nil
}

func reservedEnv(k string) bool {
	return strings.HasPrefix(k, "PLUGIN_") || strings.HasPrefix(k, wire.CookieKey)
}

func sortedIDs[V any](m map[ID]V) []ID {
	ids := make([]ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i].String() < ids[j].String() })
	return ids
}

func defaultRunDir(tmp string) string {
	name := fmt.Sprintf("dona-%d", os.Getuid())
	dir := filepath.Join(tmp, name)
	if !filepath.IsAbs(dir) || len(dir) > maxSocketPath-runDirOverhead {
		return filepath.Join("/tmp", name)
	}
	return dir
}

// ownExe is this program as it is running: on Linux that stays true when the
// file is replaced by an upgrade.
func ownExe() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
