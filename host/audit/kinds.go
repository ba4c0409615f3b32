package audit

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dodona-project/dodona/host/limits"
)

var (
	flagKeys     = "flag rollout_percent rollout_variant disabled rules rules_sha256"
	rolloutKeys  = "id step percent from_percent requests errors missing check value bound cause verified reason config_version canary stable plugin plugin_version plugin_digest detail"
	endpointKeys = "endpoint_id variant region reason"
	pluginKeys   = "plugin_kind name version digest generation reason exit stderr_sha256"
)

// kinds is every kind of entry and the keys its detail may have. A kind or key
// without a place here is refused, so that nothing unforeseen (a token, a raw
// unit) slips into a log that is never rewritten.
var kinds = func() map[string][]string {
	m := map[string][]string{}
	for kind, keys := range map[string]string{
		"flag.set":           flagKeys,
		"flag.delete":        flagKeys,
		"flag.exposure":      "flag variant reason config_version count others others_count",
		"rollout.start":      "id canary stable steps step_seconds max_error_percent min_requests queries supersede retry",
		"rollout.step":       rolloutKeys,
		"rollout.hold":       rolloutKeys,
		"rollout.resume":     rolloutKeys,
		"rollout.pause":      rolloutKeys,
		"rollout.promote":    rolloutKeys,
		"rollout.rollback":   rolloutKeys,
		"rollout.abort":      rolloutKeys,
		"rollout.supersede":  rolloutKeys,
		"quarantine.lift":    "variant reason",
		"policy.set":         "changed allowed_regions rule_id strategy probe",
		"endpoint.register":  endpointKeys,
		"endpoint.gone":      endpointKeys,
		"call.decision":      "decision allowed_regions endpoint_id endpoint_region rule_id config_version count note",
		"stats.gap":          "reporter_id missing",
		"plugin.start":       pluginKeys,
		"plugin.crash":       pluginKeys,
		"plugin.quarantine":  pluginKeys,
		"plugin.reload":      pluginKeys,
		"plugin.reject":      pluginKeys,
		"plugin.reset":       pluginKeys,
		"clock.step":         "delta_ms",
		"log.recovered":      "dropped",
		"store.adopt":        "reason found generation",
		"store.replicas":     "from to",
		"attestation.issued": "first_seq last_seq",
		"artifact.register":  "id version digest",
		"release.create":     "id number artifact_id variant",
		"deployment.start":   "id release_id strategy state reason",
		"deployment.end":     "id release_id strategy state reason",
		"ingress.set":        "host path_prefix allowed_regions",
		"ingress.delete":     "host path_prefix allowed_regions",
		"shared.set":         "consumers allowed_regions",
		"shared.delete":      "consumers allowed_regions",
		"svid.issue":         "spiffe_id serial not_after_ms via asked",
		"token.create":       "token_id uses spiffe_id not_after_ms",
		"token.revoke":       "token_id",
		"ca.rollover":        "step key_id",
		"pool.config":        "revision",
		"pool.routing":       "name enabled",
		"pool.upstream":      "name enabled",
		"pool.import":        "added rejected",
		"pool.drain":         "proxy_id worker_id assignment_epoch state",
		"pool.extract":       "extraction_id count proxy_ids",
	} {
		m[kind] = strings.Fields(keys)
	}
	return m
}()

func check(chain string, e Entry) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s in chain %s: %s", ErrRefused, limits.Quote(e.Kind), limits.Quote(chain), fmt.Sprintf(format, args...))
	}
	keys, known := kinds[e.Kind]
	if !known {
		return refuse("unknown kind")
	}
	if chain != HostChain && chain != PoolChain && limits.Service(chain) != nil {
		return refuse("the chain is neither a service nor @host or @pool")
	}
	if e.Actor == "" || !utf8.ValidString(e.Actor) {
		return refuse("the actor is empty or not valid UTF-8")
	}
	for key, value := range e.Detail {
		if !slices.Contains(keys, key) {
			return refuse("detail %s is not one of %s", limits.Quote(key), strings.Join(keys, ", "))
		}
		if !utf8.ValidString(value) {
			return refuse("detail %s is not valid UTF-8", key)
		}
	}
	for _, ev := range e.Evidence {
		if len(ev.Data) > MaxEvidence {
			return refuse("evidence %s has %d bytes: allowed are at most %d", limits.Quote(ev.Kind), len(ev.Data), MaxEvidence)
		}
		if ev.Kind == "" || !utf8.ValidString(ev.Kind) {
			return refuse("evidence without a kind in valid UTF-8")
		}
	}
	return nil
}
