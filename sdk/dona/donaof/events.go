package donaof

import (
	"context"
	"errors"
	"sync"

	of "github.com/open-feature/go-sdk/openfeature"

	"github.com/dodona-project/dodona/sdk/dona"
)

// watch tells OpenFeature what happens to the flags, from Init to Shutdown.
type watch struct {
	mu        sync.Mutex
	shutdowns int                // so far: one during an Init has the last word
	cancel    context.CancelFunc // nil while nothing is told
	ended     chan struct{}
}

// Init waits until the flags are there, without a bound: use InitWithContext, as
// OpenFeature does, for one.
func (p *Provider) Init(c of.EvaluationContext) error {
	return p.InitWithContext(context.Background(), c)
}

// InitWithContext waits until the flags are there or ctx ends. In the latter case
// the provider goes on to wait, and tells when it is ready, until Shutdown. An error
// with PROVIDER_FATAL says that this is in vain.
func (p *Provider) InitWithContext(ctx context.Context, _ of.EvaluationContext) error {
	w := &p.watch
	w.mu.Lock()
	shutdowns := w.shutdowns
	w.mu.Unlock()
	err := p.service.Ready(ctx)
	if err != nil && !errors.Is(err, dona.ErrNoData) {
		return &of.ProviderInitError{ErrorCode: of.ProviderFatalCode, Message: err.Error()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel == nil && w.shutdowns == shutdowns {
		var told context.Context
		told, w.cancel = context.WithCancel(context.Background())
		w.ended = make(chan struct{})
		go p.tell(told, w.ended, err == nil, p.service.Status().Version)
	}
	if err != nil {
		return &of.ProviderInitError{ErrorCode: of.ProviderNotReadyCode, Message: err.Error()}
	}
	return nil
}

// Shutdown ends the events.
func (p *Provider) Shutdown() {
	w := &p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shutdowns++
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.cancel = nil
	}
}

// ShutdownWithContext ends the events.
func (p *Provider) ShutdownWithContext(context.Context) error {
	p.Shutdown()
	return nil
}

// EventChannel gives PROVIDER_CONFIGURATION_CHANGED for each new snapshot,
// PROVIDER_STALE when no host confirms it, and PROVIDER_READY when one does again, or
// for the first time after an Init that did not wait for it.
func (p *Provider) EventChannel() <-chan of.Event { return p.events }

// tell sends events from Init on, which has seen version, or no flags at all.
func (p *Provider) tell(ctx context.Context, ended chan<- struct{}, ready bool, version uint64) {
	defer close(ended)
	send := func(kind of.EventType, why string) {
		select {
		case p.events <- of.Event{ProviderName: p.Metadata().Name, EventType: kind, ProviderEventDetails: of.ProviderEventDetails{Message: why}}:
		case <-ctx.Done():
		}
	}
	stale := false
	// OpenFeature calls the provider ready when Init has ended, and may do so after it
	// has heard that the flags are stale: it is told again with the next attempt.
	again := ready && p.service.Status().Stale
	for first := true; ; first = false {
		changed := p.service.Changed()
		now := p.service.Status()
		_, err := p.service.Endpoints()
		switch {
		case !ready && err == nil:
			ready = true
			send(of.ProviderReady, "")
		case now.Version != version:
			send(of.ProviderConfigChange, "")
		}
		switch {
		case !ready:
		case now.Stale && (!stale || again):
			why := "no host confirms the flags"
			if now.Problem != nil {
				why = now.Problem.Error()
			}
			send(of.ProviderStale, why)
		case stale && !now.Stale:
			send(of.ProviderReady, "")
		}
		version, stale, again = now.Version, now.Stale, again && first
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
