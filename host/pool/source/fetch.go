package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

const maxRedirects = 3

// NewClient returns a client for http sources. It follows few redirects, and
// none to another host or from https to http; it uses no proxy of the environment;
// and it connects to no metadata or link-local address, whatever a name resolves
// to.
func NewClient() *http.Client {
	dialer := net.Dialer{Timeout: 5 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		switch class := target.ClassOf(to.Addr()); class {
		case target.Metadata, target.LinkLocal, target.Multicast, target.Reserved:
			return fmt.Errorf("its server is at a %s address, which is not allowed", class)
		}
		return nil
	}}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 15 * time.Second,
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			from := via[len(via)-1].URL
			switch {
			case len(via) > maxRedirects:
				return fmt.Errorf("redirects more than %d times", maxRedirects)
			case to.URL.Hostname() != from.Hostname():
				return errors.New("redirects to another host")
			case from.Scheme == "https" && to.URL.Scheme != "https":
				return errors.New("redirects from https to http")
			}
			return nil
		},
	}
}

// fetch asks the server for the list. same says that it is the one that was read
// last.
func (r *reader) fetch(ctx context.Context) (text []byte, etag string, same bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.source.URL, nil)
	if err != nil {
		return nil, "", false, errors.New("the list has no URL that can be fetched")
	}
	request.Header.Set("Accept", "text/plain, application/json;q=0.9, */*;q=0.1")
	if r.etag != "" && r.last != nil {
		request.Header.Set("If-None-Match", r.etag)
	}
	answer, err := r.client.Do(request)
	if err != nil {
		return nil, "", false, fmt.Errorf("the list's server cannot be asked: %w", reasonOf(err))
	}
	defer func() { _ = answer.Body.Close() }()
	switch {
	case answer.StatusCode == http.StatusNotModified && r.etag != "" && r.last != nil:
		return nil, r.etag, true, nil
	case answer.StatusCode != http.StatusOK:
		return nil, "", false, fmt.Errorf("the list's server answers with status %d", answer.StatusCode)
	}
	text, err = io.ReadAll(io.LimitReader(answer.Body, MaxBytes+1))
	switch {
	case err != nil:
		return nil, "", false, fmt.Errorf("the list's server ends its answer early: %w", reasonOf(err))
	case len(text) > MaxBytes:
		return nil, "", false, fmt.Errorf("the list has more than %d bytes", MaxBytes)
	}
	return text, answer.Header.Get("ETag"), false, nil
}

// reasonOf leaves out the URL, which may hold a token.
func reasonOf(err error) error {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return err
}
