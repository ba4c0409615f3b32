package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

const maxFile = 1 << 20 // bytes

// file is what the file says.
type file struct {
	mode    string // of TLS to the control plane
	tls     Files
	listen  string
	anybody bool
	clients []clients.Client
	limits  forward.Limits
	drain   time.Duration
	allow   []target.Class
	roots   string
}

// others are keys at the top that other programs read; one file may serve several.
var others = []string{"store", "audit", "identity", "plugins", "http"}

// othersOfControlPlane are those below controlPlane.
var othersOfControlPlane = []string{"listen", "checkerTLS", "maxMessageBytes", "maxConcurrentStreams", "maxStreamDuration", "maxCheckClaim", "keepalive", "maxRuntimeCounters"}

// readFile reads a file, none when it has no name. The error has a line for each thing that
// is wrong: file:line:col: key: reason.
func readFile(name string) (*file, error) {
	f := &file{mode: "mtls"}
	p := &parser{name: name}
	if name != "" {
		root, err := load(name)
		if err != nil {
			return nil, err
		}
		if root != nil {
			p.mapping(root, "", f.top(p), others)
		}
	}
	if len(p.wrong) == 0 && f.mode == "mtls" {
		if f.tls.Cert == "" || f.tls.Key == "" || f.tls.CA == "" {
			return nil, errors.New("controlPlane.gatewayTLS: cert, key and ca have to be set in the file that -config names; for a control plane on this machine without identities, controlPlane.tls.mode may be disabled")
		}
		if err := f.tls.Check(); err != nil {
			return nil, err
		}
	}
	return f, errors.Join(p.wrong...)
}

