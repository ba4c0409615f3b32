package donaof

import (
	"context"
	"sync"

	of "github.com/open-feature/go-sdk/openfeature"

	"github.com/dodona-project/dodona/sdk/dona"
)

// watch tells OpenFeature what happens to the flags, from Init to Shutdown.
type watch struct {
	mu     sync.Mutex
	cancel context.CancelFunc // nil while nothing is told
	ended  chan struct{}
}

// Init waits until the flags are there, without a bound: use InitWithContext, as
// OpenFeature does, for one.
func (p *Provider) Init(c of.EvaluationContext) error {
	return p.InitWithContext(context.Background(), c)
}

// InitWithContext waits until the flags are there or ctx ends.
func (p *Provider) InitWithContext(ctx context.Context, _ of.EvaluationContext) error {
	if err := p.service.Ready(ctx); err != nil {
		return &of.ProviderInitError{ErrorCode: of.ProviderNotReadyCode, Message: err.Error()}
	}
	w := &p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel != nil {
		return nil
	}
	var told context.Context
	told, w.cancel = context.WithCancel(context.Background())
	w.ended = make(chan struct{})
	go p.tell(told, w.ended, p.service.Status())
	return nil
}

// Shutdown ends the events.
func (p *Provider) Shutdown() {
	w := &p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
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
// PROVIDER_STALE when no host confirms it, and PROVIDER_READY when one does again.
func (p *Provider) EventChannel() <-chan of.Event { return p.events }

func (p *Provider) tell(ctx context.Context, ended chan<- struct{}, was dona.Status) {
	defer close(ended)
	send := func(kind of.EventType, why string) {
		select {
		case p.events <- of.Event{ProviderName: p.Metadata().Name, EventType: kind, ProviderEventDetails: of.ProviderEventDetails{Message: why}}:
		case <-ctx.Done():
		}
	}
	for {
		changed := p.service.Changed()
		now := p.service.Status()
		if now.Version != was.Version {
			send(of.ProviderConfigChange, "")
		}
		switch {
		case now.Stale && !was.Stale:
			why := "no host confirms the flags"
			if now.Problem != nil {
				why = now.Problem.Error()
			}
			send(of.ProviderStale, why)
		case was.Stale && !now.Stale:
			send(of.ProviderReady, "")
		}
		was = now
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
