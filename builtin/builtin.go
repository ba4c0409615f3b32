// Package builtin lists the plugins that are part of the host program. They run
// as processes like all others: the program starts itself again under a hidden
// argument, and [Dispatch], the first statement of its main, turns that process
// into the plugin.
package builtin

import (
	"context"

	"github.com/dodona-project/dodona/builtin/analysis/prometheus"
	"github.com/dodona-project/dodona/builtin/analysis/sequential"
	"github.com/dodona-project/dodona/builtin/analysis/webhook"
	"github.com/dodona-project/dodona/builtin/probe/grpc"
	"github.com/dodona-project/dodona/builtin/probe/http"
	"github.com/dodona-project/dodona/builtin/probe/proxy"
	"github.com/dodona-project/dodona/builtin/probe/tcp"
	"github.com/dodona-project/dodona/builtin/probe/tls"
	"github.com/dodona-project/dodona/builtin/strategy/consistenthash"
	"github.com/dodona-project/dodona/builtin/strategy/leastconnections"
	"github.com/dodona-project/dodona/builtin/strategy/peakewma"
	"github.com/dodona-project/dodona/builtin/strategy/priority"
	"github.com/dodona-project/dodona/builtin/strategy/random"
	"github.com/dodona-project/dodona/builtin/strategy/roundrobin"
	"github.com/dodona-project/dodona/plugins"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// version is that of every built-in: they are released with the host.
const version = "0.1.0"

// ProbeAllow is the environment variable that lets the built-in probes check
// addresses that they refuse by default: loopback, link-local, metadata.
const ProbeAllow = "PROBE_ALLOW"

// probeCalls is how many checks a built-in probe makes at once.
const probeCalls = 256

// All returns the built-in plugins.
func All() []*plugin.Plugin {
	return []*plugin.Plugin{
		plugin.Strategy(roundrobin.Name, version, roundrobin.Compile,
			plugin.Summary("candidates in turn, by weight")),
		plugin.StrategyOf(leastconnections.Name, version, leastconnections.Strategy{},
			plugin.Summary("the fewest calls in flight among a few, drawn by weight")),
		plugin.Strategy(random.Name, version, random.Compile,
			plugin.Summary("one drawn at random, by weight")),
		plugin.StrategyOf(priority.Name, version, priority.Strategy{},
			plugin.Summary("groups in tiers: the next one only when nobody of the one before is left")),
		plugin.StrategyOf(consistenthash.Name, version, consistenthash.Strategy{},
			plugin.Summary("what belongs together to the same candidate, with bounded loads")),
		plugin.StrategyOf(peakewma.Name, version, peakewma.Strategy{},
			plugin.Summary("the least latency times calls in flight among a few, drawn by weight")),
		plugin.AnalysisOf("prometheus", version, prometheusAnalysis{},
			plugin.Summary("one instant query against a Prometheus-compatible API")),
		plugin.AnalysisOf(sequential.Name, version, sequential.Analysis{}, plugin.OwnVerdict(),
			plugin.Summary("a test of the error rate that may be looked at at every tick")),
		plugin.AnalysisOf(webhook.Name, version, webhook.Analysis{}, plugin.OwnVerdict(),
			plugin.Summary("an HTTP endpoint of one's own that measures or judges")),
		plugin.ProbeOf(http.Name, version, http.Probe{}, plugin.MaxConcurrency(probeCalls),
			plugin.Summary("a request that has to be answered with a good status")),
		plugin.ProbeOf(tcp.Name, version, tcp.Probe{}, plugin.MaxConcurrency(probeCalls),
			plugin.Summary("a connection that has to be taken")),
		plugin.ProbeOf(grpc.Name, version, grpc.Probe{}, plugin.MaxConcurrency(probeCalls),
			plugin.Summary("grpc.health.v1 has to say SERVING")),
		plugin.ProbeOf(tls.Name, version, tls.Probe{}, plugin.MaxConcurrency(probeCalls),
			plugin.Summary("a TLS handshake with a certificate that does not expire soon")),
		plugin.ProbeOf(proxy.Name, version, proxy.Probe{}, plugin.MaxConcurrency(probeCalls),
			plugin.Summary("an upstream proxy's handshake, exit address and targets")),
	}
}

// Dispatch turns this process into a built-in plugin or the host's watchdog
// when it was started as one, and then never returns. It is the first statement
// of main.
func Dispatch() { plugins.Dispatch(All()) }

// prometheusAnalysis gives the provider's function what else a plugin has.
type prometheusAnalysis struct{}

func (prometheusAnalysis) Configure(_ context.Context, c prometheus.Config) error { return c.Check() }

func (prometheusAnalysis) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return prometheus.Evaluate(ctx, req)
}
