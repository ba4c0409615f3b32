package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/store"
)

// standByLook is how often a host that waits looks whether its store can be used.
const standByLook = 100 * time.Millisecond

// standByDrain is how long calls have to end when the wait is over.
const standByDrain = time.Second

// mustWait returns why a shared store cannot be used now and nil when it can, or when
// waiting is of no use.
func (h *Host) mustWait(ctx context.Context) error {
	if !h.shared() {
		return nil
	}
	err := h.store.View(ctx, func(store.ReadTx) error { return nil })
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrForeign) {
		return err
	}
	return nil
}

// standBy serves what needs no store until the store can be used: an operator sees
// what it waits for, and can adopt a foreign one, also when no host has it open. It
// returns false when ctx has ended or a server failed.
func (h *Host) standBy(ctx context.Context) (goOn bool, err error) {
	h.log.Warn("waiting for the store", "reason", h.waits)
	failed := make(chan error, 2)
	end := func() { _ = h.grpcListener.Close(); _ = h.httpListener.Close() }
	if h.secured() && h.identity == nil {
		h.log.Warn("until then nobody can be let in: this host issues its identity to itself, and the store has to know; with identity.dir it has one at once")
	} else {
		server, err := api.New(h.edge())
		if err != nil {
			return false, err
		}
		var serving sync.WaitGroup
		serving.Go(func() { failed <- server.Serve(h.grpcListener) })
		serving.Go(func() { failed <- h.serveHTTP(h.httpListener) })
		end = func() {
			drain(server, standByDrain) // an operator's call that ended the wait is under way
			_ = h.http.Close()
			serving.Wait()
		}
	}
	if err := h.announce(); err != nil {
		end()
		return false, err
	}
	tick := time.NewTicker(standByLook)
	defer tick.Stop()
	for ctx.Err() == nil && h.mustWait(ctx) != nil {
		select {
		case <-ctx.Done():
		case err := <-failed:
			end()
			return false, fmt.Errorf("serve while waiting for the store: %w", err)
		case <-tick.C:
		}
	}
	// The servers take their listeners with them; whoever asked is back in a moment.
	h.config.GRPCListen, h.config.HTTPListen = h.grpcListener.Addr().String(), h.httpListener.Addr().String()
	end()
	if ctx.Err() != nil {
		_ = os.Remove(filepath.Join(h.config.DataDir, "host.json"))
		return false, nil
	}
	return true, h.listen()
}
