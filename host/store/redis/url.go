package redis

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Kind is how the server is found.
type Kind int

const (
	Standalone Kind = iota // one address
	Sentinel               // the master that Sentinels name
	Cluster                // the master of our keys' slot
)

// A Target is a server and how to speak to it.
type Target struct {
	Kind    Kind
	Addrs   []string // host:port of the server, the Sentinels or some nodes
	Master  string   // Sentinel: the name they know it by
	DB      int      // 0 in a Cluster
	User    string   // ACL user; empty: the default user
	TLS     bool
	Cluster string // hosts of one name share their data: the tag of all keys

	PasswordFile         string // mode 0600; read again for each connection
	SentinelPasswordFile string // as PasswordFile, for the Sentinels
	CAFile               string // TLS: who vouches for the server; empty: the system's
	ServerName           string // TLS: the name in the server's certificate; empty: the address
}

const urlForms = "redis://[user@]host[:port][/db], redis+sentinel://[user@]host:port,host:port/master[/db] or redis+cluster://[user@]host:port,host:port; rediss for TLS"

var clusterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`) // of a user or a master
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?$`)

// ParseURL reads the forms
//
//	redis://[user@]host[:port][/db]
//	redis+sentinel://[user@]host:port,host:port/master[/db]
//	redis+cluster://[user@]host:port,host:port
//
// and the same with rediss, for TLS. The ports default to 6379, and 26379 for
// Sentinels. A password is refused: it belongs in a file. The error continues
// "store: ", and nothing that could be a secret is in it.
func ParseURL(text string) (Target, error) {
	bad := func(format string, args ...any) (Target, error) {
		return Target{}, fmt.Errorf(format, args...)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return bad("is not a URL: allowed are %s", urlForms)
	}
	t := Target{Cluster: "default"}
	port := "6379"
	switch strings.TrimPrefix(strings.TrimPrefix(scheme, "rediss"), "redis") {
	case "":
	case "+sentinel":
		t.Kind, port = Sentinel, "26379"
	case "+cluster":
		t.Kind = Cluster
	default:
		return bad("scheme %.32q is not known: allowed are %s", scheme, urlForms)
	}
	t.TLS = strings.HasPrefix(scheme, "rediss")
	if !strings.HasPrefix(scheme, "redis") {
		return bad("scheme %.32q is not known: allowed are %s", scheme, urlForms)
	}
	if strings.ContainsAny(rest, "?#") {
		return bad("has a query or a fragment: allowed are %s; the rest are settings below store.redis", urlForms)
	}
	hosts, path, hasPath := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, _, password := strings.Cut(hosts[:at], ":")
		if password {
			return bad("has a password in it, where logs and process lists show it: write it to a file of mode 0600 and name that with store.redis.password_file")
		}
		if !name.MatchString(user) {
			return bad("user is not a name of 1 to 128 letters, digits and ._-: allowed are %s", urlForms)
		}
		t.User, hosts = user, hosts[at+1:]
	}
	for _, host := range strings.Split(hosts, ",") {
		addr, err := address(host, port)
		if err != nil {
			return bad("address %.64q %w: allowed are %s", host, err, urlForms)
		}
		t.Addrs = append(t.Addrs, addr)
	}
	if t.Kind == Standalone && len(t.Addrs) != 1 {
		return bad("has %d addresses: one server has one; allowed are %s", len(t.Addrs), urlForms)
	}
	if t.Kind == Sentinel {
		t.Master, path, hasPath = strings.Cut(path, "/")
		if !name.MatchString(t.Master) {
			return bad("master %.64q is not a name that Sentinels know: allowed are %s", t.Master, urlForms)
		}
	}
	if !hasPath || path == "" {
		return t, nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 || db > 1<<20 {
		return bad("database %.32q is not a number: allowed are %s", path, urlForms)
	}
	if t.Kind == Cluster && db != 0 {
		return bad("database %d: a Cluster has only 0", db)
	}
	t.DB = db
	return t, nil
}

// address checks host, host:port, [ipv6] or [ipv6]:port.
func address(text, port string) (string, error) {
	host := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		host = text[1 : len(text)-1]
	} else if strings.Contains(text, ":") {
		var err error
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", errors.New("is not host:port")
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", errors.New("has no port of 1 to 65535")
	}
	if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) || strings.Contains(host, "%") {
		return "", errors.New("has no host name or IP address")
	}
	return net.JoinHostPort(host, port), nil
}

// Check finds what the settings beside the URL get wrong, and reads the files that
// they name. The error begins with the setting's key.
func (t *Target) Check() error {
	switch {
	case len(t.Addrs) == 0:
		return fmt.Errorf("store: has no address: allowed are %s", urlForms)
	case !clusterName.MatchString(t.Cluster):
		return fmt.Errorf("store.redis.cluster: is %.64q: allowed are 1 to 63 of a-z, 0-9 and -", t.Cluster)
	case !t.TLS && t.CAFile != "":
		return errors.New("store.redis.ca_file: needs TLS: use rediss:// in store")
	case !t.TLS && t.ServerName != "":
		return errors.New("store.redis.server_name: needs TLS: use rediss:// in store")
	case t.User != "" && t.PasswordFile == "":
		return fmt.Errorf("store.redis.password_file: is empty, but store names the user %.64q: name the file with its password", t.User)
	case t.SentinelPasswordFile != "" && t.Kind != Sentinel:
		return errors.New("store.redis.sentinel_password_file: is set, but store names no Sentinels")
	}
	if _, err := t.tls(); err != nil {
		return err
	}
	if _, err := readSecret("store.redis.password_file", t.PasswordFile); err != nil {
		return err
	}
	_, err := readSecret("store.redis.sentinel_password_file", t.SentinelPasswordFile)
	return err
}

// String is the target without secrets, as its URL.
func (t *Target) String() string {
	scheme := "redis"
	if t.TLS {
		scheme = "rediss"
	}
	hosts := strings.Join(t.Addrs, ",")
	if t.User != "" {
		hosts = t.User + "@" + hosts
	}
	switch t.Kind {
	case Sentinel:
		return fmt.Sprintf("%s+sentinel://%s/%s/%d", scheme, hosts, t.Master, t.DB)
	case Cluster:
		return fmt.Sprintf("%s+cluster://%s", scheme, hosts)
	}
	return fmt.Sprintf("%s://%s/%d", scheme, hosts, t.DB)
}
