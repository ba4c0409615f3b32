package settings

import (
	"strings"
	"time"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// Bounds of the file.
const (
	maxClients = 10_000
	maxTime    = 30 * 24 * time.Hour
	maxNumber  = 1 << 24
)

// file is what the file says.
type file struct {
	control startup.ControlPlane
	listen  string
	anybody bool
	clients []clients.Client
	limits  forward.Limits
	drain   time.Duration
	allow   []target.Class
	roots   string
}

// readFile reads a file, none when it has no name.
func readFile(name string) (*file, error) {
	f := &file{control: startup.ControlPlane{Key: "gatewayTLS", Kind: "worker"}, drain: defaultDrain}
	err := startup.ReadFile(name, strict.Fields{
		"controlPlane": f.control.Fields(name),
		"gateway": func(v strict.Value) {
			v.Fields(strict.Fields{
				"listen":  func(v strict.Value) { v.String(&f.listen, nil) },
				"anybody": func(v strict.Value) { v.Bool(&f.anybody) },
				"upstreams": func(v strict.Value) {
					v.Fields(strict.Fields{"ca": startup.Path(name, &f.roots), "allow": f.readClasses})
				},
				"clients": func(v strict.Value) { f.readClients(name, v) },
				"limits":  f.readLimits,
			})
		},
		"store": startup.Other, "audit": startup.Other, "identity": startup.Other, "plugins": startup.Other, "http": startup.Other, "checker": startup.Other,
	})
	if err != nil {
		return nil, err
	}
	return f, f.control.Check()
}

func (f *file) readClients(name string, v strict.Value) {
	seen := map[string]bool{}
	v.Items(maxClients, func(_ int, item strict.Value) {
		var c clients.Client
		item.Fields(strict.Fields{
			"name": func(v strict.Value) {
				v.String(&c.Name, nil)
				switch {
				case c.Name == "" || strings.ContainsAny(c.Name, ":\x00\r\n") || len(c.Name) > 128:
					v.Refuse("is %s (allowed: 1 to 128 bytes without a colon)", limits.Quote(c.Name))
				case seen[c.Name]:
					v.Refuse("is %s, which is there twice (allowed: once)", limits.Quote(c.Name))
				}
				seen[c.Name] = true
			},
			"passwordFile": startup.Path(name, &c.PasswordFile),
		}, "name", "passwordFile")
		f.clients = append(f.clients, c)
	})
}

// classes are those that an upstream proxy's address has only where that is allowed in
// words.
var classes = []target.Class{target.Loopback, target.LinkLocal, target.Metadata, target.Multicast, target.Reserved}

func (f *file) readClasses(v strict.Value) {
	words := make([]string, len(classes))
	for i, c := range classes {
		words[i] = c.String()
	}
	v.Items(len(classes), func(_ int, item strict.Value) {
		if i := item.Enum(words...); i >= 0 {
			f.allow = append(f.allow, classes[i])
		}
	})
}

func (f *file) readLimits(v strict.Value) {
	duration := func(to *time.Duration) func(strict.Value) {
		return func(v strict.Value) { v.Duration(to, time.Nanosecond, maxTime) }
	}
	number := func(to *int) func(strict.Value) {
		return func(v strict.Value) {
			var n uint32
			v.Uint(&n, 1, maxNumber)
			*to = int(n)
		}
	}
	l := &f.limits
	v.Fields(strict.Fields{
		"headers": duration(&l.Headers), "idle": duration(&l.Idle), "tunnel": duration(&l.Total), "halfClose": duration(&l.HalfClose),
		"resolve": duration(&l.Resolve), "continue": duration(&l.Continue), "drain": duration(&f.drain), "idleUpstream": duration(&l.IdleUpstream),
		"connections": number(&l.Connections), "waiting": number(&l.Waiting), "idlePerProxy": number(&l.IdlePerProxy),
	})
}