func load(name string) (*yaml.Node, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// reader reads one value.
type reader func(n *yaml.Node, key string)

type parser struct {
	name  string
	wrong []error
}

func (p *parser) refuse(n *yaml.Node, key, format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Errorf("%s:%d:%d: %s: %s", p.name, n.Line, n.Column, key, fmt.Sprintf(format, args...)))
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// mapping reads a mapping whose keys are all known and there once. Those of others are
// left alone.
func (p *parser) mapping(n *yaml.Node, path string, known map[string]reader, others []string) {
	if n.Kind != yaml.MappingNode {
		p.refuse(n, path, "it is no mapping")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := join(path, k.Value)
		if seen[k.Value] {
			p.refuse(k, key, "the key is there twice")
			continue
		}
		seen[k.Value] = true
		if read, ok := known[k.Value]; ok {
			read(v, key)
			continue
		}
		if !slices.Contains(others, k.Value) {
			p.refuse(k, key, "unknown key (allowed: %s)", strings.Join(names(known), ", "))
		}
	}
}

func names(known map[string]reader) []string {
	out := make([]string, 0, len(known))
	for k := range known {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (f *file) top(p *parser) map[string]reader {
	return map[string]reader{
		"controlPlane": func(n *yaml.Node, key string) {
			p.mapping(n, key, map[string]reader{
				"trustDomain": p.text(new(string)),
				"tls": func(n *yaml.Node, key string) {
					p.mapping(n, key, map[string]reader{"mode": p.oneOf(&f.mode, "mtls", "disabled")}, []string{"cert", "key", "ca"})
				},
				"gatewayTLS": func(n *yaml.Node, key string) {
					p.mapping(n, key, map[string]reader{"cert": p.path(&f.tls.Cert), "key": p.path(&f.tls.Key), "ca": p.path(&f.tls.CA)}, nil)
				},
			}, othersOfControlPlane)
		},
		"gateway": func(n *yaml.Node, key string) {
			p.mapping(n, key, map[string]reader{
				"listen":  p.text(&f.listen),
				"anybody": p.boolean(&f.anybody),
				"upstreams": func(n *yaml.Node, key string) {
					p.mapping(n, key, map[string]reader{"ca": p.path(&f.roots), "allow": func(n *yaml.Node, key string) { f.readClasses(p, n, key) }}, nil)
				},
				"clients": func(n *yaml.Node, key string) { f.readClients(p, n, key) },
				"limits":  func(n *yaml.Node, key string) { p.mapping(n, key, f.limitReaders(p), nil) },
			}, nil)
		},
	}
}

func (f *file) readClients(p *parser, n *yaml.Node, key string) {
	if n.Kind != yaml.SequenceNode {
		p.refuse(n, key, "it is no list")
		return
	}
	seen := map[string]bool{}
	for i, item := range n.Content {
		var c clients.Client
		at := fmt.Sprintf("%s[%d]", key, i)
		before := len(p.wrong)
		p.mapping(item, at, map[string]reader{"name": p.text(&c.Name), "passwordFile": p.path(&c.PasswordFile)}, nil)
		switch {
		case len(p.wrong) > before:
		case c.Name == "" || strings.ContainsAny(c.Name, ":\x00\r\n") || len(c.Name) > 128:
			p.refuse(item, at+".name", "it is %.40q (allowed: 1 to 128 bytes without a colon)", c.Name)
		case seen[c.Name]:
			p.refuse(item, at+".name", "client %s is there twice", c.Name)
		case c.PasswordFile == "":
			p.refuse(item, at+".passwordFile", "it is missing")
		}
		seen[c.Name] = true
		f.clients = append(f.clients, c)
	}
}

// classes are those that an upstream proxy's address has only where that is allowed in
// words.
var classes = []target.Class{target.Loopback, target.LinkLocal, target.Metadata, target.Multicast, target.Reserved}

func (f *file) readClasses(p *parser, n *yaml.Node, key string) {
	if n.Kind != yaml.SequenceNode {
		p.refuse(n, key, "it is no list")
		return
	}
	for i, item := range n.Content {
		at := slices.IndexFunc(classes, func(c target.Class) bool { return c.String() == item.Value })
		if at < 0 {
			p.refuse(item, fmt.Sprintf("%s[%d]", key, i), "it is %.40q (allowed: loopback, link-local, metadata, multicast, reserved)", item.Value)
			continue
		}
		f.allow = append(f.allow, classes[at])
	}
}

func (f *file) limitReaders(p *parser) map[string]reader {
	l := &f.limits
	return map[string]reader{
		"headers": p.duration(&l.Headers), "idle": p.duration(&l.Idle), "tunnel": p.duration(&l.Total), "halfClose": p.duration(&l.HalfClose),
		"resolve": p.duration(&l.Resolve), "continue": p.duration(&l.Continue), "drain": p.duration(&f.drain), "idleUpstream": p.duration(&l.IdleUpstream),
		"connections": p.number(&l.Connections), "waiting": p.number(&l.Waiting), "idlePerProxy": p.number(&l.IdlePerProxy),
	}
}

func (p *parser) scalar(n *yaml.Node, key, what string) bool {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return true
	}
	p.refuse(n, key, "it is no %s", what)
	return false
}

func (p *parser) text(to *string) reader {
	return func(n *yaml.Node, key string) {
		if p.scalar(n, key, "text") {
			*to = n.Value
		}
	}
}

// path reads the name of a file, which is relative to this file's folder.
func (p *parser) path(to *string) reader {
	return func(n *yaml.Node, key string) {
		if !p.scalar(n, key, "file's name") {
			return
		}
		if *to = n.Value; n.Value != "" && !filepath.IsAbs(n.Value) {
			*to = filepath.Join(filepath.Dir(p.name), n.Value)
		}
	}
}

func (p *parser) oneOf(to *string, allowed ...string) reader {
	return func(n *yaml.Node, key string) {
		if !p.scalar(n, key, "text") {
			return
		}
		if !slices.Contains(allowed, n.Value) {
			p.refuse(n, key, "it is %.40q (allowed: %s)", n.Value, strings.Join(allowed, ", "))
			return
		}
		*to = n.Value
	}
}

func (p *parser) boolean(to *bool) reader {
	return func(n *yaml.Node, key string) {
		switch {
		case n.Kind == yaml.ScalarNode && n.Value == "true":
			*to = true
		case n.Kind == yaml.ScalarNode && n.Value == "false":
			*to = false
		default:
			p.refuse(n, key, "it is %.40q (allowed: true, false)", n.Value)
		}
	}
}

func (p *parser) duration(to *time.Duration) reader {
	return func(n *yaml.Node, key string) {
		d, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || d <= 0 || d > 30*24*time.Hour {
			p.refuse(n, key, "it is %.40q (allowed: a time from 1ns to 720h, as in 30s)", n.Value)
			return
		}
		*to = d
	}
}

func (p *parser) number(to *int) reader {
	return func(n *yaml.Node, key string) {
		v, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < 1 || v > 1<<24 {
			p.refuse(n, key, "it is %.40q (allowed: 1 to %d)", n.Value, 1<<24)
			return
		}
		*to = v
	}
}
