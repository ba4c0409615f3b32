package supply_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/pool/source"
	"github.com/dodona-project/dodona/host/pool/supply"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const planted = "pl4nted-s3cret"

// cluster is a store and the hosts over it.
type cluster struct {
	t     *testing.T
	store store.Store
	audit *audit.Log
	key   secret.Key
	first *pool.Pool
}

func newCluster(t *testing.T) *cluster {
	key, err := secret.ParseKey(secret.GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, store: embedded.OpenMemory(embedded.Options{}), audit: audit.New("example.org"), key: key}
	t.Cleanup(func() { _ = c.store.Close() })
	c.first = pool.New(pool.Options{Store: c.store, Audit: c.audit, HostID: "h0"})
	return c
}

// host is one host of a cluster, with directories of its own.
type host struct {
	*supply.Supplier
	pool *pool.Pool
	dir  string
	mu   sync.Mutex
	log  bytes.Buffer
}

func (h *host) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(p)
}

func (h *host) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

func (c *cluster) host(name string) *host {
	c.t.Helper()
	h := &host{dir: c.t.TempDir()}
	h.pool = pool.New(pool.Options{Store: c.store, Audit: c.audit, HostID: name})
	h.Supplier = supply.New(h.pool, supply.Options{
		Resolver: secret.NewResolver(h.dir, func(string) (string, bool) { return "", false }), Key: c.key,
		Sources: source.Options{Dir: h.dir}, Every: 5 * time.Millisecond, Secrets: 10 * time.Millisecond,
		Logger: hclog.New(&hclog.LoggerOptions{Output: h, Level: hclog.Trace}),
	})
	return h
}

// run runs a host until the test ends.
func (c *cluster) run(h *host) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

