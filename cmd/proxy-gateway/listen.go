package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

// door is the address for clients. Nobody listens there until it is opened: a client
// that knows several gateways goes to the next one when it is refused, and not when it is
// told that this one has nothing to go by yet. It is safe for concurrent use.
type door struct {
	address net.Addr

	mu       sync.Mutex
	listener net.Listener // nil while nobody listens
	shut     bool         // for good
}

var errShut = errors.New("the gateway takes no clients any more")

// newDoor finds out whether the address can be had. With port 0, which nobody can know
// before, it is listened on from now on.
func newDoor(address string) (*door, error) {
	l, err := listen(address)
	if err != nil {
		return nil, err
	}
	d := &door{address: l.Addr(), listener: l}
	if _, port, err := net.SplitHostPort(address); err == nil && port != "0" {
		d.listener = nil
		return d, l.Close()
	}
	return d, nil
}

// open listens.
func (d *door) open() (net.Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return nil, errShut
	}
	if d.listener == nil {
		l, err := listen(d.address.String())
		if err != nil {
			return nil, err
		}
		d.listener = l
	}
	return d.listener, nil
}

// close has nobody listen any more, now or later.
func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	if d.listener != nil {
		_ = d.listener.Close()
	}
}

// listen listens for clients. Whatever is idle has a limit of its own, so that probes of
// TCP would only cost, and several paths are not for a proxy's clients.
func listen(address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

// serve takes clients from the first valid snapshot on.
func (g *gateway) serve(ctx context.Context) error {
	select {
	case <-g.started:
	case <-ctx.Done():
		return nil
	}
	l, err := g.door.open()
	switch {
	case errors.Is(err, errShut):
		return nil
	case err != nil:
		return err
	}
	g.listening.Store(true)
	g.log.Info("listening", "clients", l.Addr(), "control_plane", g.settings.ControlPlane, "worker", g.settings.WorkerID)
	return g.server.Serve(l)
}
