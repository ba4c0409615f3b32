package embedded

import "github.com/dodona-project/dodona/host/store"

// disk is where the state is kept across restarts.
type disk interface {
	// write makes target durable in one step. changed names at least all that
	// differs from the last target written. It returns the logs whose entries
	// up to there can be read from the disk from now on. store.ErrFull and
	// store.ErrReadOnly mean that nothing was written and that it can be tried
	// again; after any other error nothing about the disk is known.
	write(target *state, changed *dirty, reserved uint64, now int64) (map[string]logHead, error)
	readLog(log string, from, to uint64, limit int) ([]store.LogEntry, error)
	probe() error // whether the disk takes writes
	close() error
}

// noDisk keeps nothing.
type noDisk struct{}

func (noDisk) write(*state, *dirty, uint64, int64) (map[string]logHead, error) { return nil, nil }
func (noDisk) readLog(string, uint64, uint64, int) ([]store.LogEntry, error)   { return nil, nil }
func (noDisk) probe() error                                                    { return nil }
func (noDisk) close() error                                                    { return nil }