func (h *host) write(t *testing.T, name, text string) {
	t.Helper()
	fresh := filepath.Join(h.dir, "fresh")
	if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(h.dir, name)); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) publish(yaml string) {
	c.t.Helper()
	if _, err := c.first.Publish(c.t.Context(), "ada", &controlplanev1.PublishConfigRequest{Yaml: yaml}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) proxies() (all []*controlplanev1.Proxy) {
	c.t.Helper()
	r, err := c.first.ListProxies(c.t.Context(), &controlplanev1.ListProxiesRequest{PageSize: 1000})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range r.Proxies {
		all = append(all, p.Proxy)
	}
	return all
}

// passwords are those that a host has of the listed proxies, by their ports.
func (c *cluster) passwords(h *host) string {
	var all []string
	for port := uint32(1); port <= 9; port++ {
		for _, p := range c.proxies() {
			if p.Port != port {
				continue
			}
			got := "-"
			if p.SecretRef != "" {
				if k, ok := h.Credential(p.SecretRef, p.CredentialVersion); ok {
					got = k.Username() + ":" + k.Password()
				} else {
					got = "?"
				}
			}
			all = append(all, fmt.Sprintf("%d=%s@%d", p.Port, got, p.CredentialVersion))
		}
	}
	return strings.Join(all, " ")
}

// until waits for what the loops bring about.
func (c *cluster) until(what string, want string, get func() string) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		got := get()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %q, want %q", what, got, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

const document = `
cluster: {id: c1}
upstreams:
  - name: static
    protocol: http
    secretRef: file:static
    source: {type: static, proxies: ["192.0.2.1:1", "192.0.2.1:2"]}
  - name: vendor
    protocol: socks5
    source: {type: file, path: vendor, interval: 1s}
`

// TestSupply: two hosts take the same proxies from their lists, agree on versions of
// secrets while those are replaced on one after the other, and hand out nothing that
// they do not have. No secret is in the store or in a log.
func TestSupply(t *testing.T) {
	c := newCluster(t)
	a, b := c.host("a"), c.host("b")
	for _, h := range []*host{a, b} {
		h.write(t, "static", "u:"+planted+"1\n")
		h.write(t, "vendor", "192.0.2.2:3\nv:"+planted+"v@192.0.2.2:4\nbad\nw:"+planted+"w@192.0.2.2:4\n")
		c.run(h)
	}
	c.publish(document)
	want := fmt.Sprintf("1=u:%[1]s1@1 2=u:%[1]s1@1 3=-@0 4=v:%[1]sv@1 4=w:%[1]sw@1", planted)
	other := fmt.Sprintf("1=u:%[1]s1@1 2=u:%[1]s1@1 3=-@0 4=w:%[1]sw@1 4=v:%[1]sv@1", planted)
	for _, h := range []*host{a, b} {
		c.until("at first", want, func() string { return strings.Replace(c.passwords(h), other, want, 1) })
	}
	if got := len(c.proxies()); got != 5 {
		t.Errorf("there are %d proxies", got)
	}

	// A secret is replaced on one host after the other.
	first := func(h *host) func() string {
		return func() string { text, _, _ := strings.Cut(c.passwords(h), " "); return text }
	}
	a.write(t, "static", "u:"+planted+"2\n")
	c.until("replaced on a", "1=u:"+planted+"2@2", first(a))
	c.until("not yet on b", "1=?@2", first(b))
	c.until("and b says so", "1", func() string { return fmt.Sprint(len(b.Problems())) })
	if text := b.Problems()[0]; !strings.Contains(text, "file:static is version 2 elsewhere") {
		t.Errorf("b says %s", text)
	}
	b.write(t, "static", "u:"+planted+"2\n")
	c.until("replaced on b", "1=u:"+planted+"2@2", first(b))
	c.until("and all is well", "0", func() string { return fmt.Sprint(len(b.Problems())) })

	// One that cannot be read stays, and is told.
	if err := os.Chmod(filepath.Join(a.dir, "static"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.until("unreadable", "1", func() string { return fmt.Sprint(len(a.Problems())) })
	if got := first(a)(); got != "1=u:"+planted+"2@2" {
		t.Errorf("unreadable: %s", got)
	}

	// A password in a list changes: the proxy stays the same one.
	for _, h := range []*host{a, b} {
		h.write(t, "vendor", "192.0.2.2:3\nv:"+planted+"n@192.0.2.2:4\n")
	}
	for _, h := range []*host{a, b} {
		c.until("a new password in the list", "true", func() string { return fmt.Sprint(strings.Contains(c.passwords(h), "v:"+planted+"n@2")) })
	}
	if got := len(c.proxies()); got != 5 {
		t.Errorf("there are %d proxies after a new password", got)
	}

	// A disabled upstream has no credentials any more.
	if _, err := c.first.SetUpstream(t.Context(), "ada", &controlplanev1.SetUpstreamEnabledRequest{Upstream: "static"}); err != nil {
		t.Fatal(err)
	}
	c.until("disabled", "1=?@2", first(b))

	for _, h := range []*host{a, b} {
		if strings.Contains(h.said(), planted) {
			t.Errorf("a secret is in the log: %s", h.said())
		}
	}
	var dump bytes.Buffer
	if err := c.store.View(t.Context(), func(tx store.ReadTx) error {
		for _, p := range c.proxies() {
			fmt.Fprintf(&dump, "%v", p)
			rec, err := tx.Get("pool/proxy/" + p.ProxyId)
			if err != nil {
				return err
			}
			dump.Write(rec.Value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if dump.Len() == 0 || strings.Contains(dump.String(), planted) {
		t.Errorf("the store has %q", dump.String())
	}
}

// flaky is a pool whose store is away for a while.
type flaky struct {
	supply.Pool
	mu    sync.Mutex
	fails int
}

func (f *flaky) fail() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails == 0 {
		return nil
	}
	f.fails--
	return store.ErrUnavailable
}

func (f *flaky) List(ctx context.Context, upstream string, listed []pool.Listed, ttl time.Duration, record func(store.Tx, bool, uint32) error) (uint32, uint32, error) {
	if err := f.fail(); err != nil {
		return 0, 0, err
	}
	return f.Pool.List(ctx, upstream, listed, ttl, record)
}

func (f *flaky) Settle(ctx context.Context, refs []string, decide func(string, secret.Version) secret.Version) (map[string]uint32, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Pool.Settle(ctx, refs, decide)
}

// TestStoreAway: what the pool did not take is brought again, also when its list is
// not read any more.
func TestStoreAway(t *testing.T) {
	c := newCluster(t)
	h := c.host("a")
	h.write(t, "static", "u:p")
	f := &flaky{Pool: h.pool, fails: 7}
	h.Supplier = supply.New(f, supply.Options{
		Resolver: secret.NewResolver(h.dir, os.LookupEnv), Key: c.key, Every: 5 * time.Millisecond, Secrets: 10 * time.Millisecond,
		Logger: hclog.New(&hclog.LoggerOptions{Output: h, Level: hclog.Trace}),
	})
	c.run(h)
	c.publish(strings.Split(document, "  - name: vendor")[0])
	c.until("in the end", "1=u:p@1 2=u:p@1", func() string { return c.passwords(h) })
	if f.mu.Lock(); f.fails != 0 {
		t.Errorf("%d failures are left", f.fails)
	}
	f.mu.Unlock()
	if !strings.Contains(h.said(), "tries again") {
		t.Errorf("the log says nothing of it: %s", h.said())
	}
}

// TestReadAtOnce: when one host has read a new secret, another does not wait for its own
// time to read it.
func TestReadAtOnce(t *testing.T) {
	c := newCluster(t)
	a, b := c.host("a"), c.host("b")
	b.Supplier = supply.New(b.pool, supply.Options{
		Resolver: secret.NewResolver(b.dir, os.LookupEnv), Key: c.key, Every: time.Hour, Secrets: time.Hour,
		Sources: source.Options{Dir: b.dir}, Logger: hclog.New(&hclog.LoggerOptions{Output: b, Level: hclog.Trace}),
	})
	for _, h := range []*host{a, b} {
		h.write(t, "static", "u:"+planted+"1\n")
	}
	c.publish(strings.Split(document, "  - name: vendor")[0])
	for _, h := range []*host{a, b} {
		c.run(h)
		c.until("at first", "1=u:"+planted+"1@1 2=u:"+planted+"1@1", func() string { return c.passwords(h) })
	}
	for _, h := range []*host{b, a} { // b has it and does not know; a reads it and says so
		h.write(t, "static", "u:"+planted+"2\n")
	}
	c.until("replaced on both", "1=u:"+planted+"2@2 2=u:"+planted+"2@2", func() string { return c.passwords(b) })
}

// TestStaticListsLast: a list in the configuration is listed again before its proxies
// end.
func TestStaticListsLast(t *testing.T) {
	c := newCluster(t)
	h := c.host("a")
	h.write(t, "static", "u:p")
	c.run(h)
	c.publish("allocation: {safetyMargin: 0s}\n" + strings.Replace(strings.Split(document, "  - name: vendor")[0], "    secretRef", "    ttl: 3s\n    secretRef", 1))
	c.until("at first", "2", func() string { return fmt.Sprint(len(c.proxies())) })
	first := c.proxies()[0].ExpiresAt.AsTime()
	c.until("later", "true", func() string { return fmt.Sprint(c.proxies()[0].ExpiresAt.AsTime().After(first)) })
}

// TestWithoutAKey: proxies without credentials are supplied, and the others are told.
func TestWithoutAKey(t *testing.T) {
	c := newCluster(t)
	c.key = secret.Key{}
	h := c.host("a")
	h.write(t, "static", "u:p")
	h.write(t, "vendor", "192.0.2.2:3\nv:p@192.0.2.2:4\n")
	c.run(h)
	c.publish(document)
	c.until("without a key", "1=?@0 2=?@0 3=-@0", func() string { return c.passwords(h) })
	c.until("and it says so", "2", func() string { return fmt.Sprint(len(h.Problems())) })
	for _, p := range h.Problems() {
		if !strings.Contains(p, "no key for digests") {
			t.Errorf("it says %s", p)
		}
	}
}
