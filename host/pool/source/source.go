// Package source keeps the lists of proxies that upstreams have: those in the
// configuration, those of files below the host's directory of lists, and those of
// servers. A [Keeper] reads each again and again, and hands out whole lists only.
//
// A line that cannot be read costs that line. A source that cannot be read keeps
// its last good list, and [Status] says what is wrong and since when; the list's
// proxies then end with their time to live. Credentials that stand in a list are
// in memory here and nowhere else, so each host reads each list itself.
//
// The caller is host/pool. Nothing here knows a store.
package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/proxylist"
	"github.com/dodona-project/dodona/host/pool/secret"
)

// Bounds of a read.
const (
	MaxBytes    = 16 << 20
	MaxRejected = 100 // that a list keeps; Dropped counts the others
	timeout     = 30 * time.Second
)

// List is what a source had when it was read last. Nobody changes it.
type List struct {
	Entries  []proxylist.Entry // those with a credential carry it
	Rejected []proxylist.Rejected
	Dropped  int       // rejected lines beyond those in Rejected
	Read     time.Time // when it was read, or found unchanged
}

// Options are what sources share.
type Options struct {
	Dir     string              // of file sources; empty: there are none
	Client  *http.Client        // of http sources; nil = NewClient()
	Timeout time.Duration       // of one read; 0 = 30 s
	Now     func() time.Time    // nil = time.Now
	Report  func(Status)        // of reads that fail and of those that work again; may be nil
	Changed func(string, *List) // an upstream's list was read; from that source's goroutine
}

// reader reads one source.
type reader struct {
	source poolconfig.Source
	list   proxylist.Options
	dir    string
	client *http.Client
	etag   string // of last
	last   *List  // nil before the first good read
}

// errNone is a list without a proxy. It is a failure: servers of lists answer so
// when they have a trouble of their own.
var errNone = errors.New("has no proxy that can be used: the last good list stays; to take proxies away, disable the upstream")

// read reads the source once. The error holds nothing of the list, and nothing of
// an URL, which may hold a token.
func (r *reader) read(ctx context.Context, now time.Time) (*List, error) {
	list, etag, err := r.once(ctx, now)
	if err == nil {
		r.last, r.etag = list, etag
	}
	return list, err
}

func (r *reader) once(ctx context.Context, now time.Time) (list *List, etag string, err error) {
	var text []byte
	switch r.source.Type {
	case poolconfig.Static:
		list, err = r.take(r.source.Proxies, now)
		return list, "", err
	case poolconfig.File:
		if r.dir == "" {
			return nil, "", errors.New("the list is a file, and this host has no directory of lists: set pool.lists_dir")
		}
		if text, err = secret.ReadBelow(r.dir, r.source.Path, MaxBytes); err != nil {
			return nil, "", fmt.Errorf("the list %w", err)
		}
	case poolconfig.HTTP:
		var same bool
		if text, etag, same, err = r.fetch(ctx); err != nil {
			return nil, "", err
		}
		if same {
			again := *r.last
			again.Read = now
			return &again, etag, nil
		}
	}
	lines, err := r.lines(text)
	if err != nil {
		return nil, "", err
	}
	list, err = r.take(lines, now)
	return list, etag, err
}

// lines takes a list apart by its format.
func (r *reader) lines(text []byte) ([]string, error) {
	if !utf8.Valid(text) && r.source.Format == poolconfig.JSON {
		return nil, errors.New("the list is not valid UTF-8")
	}
	body := strings.TrimPrefix(string(text), "\ufeff")
	if r.source.Format == poolconfig.JSON {
		var lines []string
		if err := json.Unmarshal([]byte(body), &lines); err != nil || lines == nil {
			return nil, errors.New("the list is no JSON array of strings")
		}
		return lines, nil
	}
	return strings.Split(strings.TrimSuffix(body, "\n"), "\n"), nil
}

func (r *reader) take(lines []string, now time.Time) (*List, error) {
	list := &List{Read: now}
	list.Entries, list.Rejected = proxylist.ParseAll(lines, r.list)
	if more := len(list.Rejected) - MaxRejected; more > 0 {
		list.Rejected, list.Dropped = list.Rejected[:MaxRejected:MaxRejected], more
	}
	if len(list.Entries) == 0 && r.source.Type != poolconfig.Static {
		if len(list.Rejected) > 0 {
			return nil, fmt.Errorf("the list %w (%s)", errNone, list.Rejected[0])
		}
		return nil, fmt.Errorf("the list %w", errNone)
	}
	return list, nil
}
