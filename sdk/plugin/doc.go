// Package plugin is for authors of Dodona plugins: it turns one function into
// a whole plugin process.
//
//	func main() {
//		plugin.Serve(plugin.Analysis("always", "0.1.0", evaluate))
//	}
//
//	func evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
//		return &pluginv1.EvaluateReply{Value: 0.2, HasValue: true, Detail: "p99 0.2 s"}, nil
//	}
//
// The host starts the process, speaks gRPC with it over a private unix socket
// and ends it. [Serve] does all of that on the plugin's side: the handshake,
// mutual TLS, message limits, recovery from panics, draining, the end of the
// process when the host is gone, and logs. Authors need to see neither
// go-plugin nor gRPC.
//
// What a plugin can do beyond its one function is found by what the value given
// to [AnalysisOf], [StrategyOf] or [ProbeOf] has:
//
//   - Configure(ctx, T) error: the plugin takes a configuration of struct type
//     T. The JSON Schema of T is what operators' configurations are checked
//     against. During a call, [Config] returns that of the instance called.
//   - Health(ctx) error: asked every few seconds; an error takes the plugin out
//     of use until it is nil again.
//   - Drain(ctx) error: called once before the process ends.
//
// Calls run concurrently, at most [MaxConcurrency] at once.
package plugin
