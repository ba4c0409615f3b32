// Package plugintest is the conformance suite of plugins: it starts a plugin as
// the host does, and finds out whether it keeps the promises that the host and
// its operators rely on.
//
// Authors call it from a test of their plugin, and "dona plugin test" calls it for
// a built file:
//
//	func TestConformance(t *testing.T) {
//		plugintest.Run(t, plugintest.Command(plugintest.Build(t, ".")))
//	}
//
// A [Target] says what is tested: a program, or a plugin in this process. [Test]
// runs all [Checks] against it, each with a process of its own, and returns a
// [Report]. Every failure says what was seen and what to do.
//
// A plugin that asks others (a metrics server, an endpoint) meets servers of the
// suite: a probe's endpoint_address, a query's prometheus_url and the text
// ${TARGET} anywhere in the configuration are the host:port of one on 127.0.0.1. It
// answers every request with status 200 and the body "ok", or never, where a check
// is about waiting.
//
// The suite opens listeners on 127.0.0.1 only, and leaves no process, file or
// socket behind.
package plugintest
