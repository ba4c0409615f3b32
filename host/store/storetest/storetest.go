// Package storetest is the behaviour that every store has to show. Each backend
// runs it from a test of its own with [Run], on the real thing and never on an
// imitation; what only one backend promises is tested beside that backend.
//
// It has three parts: tables of the contract, a random state machine against a
// model in memory, and histories of concurrent clients that have to be
// linearizable. [History] is also for tests that kill the store's process
// meanwhile.
package storetest

import (
	"testing"

	"github.com/dodona-project/dodona/host/store"
)

// A Factory returns a store without anything in it. It arranges with t.Cleanup
// for the end of it; a test may also close it.
type Factory func(t testing.TB) store.Store

// Run tests the stores that open makes.
func Run(t *testing.T, open Factory) {
	t.Run("contract", func(t *testing.T) { runContract(t, open) })
	t.Run("model", func(t *testing.T) { runModel(t, open) })
	t.Run("history", func(t *testing.T) { runHistory(t, open) })
}
