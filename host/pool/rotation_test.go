package pool_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/secret"
)

// TestRotatedCredentials: proxies whose credential has a new version are checked at once,
// one that was out for it and one that was seen well a moment ago; of others, and without
// a new version, nothing is checked before it is due.
func TestRotatedCredentials(t *testing.T) {
	v := &vault{held: map[string]secret.Credential{}}
	document := strings.Replace(checkedDocument, "protocol: http\n", "protocol: http\n    secretRef: \"file:dc\"\n", 1)
	onEachStore(t, document, func(t *testing.T, c *clinic) {
		clear(v.held)
		settle := func(refs ...string) func(uint32) {
			return func(number uint32) {
				t.Helper()
				for _, ref := range refs {
					v.put(t, ref, number, "secret")
				}
				_, err := c.p.Settle(c.ctx, refs, func(string, secret.Version) secret.Version { return secret.Version{Number: number} })
				c.must(err)
			}
		}
		inline := pool.InlineRef("dc", "listed")
		settle("file:dc", inline)(1)
		proxy := func(port uint16, id, ref string) pool.Listed {
			return pool.Listed{ID: id, Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: port, SecretRef: ref}
		}
		_, _, err := c.p.List(c.ctx, "dc", []pool.Listed{proxy(1, "", "file:dc"), proxy(2, "", "file:dc"), proxy(3, "listed", inline), proxy(4, "", "")}, time.Hour, nil)
		c.must(err)
		c.look()
		c.clock.advance(2 * time.Second)
		c.checker("one", allLevels...)
		// seen is what a round checks, by level and port.
		round := func(result func(check.Task) controlplanev1.HealthObservation_Result) map[string]int {
			seen := map[string]int{}
			c.round("one", func(task check.Task) controlplanev1.HealthObservation_Result {
				if task.Level != aim {
					seen[task.Proxy.SecretRef]++
				}
				return result(task)
			})
			return seen
		}
		round(always(good))
		out := func(task check.Task) controlplanev1.HealthObservation_Result {
			if task.Proxy.Port == 1 {
				return bad
			}
			return good
		}
		for range 8 { // one of them is out, and is looked at ever more seldom
			c.clock.advance(31 * time.Second)
			round(out)
		}
		c.wantStates("one is out", map[controlplanev1.ProxyStatus_State]int{ownership.Available: 3, ownership.Unhealthy: 1})
		for {
			c.clock.advance(time.Second)
			if len(round(out)) == 0 {
				break
			}
		}
		settle("file:dc", inline)(1)
		if seen := round(out); len(seen) != 0 {
			t.Fatalf("without a new version %v are checked", seen)
		}
		settle("file:dc")(2)
		if seen := round(always(good)); !maps.Equal(seen, map[string]int{"file:dc": 4}) {
			t.Errorf("after a new version of one reference %v are checked, want its two proxies at both levels", seen)
		}
		settle("file:dc")(3) // at the same moment
		if seen := round(always(good)); !maps.Equal(seen, map[string]int{"file:dc": 4}) {
			t.Errorf("after the next one %v are checked", seen)
		}
		c.wantStates("nobody is out", map[controlplanev1.ProxyStatus_State]int{ownership.Available: 4})
		settle(inline)(2)
		if seen := round(always(good)); !maps.Equal(seen, map[string]int{inline: 2}) {
			t.Errorf("after a new version of what stands in a list %v are checked", seen)
		}
	}, func(o *pool.Options) { o.Secrets = v })
}
