package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/store"
)

// standByLook is how often a host that waits looks whether its store can be used.
const standByLook = 100 * time.Millisecond

// standByDrain is how long calls have to end when the wait is over.
const standByDrain = time.Second

// ask finds out from the store what the host has to know before it can serve. What was
// found stays when the rest fails, so that it can be called again.
func (h *Host) ask(ctx context.Context) error {
	if h.shared() { // nothing is written to one that cannot be used
		if err := h.store.View(ctx, func(store.ReadTx) error { return nil }); err != nil {
			return err
		}
	}
	if err := h.claim(ctx); err != nil {
		return err
	}
	if h.signer == nil {
		if err := h.openSigner(ctx); err != nil {
			return err
		}
	}
	if err := h.openIssuer(ctx, ""); err != nil {
		return err
	}
	if err := h.issueIdentity(ctx); err != nil {
		return err
	}
	return h.findLost(ctx)
}

// passes reports whether an error of the store at the start is waited out: a shared one
// may be away, slow, full or foreign, and be none of it later.
func (h *Host) passes(err error) bool {
	if !h.shared() {
		return false
	}
	for _, passing := range []error{store.ErrUnavailable, store.ErrForeign, store.ErrUnknown, store.ErrFull, context.DeadlineExceeded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// patiently does what asks the store until it is done, fails for good, or ctx ends.
func (h *Host) patiently(ctx context.Context, do func(ctx context.Context) error) error {
	for told := false; ; told = true {
		err := do(ctx)
		if err == nil || !h.passes(err) || ctx.Err() != nil {
			return err
		}
		if !told {
			h.log.Warn("waiting for the store", "reason", err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(standByLook):
		}
	}
}

// waitFor keeps why the host waits for its store, and logs the first reason.
func (h *Host) waitFor(err error) {
	text := err.Error()
	if h.waits.Swap(&text) == nil {
		h.log.Warn("waiting for the store", "reason", text)
	}
}

// waiting is what is wrong with a host that waits for its store, beside the state of that.
func (h *Host) waiting() []string {
	lines := h.alarms.list()
	if why := h.waits.Load(); why != nil && h.store.Info().State == "ready" {
		lines = append(lines, "the host waits for its store: "+*why)
	}
	return lines
}

// standBy serves what needs no store until the store can be used: an operator sees
// what it waits for, and can adopt a foreign one, also when no host has it open. It
// returns false when ctx has ended or a server failed.
func (h *Host) standBy(ctx context.Context) (goOn bool, err error) {
	// The servers close what they serve on: what comes after them goes on with another
	// handle of it, so that nobody else can take the address meanwhile.
	grpcAfter, err := again(h.grpcListener)
	if err != nil {
		return false, err
	}
	httpAfter, err := again(h.httpListener)
	if err != nil {
		_ = grpcAfter.Close()
		return false, err
	}
	defer func() {
		if !goOn {
			_ = grpcAfter.Close()
			_ = httpAfter.Close()
		}
	}()
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
	for ctx.Err() == nil {
		err := h.ask(ctx)
		if err == nil {
			break
		}
		if !h.passes(err) && ctx.Err() == nil {
			end()
			h.withdraw()
			return false, err
		}
		h.waitFor(err)
		select {
		case <-ctx.Done():
		case err := <-failed:
			end()
			return false, fmt.Errorf("serve while waiting for the store: %w", err)
		case <-tick.C:
		}
	}
	end()
	if ctx.Err() != nil {
		h.withdraw()
		return false, nil
	}
	h.waits.Store(nil)
	h.grpcListener, h.httpListener = grpcAfter, httpAfter
	return true, nil
}

// again is another handle of a TCP listener: closing the one leaves the other open.
func again(l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%T is no TCP listener", l)
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return net.FileListener(file)
}
