package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// underLoad is how long the extraction has to be refused, because all proxies are in
// use: longer than gateways take between two reports of what they use.
const underLoad = 3 * time.Second

// extraction is what happened around one.
type extraction struct {
	refused  int           // answers 503 while downloads ran
	waited   time.Duration // of those
	released time.Time     // when the downloads were let go
	given    time.Time     // when the proxy was given out
	proxy    *proxy
	lastUse  time.Time // of anybody else, before it was given out
	replayed bool      // the same key had the same proxy
	direct   string    // from where a request through it came
	later    int       // requests of anybody else through it, since it was given out
}

var errNoProxy = errors.New("no proxy is free")

// extract takes a proxy for good, by the REST interface, while all of the upstream are
// in use.
func (s *stage) extract(ctx context.Context) error {
	upstream := upstreams[len(upstreams)-1]
	s.story.chapter("6. A proxy is extracted from under load")
	if err := s.shared(ctx); err != nil {
		return err
	}
	life, cut := context.WithCancel(ctx)
	var downloads sync.WaitGroup
	defer downloads.Wait()
	defer cut()
	if err := s.holdAll(life, upstream, &downloads); err != nil {
		return err
	}
	s.story.tell("a download runs through each of the %d proxies of %s", sizes[upstream], upstream)

	x := &extraction{}
	asked := time.Now()
	for time.Since(asked) < underLoad {
		reply, err := s.post(ctx, upstream)
		switch {
		case err == nil:
			return fmt.Errorf("a proxy was extracted while downloads ran through all of them: %v", reply.GetProxies()[0].GetProxy())
		case !errors.Is(err, errNoProxy):
			return err
		}
		x.refused++
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	x.waited = time.Since(asked)
	s.story.tell("POST /v1/extractions: 503 for %s, for a download is not cut; one proxy gets no new requests", seconds(x.waited))
	x.released = time.Now()
	for _, p := range s.of(upstream) {
		p.target.letGo()
	}
	var got *controlplanev1.ExtractResponse
	err := s.until(ctx, 20*time.Second, "a proxy to be free", func(ctx context.Context) (err error) {
		got, err = s.post(ctx, upstream)
		return err
	}, s.host)
	if err != nil {
		return err
	}
	x.given = time.Now()
	far := got.GetProxies()[0]
	if x.proxy = s.find(far.GetProxy()); x.proxy == nil || x.proxy.upstream != upstream {
		return fmt.Errorf("the extracted proxy is unknown: %v", far.GetProxy())
	}
	before, last, holding := x.proxy.target.seen()
	if holding > 0 {
		return fmt.Errorf("%s was given out while %d downloads ran through it", x.proxy.name, holding)
	}
	x.lastUse = last
	s.story.tell("the downloads end, and %s later %s is given out, which nobody had used for %s", seconds(x.given.Sub(x.released)), x.proxy.name, seconds(x.given.Sub(last)))
	again, err := s.post(ctx, upstream)
	if err != nil {
		return fmt.Errorf("the same extraction again: %w", err)
	}
	x.replayed = again.GetReplayed() && again.GetExtractionId() == got.GetExtractionId() && again.GetProxies()[0].GetProxy().GetProxyId() == far.GetProxy().GetProxyId()
	if x.direct, err = s.direct(ctx, far, "http://"+upstream+hostSuffix+"/"); err != nil {
		return fmt.Errorf("a request through the extracted proxy: %w", err)
	}
	s.story.tell("the same key gives the same proxy again; its new owner's request comes from %s", x.direct)
	if err := sleep(ctx, 1500*time.Millisecond); err != nil {
		return err
	}
	after, _, _ := x.proxy.target.seen()
	x.later = after - before - 1
	s.facts.extraction = x
	return nil
}

// holdAll opens downloads until there is one through each proxy of the upstream.
func (s *stage) holdAll(ctx context.Context, upstream string, downloads *sync.WaitGroup) error {
	begun := 0
	return s.until(ctx, 20*time.Second, "a download through each proxy of "+upstream, func(context.Context) error {
		missing, open := 0, 0
		for _, p := range s.of(upstream) {
			_, _, n := p.target.seen()
			open += n
			if n == 0 {
				missing++
			}
		}
		switch {
		case missing == 0:
			return nil
		case begun < 100 && open >= begun: // those before have arrived
			address := s.gateways[begun%2].listen
			begun++
			downloads.Go(func() { s.download(ctx, address, "http://"+upstream+hostSuffix+"/hold") })
		}
		return fmt.Errorf("%d have none, %d of %d are open", missing, open, begun)
	})
}

// download reads until the end.
func (s *stage) download(ctx context.Context, gateway, address string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return
	}
	transport := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: gateway})}
	// What does not come is seen at the targets.
	if answer, err := transport.RoundTrip(r); err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
}

// post asks for a proxy of an upstream, with the same key each time.
func (s *stage) post(ctx context.Context, upstream string) (*controlplanev1.ExtractResponse, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.http+"/v1/extractions", strings.NewReader(`{"upstream": "`+upstream+`", "count": 1}`))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "example-1")
	answer, err := s.admin.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") != "":
		return nil, errNoProxy
	case answer.StatusCode != http.StatusCreated && answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("POST /v1/extractions is answered %s: %s", answer.Status, text)
	}
	reply := &controlplanev1.ExtractResponse{}
	if err := protojson.Unmarshal(text, reply); err != nil {
		return nil, err
	}
	if len(reply.GetProxies()) != 1 {
		return nil, fmt.Errorf("%d proxies were given for one", len(reply.GetProxies()))
	}
	return reply, nil
}

// direct sends a request through a proxy as its only owner, with no gateway between.
func (s *stage) direct(ctx context.Context, far *controlplanev1.ExtractedProxy, address string) (string, error) {
	c, p := far.GetCredential(), far.GetProxy()
	via := &url.URL{Scheme: "socks5", User: url.UserPassword(c.GetUsername(), c.GetPassword()), Host: fmt.Sprintf("%s:%d", p.GetHost(), p.GetPort())}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(via)}}
	return get(ctx, client, "", address)
}
