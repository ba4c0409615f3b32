package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	// hostsVariable lists the hosts that may be asked, separated by commas, each
	// as host or host:port. Without it any host may be, and no header is sent
	// from the environment.
	hostsVariable = "WEBHOOK_HOSTS"

	maxHeaders = 16
	maxURL     = 2048
)

var (
	// variable is what a header may be taken from. The prefix keeps all else out
	// of reach that a process has in its environment.
	variable   = regexp.MustCompile(`^WEBHOOK_[A-Z0-9_]{1,120}$`)
	headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

	// ours are the headers that the request or the connection decides.
	ours = []string{"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Expect", "Host",
		"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
)

// Config is what a query's config may hold.
type Config struct {
	// URL is asked by POST. It is shown to all who may see the rollout.
	URL string `json:"url" jsonschema:"maxLength=2048,description=http:// or https:// URL that is asked by POST; without user info and query and fragment"`
	// Headers are the names of headers, each with the environment variable of the
	// plugin that holds its value.
	Headers map[string]string `json:"headers,omitempty" jsonschema:"description=headers and for each the WEBHOOK_ environment variable of the plugin that holds its value"`
}

// Check says what is wrong with a configuration, with the environment as it is.
// It never repeats the value of a variable.
func (c Config) Check() error {
	u, err := url.Parse(c.URL)
	switch {
	case len(c.URL) > maxURL:
		return fmt.Errorf("url has %d bytes: allowed are at most %d", len(c.URL), maxURL)
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		return errors.New("url is not an http:// or https:// URL with a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("url has user info, a query or a fragment: allowed are scheme, host, port and path; a secret belongs in a header")
	case len(c.Headers) > maxHeaders:
		return fmt.Errorf("headers has %d entries: allowed are at most %d", len(c.Headers), maxHeaders)
	}
	hosts := os.Getenv(hostsVariable)
	if hosts != "" && !listed(u, hosts) {
		return fmt.Errorf("url is on the host %.64q, which %s of the plugin does not list: add it there, or ask another", u.Host, hostsVariable)
	}
	if hosts == "" && len(c.Headers) > 0 {
		return fmt.Errorf("headers are sent only to hosts that the plugin's environment names: set %s there", hostsVariable)
	}
	_, err = c.header()
	return err
}

func listed(u *url.URL, hosts string) bool {
	for host := range strings.SplitSeq(hosts, ",") {
		if host = strings.TrimSpace(host); host != "" && (strings.EqualFold(host, u.Host) || strings.EqualFold(host, u.Hostname())) {
			return true
		}
	}
	return false
}

// header looks the headers up in the environment.
func (c Config) header() (http.Header, error) {
	h := http.Header{}
	for name, from := range c.Headers {
		canonical := http.CanonicalHeaderKey(name)
		value := os.Getenv(from)
		switch {
		case !headerName.MatchString(name) || slices.Contains(ours, canonical):
			return nil, fmt.Errorf("headers has %.64q: allowed are names of letters, digits and -, but none that the request itself decides", name)
		case h.Get(canonical) != "":
			return nil, fmt.Errorf("headers has %s twice, in different cases", canonical)
		case !variable.MatchString(from) || from == hostsVariable:
			return nil, fmt.Errorf("headers takes %s from %.64q: allowed are variables of the plugin that begin with WEBHOOK_, but not %s", canonical, from, hostsVariable)
		case value == "":
			return nil, fmt.Errorf("headers takes %s from %s, which is not set in the plugin's environment", canonical, from)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, fmt.Errorf("headers takes %s from %s, whose value is not printable ASCII", canonical, from)
		}
		h.Set(canonical, value)
	}
	return h, nil
}
