package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/dodona-project/dodona/builtin/analysis/internal/fetch"
)

// ask sends one instant query, at the server's own now, and returns the raw
// body. The error's text begins with the reason; a body may come with it.
func ask(ctx context.Context, base, query string) (raw []byte, err error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("unreachable: prometheus_url is not an http:// or https:// URL")
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {query}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("unreachable: prometheus_url cannot be asked")
	}
	req.Header.Set("Accept", "application/json")
	raw, status, err := fetch.Do(req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("unreachable: the server answered %d%s", status, said(raw))
	}
	return raw, err
}

// said is what a server's error answer says of itself, if it does.
func said(raw []byte) string {
	_, err := read(raw, true)
	if text, ok := strings.CutPrefix(fmt.Sprint(err), "bad body: the server says "); ok {
		return ": " + text
	}
	return ""
}
