// Package snapshot publishes versioned snapshots to the watchers of both planes:
// it notices that a name's head record moved, has the plane build the snapshot,
// encodes it once and hands the same bytes to everyone.
//
// The data flow, in order:
//
//	store notice ─▶ feed (one goroutine a name): Source.Peek, coalesce
//	             ─▶ Source.Build in a View ─▶ encode once ─▶ atomic pointer
//	             ─▶ Subscription.Next (newest wins; Source.Delta once a base)
//	             ─▶ Serve ─▶ Codec ─▶ wire
//
// host/api drives it: one [Feeds] per plane and process, [Feeds.Subscribe] and
// [Feeds.Serve] in the handler of a watch, [Codec] in the server's options. The
// plane supplies a [Source].
//
// What it promises: a watcher sees whole snapshots only, in rising order of their
// versions, always the newest that is published when it is ready for one, and
// after quiet the newest there is. A slow watcher delays itself alone, a flapping
// name delays no other, and no lock is held while anything is sent. What a
// watcher costs does not grow with the size of the snapshot. A watcher that takes
// deltas gets, in one frame, the difference to the frame before; the whole when
// that is shorter or the version before is no longer kept.
package snapshot
