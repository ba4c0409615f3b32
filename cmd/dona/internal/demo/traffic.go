package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dodona-project/dodona/sdk/dona"
)

const (
	// workers send one request after the other; together about 100 a second.
	workers = 4
	every   = 40 * time.Millisecond
	users   = 2000
	// recent is the span of the latencies that the demo's metrics show.
	recent = 10 * time.Second
)

// traffic is the client: for each request the SDK decides, and a real HTTP
// request goes to the endpoint that it picked.
type traffic struct {
	client  *dona.Client
	service *dona.Service
	http    *http.Client

	mu       sync.Mutex
	total    int
	failures []string // no decision, or a transport error
	failed   int
	variants map[string]*tally
}

// tally is what came of the requests to one variant.
type tally struct {
	requests  int
	errors    int       // 5xx answers
	last      time.Time // when the last one was decided
	latencies []measured
}

type measured struct {
	at   time.Time
	took time.Duration
}

func newTraffic(ctx context.Context, target string) (*traffic, error) {
	client, err := dona.Dial(ctx, target, dona.WithoutCache(), dona.WithCaller("demo-client", ""), dona.WithReportInterval(200*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	t := &traffic{
		client: client, service: client.Service(service), variants: map[string]*tally{},
		http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: workers, Proxy: nil}},
	}
	return t, nil
}

// run sends requests until ctx ends; it returns when none is under way.
func (t *traffic) run(ctx context.Context) {
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := worker; ; n += workers {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// The last request is not cut off: that would count as failed.
				t.one(context.WithoutCancel(ctx), "user-"+strconv.Itoa(n*7919%users))
			}
		})
	}
	wg.Wait()
	t.http.CloseIdleConnections()
}

// one sends one request for a user.
func (t *traffic) one(ctx context.Context, user string) {
	began := time.Now()
	pick, err := t.service.Pick(ctx, dona.Request{Unit: user})
	if err != nil {
		t.fail("no decision: " + err.Error())
		return
	}
	code, err := t.send(ctx, pick.Endpoint.Address)
	took := time.Since(began)
	if err != nil {
		pick.Done(dona.Outcome{Success: false, Latency: took, Code: "transport"})
		t.fail(pick.Endpoint.ID + ": " + err.Error())
		return
	}
	good := code < 500
	pick.Done(dona.Outcome{Success: good, Latency: took, Code: strconv.Itoa(code)})
	t.count(pick.Decision.Variant, good, began, took)
}

func (t *traffic) send(ctx context.Context, address string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return 0, err
	}
	response, err := t.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	return response.StatusCode, nil
}

func (t *traffic) fail(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total++
	t.failed++
	if len(t.failures) < 5 {
		t.failures = append(t.failures, why)
	}
}

func (t *traffic) count(variant string, good bool, began time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total++
	v := t.variants[variant]
	if v == nil {
		v = &tally{}
		t.variants[variant] = v
	}
	v.requests++
	if !good {
		v.errors++
	}
	if began.After(v.last) {
		v.last = began
	}
	v.latencies = append(v.latencies, measured{began, took})
	if old := len(v.latencies) - 4096; old > 0 {
		v.latencies = slices.Delete(v.latencies, 0, old)
	}
}

// totals are the counts so far.
type totals struct {
	requests, failed int
	failures         []string
	variants         map[string]tally // without latencies
}

func (t *traffic) totals() totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := totals{requests: t.total, failed: t.failed, failures: slices.Clone(t.failures), variants: map[string]tally{}}
	for name, v := range t.variants {
		out.variants[name] = tally{requests: v.requests, errors: v.errors, last: v.last}
	}
	return out
}

// quantile is the q-quantile of a variant's latencies within the last span, and
// of how many; 0 of 0 when nothing was measured.
func (t *traffic) quantile(variant string, q float64) (time.Duration, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.variants[variant]
	if v == nil {
		return 0, 0
	}
	var took []time.Duration
	for _, m := range v.latencies {
		if time.Since(m.at) <= recent {
			took = append(took, m.took)
		}
	}
	if len(took) == 0 {
		return 0, 0
	}
	slices.Sort(took)
	return took[min(int(q*float64(len(took))), len(took)-1)], len(took)
}
