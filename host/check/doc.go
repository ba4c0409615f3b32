// Package check finds out which targets are well: endpoints of services, and
// whatever else a plane has checked by probe plugins.
//
// [Broker] keeps one task per target in the store. A [Checker], inside the host,
// claims tasks, has probe plugins make the checks and reports what they saw;
// checkers elsewhere register, do the same through host/api, and come first.
// [Reduce] and [Judge] are pure: the first makes of each observation what is known
// of one target, the second decides for a whole scope (a service) who leaves and
// who comes back. The broker writes what they decide, and the [Plane] takes the
// target out of, or back into, what its clients see.
//
// What it promises:
//
//   - A task is held by one checker at a time, by a lease with a token that is new
//     at each claim. A lease that runs out is given away again; what its former
//     holder reports later is refused and changes nothing.
//   - What says nothing about the target changes nobody's health: an inconclusive
//     check, a plugin that is away, a checker that died.
//   - One checker's word alone makes nobody unhealthy while another one can be
//     asked. Nobody leaves while more than half of a scope fails, and never is more
//     than half of a scope out.
//   - Tasks and health are store records under the store's clock, so that all hosts
//     agree and a restart goes on where it was.
//
// All writes are soft: what a crash loses, the next checks find out again.
package check
