package identity_test

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// TestTokens: uses, expiry, revocation, other identities and guesses, and that every no
// is the same no.
func TestTokens(t *testing.T) {
	st := memory(t)
	i := open(t, options(t, st))
	csr := plain(t)
	use := func(text string, req identity.Request) error {
		req.CSR = csr
		_, err := i.WithToken(t.Context(), text, req)
		return err
	}
	once, twice, gone := tokenFor(t, i, "checkout", 0), tokenFor(t, i, "checkout", 2), tokenFor(t, i, "checkout", 1)
	fatal(t, use(once.Text, identity.Request{Service: "checkout"}))
	fatal(t, use(twice.Text, identity.Request{}))
	fatal(t, use(twice.Text, identity.Request{Service: "checkout"}))
	fatal(t, i.RevokeToken(t.Context(), "local:dev", gone.ID))
	wantRefusal(t, i.RevokeToken(t.Context(), "local:dev", gone.ID), refusal.NotFound)
	wantRefusal(t, i.RevokeToken(t.Context(), "local:dev", once.ID), refusal.NotFound)
	wantRefusal(t, i.RevokeToken(t.Context(), "local:dev", once.Text), refusal.Invalid)

	live := tokenFor(t, i, "checkout", 1)
	short, err := i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: "checkout", TTL: time.Second})
	fatal(t, err)
	var texts []string
	no := func(name, text string, req identity.Request) {
		t.Helper()
		err := use(text, req)
		if e := wantRefusal(t, err, refusal.Denied); e.Cause != nil || e.Field != "" {
			t.Errorf("%s: %+v", name, e)
		}
		texts = append(texts, err.Error())
	}
	last := live.Text[len(live.Text)-1]
	other := byte('A')
	if last == other {
		other = 'B'
	}
	no("used up", once.Text, identity.Request{Service: "checkout"})
	no("used up twice", twice.Text, identity.Request{})
	no("revoked", gone.Text, identity.Request{Service: "checkout"})
	no("another service", live.Text, identity.Request{Service: "web"})
	no("a service that nobody knows", live.Text, identity.Request{Service: "nobody-knows-it"})
	no("another kind", live.Text, identity.Request{Path: "admin/checkout"})
	no("a letter wrong", live.Text[:len(live.Text)-1]+string(other), identity.Request{Service: "checkout"})
	no("a secret of another token", live.Text[:len("dona_")+16]+short.Text[len("dona_")+16:], identity.Request{Service: "checkout"})
	no("cut", live.Text[:len(live.Text)-1], identity.Request{Service: "checkout"})
	no("longer", live.Text+"A", identity.Request{Service: "checkout"})
	no("empty", "", identity.Request{Service: "checkout"})
	no("no token", "hello", identity.Request{Service: "checkout"})
	no("a megabyte", strings.Repeat("a", 1<<20), identity.Request{Service: "checkout"})
	no("only its id", live.ID, identity.Request{Service: "checkout"})
	waitFor(t, "the token to expire", func() bool { return time.Now().After(short.Expires.Add(time.Millisecond)) })
	no("expired", short.Text, identity.Request{Service: "checkout"})
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("one no is %q, another %q", texts[0], text)
		}
	}
	fatal(t, use(live.Text, identity.Request{Service: "checkout"})) // guesses took no use of it

	if n := len(entries(t, st, "token.create")); n != 5 {
		t.Errorf("%d entries of tokens made, want 5", n)
	}
	if lines := entries(t, st, "token.revoke"); len(lines) != 1 || !strings.Contains(lines[0], gone.ID) {
		t.Errorf("entries: %s", lines)
	}
	fatal(t, st.View(t.Context(), func(tx store.ReadTx) error { // nothing of a secret is kept
		for _, log := range []string{"audit/@host"} {
			lines, err := tx.ReadLog(log, 1, 0)
			if err != nil {
				return err
			}
			for _, l := range lines {
				for _, token := range []*identity.Token{once, twice, gone, live, short} {
					if contains(l.Payload, token.Text[len("dona_")+17:]) {
						t.Errorf("a secret is in %s", l.Payload)
					}
				}
			}
		}
		return nil
	}))
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// TestExpiredTokensGo: what has run out is not kept for ever.
func TestExpiredTokensGo(t *testing.T) {
	st := memory(t)
	i := open(t, options(t, st))
	short, err := i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: "checkout", TTL: time.Second})
	fatal(t, err)
	waitFor(t, "the record to go", func() bool {
		tokenFor(t, i, "web", 1)
		gone := false
		fatal(t, st.View(t.Context(), func(tx store.ReadTx) error {
			rec, err := tx.Get("token/" + short.ID)
			gone = !rec.Exists()
			return err
		}))
		if gone && time.Now().Before(short.Expires) {
			t.Fatal("it went before its time")
		}
		return gone
	})
}

