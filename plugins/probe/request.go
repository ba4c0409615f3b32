package probe

import (
	"fmt"
	"net/url"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// checkRequest refuses what no plugin could make sense of, so that plugins need
// not, and their errors are about targets. The error is nil or a *RequestError.
func checkRequest(req *pluginv1.CheckRequest) error {
	refuse := func(field, format string, args ...any) error {
		return &RequestError{Field: field, Text: fmt.Sprintf(format, args...)}
	}
	hasProxy, hasEndpoint := req.GetProxy() != nil, req.GetEndpointAddress() != ""
	switch {
	case hasProxy && hasEndpoint:
		return refuse("endpoint_address", "is set and proxy too: allowed is exactly one of them")
	case !hasProxy && !hasEndpoint:
		return refuse("proxy", "and endpoint_address are both absent: set exactly one of them")
	case hasEndpoint && req.GetCredential() != nil:
		return refuse("credential", "is set for an endpoint: it goes with a proxy only")
	}
	switch level := req.GetLevel(); {
	case level != basic && level != egress && level != targetLevel:
		return refuse("level", "is %s: allowed are BASIC, EGRESS and TARGET", level)
	case level == egress && hasEndpoint:
		return refuse("level", "is EGRESS: an endpoint has no egress, allowed are BASIC and TARGET")
	}
	if d := req.GetTimeout(); d.CheckValid() != nil || d.AsDuration() < MinTimeout || d.AsDuration() > MaxTimeout {
		return refuse("timeout", "is %s: allowed are %v to %v", durationText(d), MinTimeout, MaxTimeout)
	}
	if wrong := checkURL(req); wrong != "" {
		return refuse("url", "%s", wrong)
	}
	if n := len(req.GetExpectStatus()); n > MaxExpectStatus {
		return refuse("expect_status", "has %d codes: allowed are at most %d", n, MaxExpectStatus)
	}
	for i, code := range req.GetExpectStatus() {
		if !isStatus(code) {
			return refuse(fmt.Sprintf("expect_status[%d]", i), "is %d: allowed are 100 to 599", code)
		}
	}
	return nil
}

// checkURL returns what is wrong with the URL, empty when nothing is.
func checkURL(req *pluginv1.CheckRequest) string {
	text := req.GetUrl()
	switch {
	case text == "" && (req.GetLevel() == targetLevel || req.GetLevel() == egress) && req.GetProxy() != nil:
		return "is empty: EGRESS and TARGET of a proxy need one"
	case text == "":
		return ""
	case len(text) > MaxURL:
		return fmt.Sprintf("has %d bytes: allowed are at most %d", len(text), MaxURL)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "is not an http or https URL with a host" // it may hold a password, so it is not quoted
	case u.User != nil:
		return "has a user in it: allowed is an http or https URL without one"
	}
	return ""
}
