// Package plugins is the host's side of the plugin boundary: it runs plugins as
// processes, keeps them running, and carries calls to them, so that no plugin
// can hurt the host by crashing, hanging, flooding or lying.
//
// The way of a call, from the outside in:
//
//	strategy.Facade, analysis.Facade,
//	probe.Facade                       check the request's plugin and every answer
//	Host.Call                          is it ready? deadline, concurrency, metrics
//	supervisor                         one per plugin: start, restart, quarantine
//	generation                         one process that was proven to work
//	runner.Process                     pipes, process group, handshake
//	watchdog                           ends everything when the host is killed
//
// A start is a transaction: spawn, handshake, Describe, Configure, first health,
// and only then does the new generation take calls. Nothing half-started is
// ever used. While a plugin is away, calls fail at once with [ErrAway] and the
// caller does without; [Host.Watch] says when to look again.
//
// Plugins that are not built in are found by a [Catalog], which is asked before
// every start and while the host runs: package external is one over a directory.
//
// The host program runs [Dispatch] as the first statement of main: built-in
// plugins and the watchdog are the same program under another first argument.
package plugins
