package secret

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dodona-project/dodona/host/limits"
)

// EnvPrefix begins every variable that a reference may name: who may publish a
// configuration may not read the rest of the host's environment by it.
const EnvPrefix = "PROXY_POOL_SECRET_"

const (
	refLen     = 512
	refAllowed = "(allowed: file:<name below the host's directory of secrets>, or env:" + EnvPrefix + "<NAME>)"
)

// Ref names a secret of the host: a file, or a variable.
type Ref struct {
	File, Env string // exactly one is set
}

func (r Ref) String() string {
	if r.File != "" {
		return "file:" + r.File
	}
	return "env:" + r.Env
}

// ParseRef reads a reference.
func ParseRef(s string) (Ref, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case len(s) > refLen:
		return Ref{}, fmt.Errorf("has %d bytes (allowed: at most %d)", len(s), refLen)
	case kind == "file" && limits.Text(name, refLen) == nil && filepath.IsLocal(name) && filepath.ToSlash(filepath.Clean(name)) == name && name != ".":
		return Ref{File: name}, nil
	case kind == "env" && strings.HasPrefix(name, EnvPrefix) && len(name) > len(EnvPrefix) && !strings.ContainsFunc(name, notOfVariable):
		return Ref{Env: name}, nil
	}
	return Ref{}, fmt.Errorf("is no reference to a secret %s", refAllowed) // not quoted: it may be the secret itself
}

func notOfVariable(r rune) bool {
	return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
}
