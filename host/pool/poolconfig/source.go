package poolconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/proxylist"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/sdk/dona/ingress"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// SecretRef checks a reference to a secret of the host: file:<name> or
// env:<variable>.
func SecretRef(s string) error {
	_, err := secret.ParseRef(s)
	return err
}

// source reads where proxies come from. Each type has keys of its own.
func source(v strict.Value) (s Source, static []listed) {
	s = Source{Format: Lines, Interval: DefaultSourceEvery}
	given := map[string]strict.Value{}
	keep := func(key string, read func(strict.Value)) func(strict.Value) {
		return func(v strict.Value) { given[key] = v; read(v) }
	}
	known := false
	v.Fields(strict.Fields{
		"type": func(v strict.Value) {
			types := []SourceType{Static, File, HTTP}
			if i := v.Enum(string(Static), string(File), string(HTTP)); i >= 0 {
				s.Type, known = types[i], true
			}
		},
		"proxies": keep("proxies", func(v strict.Value) { s.Proxies, static = proxies(v) }),
		"path":    keep("path", func(v strict.Value) { v.String(&s.Path, listPath) }),
		"url":     keep("url", func(v strict.Value) { v.String(&s.URL, webURL) }),
		"format": keep("format", func(v strict.Value) {
			if v.Enum(string(Lines), string(JSON)) == 1 {
				s.Format = JSON
			}
		}),
		"interval": keep("interval", func(v strict.Value) { v.Duration(&s.Interval, Least, Most) }),
	}, "type")
	if !known {
		return s, nil
	}
	for key, types := range map[string][]SourceType{
		"proxies": {Static}, "path": {File}, "url": {HTTP}, "format": {File, HTTP}, "interval": {File, HTTP},
	} {
		at, is := given[key]
		allowed := false
		for _, t := range types {
			allowed = allowed || t == s.Type
		}
		switch {
		case is && !allowed:
			at.Refuse("is set for a source of type %s (allowed: with type %s)", s.Type, strings.Join(texts(types), ", "))
		case !is && allowed && len(types) == 1:
			v.Refuse("has type %s and no %s (it is required)", s.Type, key)
		}
	}
	if s.Type == Static {
		s.Format, s.Interval = "", 0
	}
	return s, static
}

func texts(types []SourceType) (words []string) {
	for _, t := range types {
		words = append(words, string(t))
	}
	return words
}

// listed is a proxy of a static source.
type listed struct {
	entry proxylist.Entry
	at    strict.Value
}

// proxies reads the list of a static source. Its items are judged as the lines of
// any list are, without the credentials that a published document must not hold.
func proxies(v strict.Value) (lines []string, all []listed) {
	seen := map[string]bool{}
	v.Items(MaxStaticProxies, func(_ int, v strict.Value) {
		var line string
		v.String(&line, func(s string) error {
			entry, err := proxylist.ParseLine(s, false)
			switch {
			case err != nil:
				return err
			case seen[entry.String()]:
				return errors.New("is there a second time (allowed: once)")
			}
			seen[entry.String()] = true
			all = append(all, listed{entry, v})
			return nil
		})
		lines = append(lines, line)
	})
	return lines, all
}

func listPath(s string) error {
	if s == "" || !filepath.IsLocal(s) || len(s) > 1<<10 || strings.ContainsAny(s, "\r\n") {
		return fmt.Errorf("is %s (allowed: a path below the host's directory of lists)", limits.QuoteOrEmpty(s))
	}
	return nil
}

// webURL checks a URL that is fetched. It quotes nothing of what may hold a
// secret.
func webURL(s string) error {
	const allowed = "(allowed: http:// or https://, a host, and no user)"
	if len(s) > limits.URLLen {
		return fmt.Errorf("has %d bytes (allowed: at most %d)", len(s), limits.URLLen)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || strings.ContainsAny(s, " \t\r\n"):
		return errors.New("is not a URL " + allowed)
	case u.User != nil:
		return errors.New("has a user, and what is published holds no secrets " + allowed)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("has the scheme %s %s", limits.QuoteOrEmpty(u.Scheme), allowed)
	case u.Hostname() == "" || u.Fragment != "":
		return errors.New("has no host, or a fragment " + allowed)
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return limits.Address(host + ":" + port)
}

// hostPattern checks a host, or *. and a suffix of hosts: in the one spelling in
// which they are compared.
func hostPattern(s string) error {
	name, wild := strings.CutPrefix(s, "*.")
	t, err := target.ParseHost(name)
	if err != nil || t.Host() != name || wild && t.Addr.IsValid() || ingress.CheckHost(s) != nil && t.Name != "" {
		return fmt.Errorf("is %s (allowed: a host, an address, or *.suffix, in lower case)", limits.QuoteOrEmpty(s))
	}
	return nil
}

func cidr(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("is %s (allowed: an address and a length, such as 10.0.0.0/8)", limits.QuoteOrEmpty(s))
	}
	if p != p.Masked() {
		return fmt.Errorf("is %s (allowed: %s, without the bits behind the length)", limits.Quote(s), p.Masked())
	}
	return nil
}

func method(s string) error {
	ok := s != "" && len(s) <= 32
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= 'A' && s[i] <= 'Z' || s[i] == '-'
	}
	if !ok {
		return fmt.Errorf("is %s (allowed: a method in upper case, such as GET or CONNECT)", limits.QuoteOrEmpty(s))
	}
	return nil
}