// TestTokenLimits: each number at its limit and one over.
func TestTokenLimits(t *testing.T) {
	i := open(t, options(t, memory(t)))
	create := func(req identity.TokenRequest) error {
		req.Path = "admin/alice"
		_, err := i.CreateToken(t.Context(), "local:dev", req)
		return err
	}
	fatal(t, create(identity.TokenRequest{TTL: limits.TokenTTL, Uses: limits.TokenUses}))
	wantRefusal(t, create(identity.TokenRequest{TTL: limits.TokenTTL + time.Second}), refusal.Invalid)
	wantRefusal(t, create(identity.TokenRequest{Uses: limits.TokenUses + 1}), refusal.Invalid)
	_, err := i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{})
	wantRefusal(t, err, refusal.Invalid)
}

// race has 50 callers at these hosts use one token at once, and counts who had it.
func race(t *testing.T, hosts []*identity.Issuer, uses uint32) {
	t.Helper()
	token := tokenFor(t, hosts[0], "checkout", uses)
	csr := plain(t)
	var had, denied atomic.Int32
	var all sync.WaitGroup
	begin := make(chan struct{})
	for n := range 50 {
		all.Go(func() {
			<-begin
			for {
				_, err := hosts[n%len(hosts)].WithToken(t.Context(), token.Text, identity.Request{Service: "checkout", CSR: csr})
				switch {
				case err == nil:
					had.Add(1)
				case refusal.Is(err, refusal.Denied):
					denied.Add(1)
				case refusal.Is(err, refusal.Unavailable) && !strings.Contains(err.Error(), "outcome unknown"):
					continue // a busy machine: nothing was done
				default:
					t.Errorf("caller %d: %v", n, err)
				}
				return
			}
		})
	}
	close(begin)
	all.Wait()
	if had.Load() != int32(uses) || denied.Load() != 50-int32(uses) {
		t.Errorf("of 50, %d had a token of %d uses, %d were denied", had.Load(), uses, denied.Load())
	}
}

func TestTokenRace(t *testing.T) {
	st := memory(t)
	one, two := options(t, st), options(t, st)
	a := open(t, one)
	two.DataDir = one.DataDir
	b := open(t, two)
	race(t, []*identity.Issuer{a}, 1)
	race(t, []*identity.Issuer{a, b}, 1)
	race(t, []*identity.Issuer{a, b}, 7)
	if n := len(entries(t, st, "svid.issue")); n != 9 {
		t.Errorf("%d entries, want 9", n)
	}
}

// TestTokenRaceOverRedis: a use is one also for hosts that share nothing but a Redis.
func TestTokenRaceOverRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	var hosts []*identity.Issuer
	var dir string
	for _, name := range []string{"one", "two"} {
		target, err := redis.ParseURL("redis://" + server.Addr)
		fatal(t, err)
		target.Cluster = "tokens"
		st, err := redis.Open(t.Context(), redis.Options{Target: target, Dir: filepath.Join(t.TempDir(), name), CallTimeout: 10 * time.Second})
		fatal(t, err)
		t.Cleanup(func() { _ = st.Close() })
		redistest.Await(t, "the store is ready", func() bool { return st.Info().State == "ready" })
		o := options(t, st)
		o.Store = st // with all the time that a busy machine takes
		if dir == "" {
			dir = o.DataDir
		}
		o.DataDir = dir
		hosts = append(hosts, open(t, o))
	}
	race(t, hosts, 1)
	race(t, hosts, 5)
}
