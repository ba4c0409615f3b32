// Package session keeps the registrations of clients: leases that last while
// heartbeats come, and the fences that make a report count once. It serves every
// plane; what depends on a lease (an endpoint, a worker) is written by the plane
// itself, through the [Plane] interface, in the same transaction.
//
// host/api drives it: one [Registry] per plane, [Registry.Start] before the
// listeners, [Registry.Run] beside them, one [Stream] per client stream.
//
// What it promises:
//
//   - The newest registration of an id wins. What an older stream does later,
//     its end included, changes nothing, and its holder is told.
//   - A lease ends with its stream, or after three missed heartbeats; one whose
//     stream the host itself ended lasts three more.
//   - No mass expiry: when more than a fifth (and at least five) of a scope's
//     leases would end within one heartbeat interval, or the host itself was
//     paused, removals freeze for one lease time. After a start nothing of the
//     scopes that this host has served is removed until nine of ten of its leases
//     are back, at most 10 s.
//     A client that says goodbye is believed at any time.
//   - Of several hosts on one store each ends the leases that it serves. Those of a
//     host that fell silent wait for four lease times, and are then ended by any.
//   - Leases, freezes and what they are judged by are store records under the
//     store's clock, so that all hosts come to the same judgement.
//
// All writes are soft: what a crash loses, heartbeats bring back.
package session
