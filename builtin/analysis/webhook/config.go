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
// It never repeats the value of a variable. The host shows the beginning of a
// long text only: what to do comes first.
func (c Config) Check() error {
	u, err := url.Parse(c.URL)
	switch {
	case len(c.URL) > maxURL:
		return fmt.Errorf("url has %d bytes: allowed are at most %d", len(c.URL), maxURL)
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		return errors.New("url is not an http:// or https:// URL with a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("url may have no user info, query or fragment: allowed are scheme, host, port and path; a secret belongs in a header")
	case len(c.Headers) > maxHeaders:
		return fmt.Errorf("headers: at most %d are allowed, and it has %d", maxHeaders, len(c.Headers))
	}
	hosts := os.Getenv(hostsVariable)
	if hosts != "" && !listed(u, hosts) {
		return fmt.Errorf("url: %s does not list its host: add %.64q there, or ask another", hostsVariable, u.Host)
	}
	if hosts == "" && len(c.Headers) > 0 {
		return fmt.Errorf("headers need %s to be set: they are sent only to hosts that the plugin's environment names", hostsVariable)
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
			return nil, fmt.Errorf("headers: the name %.64q is not allowed: names are of letters, digits and -, and none that the request itself decides", name)
		case h.Get(canonical) != "":
			return nil, fmt.Errorf("headers: %s is there twice, in different cases", canonical)
		case !variable.MatchString(from) || from == hostsVariable:
			return nil, fmt.Errorf("headers: only variables WEBHOOK_* are allowed, but not %s: %s is from %.64q", hostsVariable, canonical, from)
		case value == "":
			return nil, fmt.Errorf("headers: %s is not set: %s needs it in the plugin's environment", from, canonical)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, fmt.Errorf("headers: %s is not printable ASCII: %s needs it to be", from, canonical)
		}
		h.Set(canonical, value)
	}
	return h, nil
}
