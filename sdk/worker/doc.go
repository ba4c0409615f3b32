// Package worker is the client of the egress plane for whoever leads requests through
// upstream proxies; the gateway is one. It keeps a session with a control-plane host, has
// the proxies that this worker owns as a [View] that is read by one atomic load, picks
// among them, and reports what they are used for.
//
// The data goes round like this: a session registers and watches snapshots; each one is
// validated, compiled into a View, swapped in, and only then acknowledged. A request finds
// its [Routing] in the View and picks: that reserves a place on a proxy and gives a
// [Lease], to be activated when it is used and released when it is not any more. Places
// taken are reported every few seconds, outcomes in batches.
//
// Hosts may be away. What a View allows ends by this process's monotonic clock: past the
// snapshot's validity nothing is picked, past the age at which it is stale nothing is to
// be accepted, and a safety margin later what still runs is to be closed; see [State].
// Nothing is written to disk, and nobody else is asked instead.
package worker
