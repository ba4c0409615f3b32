package dona

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/internal/backoff"
	"github.com/dodona-project/dodona/sdk/dona/internal/cache"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// firstFrame bounds how long a host may take to answer a watch.
const firstFrame = 10 * time.Second

// held is the newest snapshot that was applied.
type held struct {
	snapshot *mirror.Snapshot // nil = none
	where    string           // a host, or a file
}

func (h *held) version() uint64 {
	if h.snapshot == nil {
		return 0
	}
	return h.snapshot.Version()
}

// errFull asks for the whole snapshot again, whatever is held.
var errFull = errors.New("snapshot is damaged")

// watch keeps the snapshot up to date until ctx ends.
func (s *Service) watch(ctx context.Context) {
	s.startFromDisk()
	if s.client.cache != nil {
		s.client.work.Go(func() { s.keep(ctx) })
	}
	retry := backoff.Backoff{Random: s.client.opts.random}
	full := false
	for try := 0; ; try++ {
		h := s.client.pickHost(try)
		err := s.stream(ctx, h, full, func() {
			retry.Applied()
			s.client.worked(h)
			try = 0
			full = false
		})
		if ctx.Err() != nil {
			return
		}
		full = errors.Is(err, errFull)
		s.lost(fmt.Errorf("host %s: %w", h.address, err))
		s.client.opts.log.Info("watch ended", "service", s.name, "host", h.address, "error", err)
		// A host that sent damage is there and can send the whole snapshot soon.
		if !sleep(ctx, retry.Next(full || len(s.client.hosts) > 1)) {
			return
		}
	}
}

// stream runs one watch until it ends and calls applied for each frame that was
// good.
func (s *Service) stream(ctx context.Context, h *host, full bool, applied func()) error {
	api, err := h.api(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(firstFrame, func() { cancel(fmt.Errorf("no answer within %v", firstFrame)) })
	defer late.Stop()

	req := &donav1.WatchConfigRequest{
		Service:       s.name,
		ClientId:      s.client.reporter.ID(),
		CallerService: s.client.opts.callerService,
		CallerRegion:  s.client.opts.callerRegion,
		DigestFormat:  digest.Format,
		AcceptDelta:   true,
	}
	if s.held.version() > 0 && !full {
		sum := s.held.snapshot.Checksum()
		req.LastVersion, req.LastChecksum = s.held.version(), sum[:]
	}
	s.received = nil
	stream, err := api.WatchConfig(ctx, req)
	for err == nil {
		var frame *donav1.ConfigSnapshot
		if frame, err = stream.Recv(); err != nil {
			break
		}
		late.Stop()
		used, err := s.take(frame, h)
		if err != nil {
			return err
		}
		if used {
			applied()
		}
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the host ended the stream")
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// take applies one frame and reports whether it is in use. An error ends the
// stream; a snapshot that this client cannot use does not, as the next version may
// be fine.
func (s *Service) take(f *donav1.ConfigSnapshot, h *host) (used bool, err error) {
	version := f.GetVersion()
	reject := func(err error) error {
		s.client.reporter.Rejected(s.name, version, err.Error())
		s.client.opts.log.Error("snapshot rejected", "service", s.name, "version", version, "host", h.address, "error", err)
		return err
	}
	damaged := func(err error) error { return reject(fmt.Errorf("%w: %w", errFull, err)) }
	if version < s.held.version() {
		return false, reject(fmt.Errorf("version %d is lower than %d held from %s: this host is behind, or lost or rewound its data",
			version, s.held.version(), s.held.where))
	}
	var next *mirror.Snapshot
	switch f.GetForm() {
	case donav1.ConfigSnapshot_FORM_UNCHANGED:
		if s.held.snapshot == nil || version != s.held.version() ||
			len(f.GetChecksum()) > 0 && !bytes.Equal(f.GetChecksum(), s.held.snapshot.Config().GetChecksum()) {
			return false, damaged(fmt.Errorf("version %d is called unchanged, held is %d", version, s.held.version()))
		}
		s.received = s.held.snapshot
		s.confirmed(h)
		return true, nil
	case donav1.ConfigSnapshot_FORM_DELTA:
		if s.received == nil {
			return false, damaged(fmt.Errorf("delta to version %d is the first frame", version))
		}
		if next, err = s.received.Apply(f); err != nil {
			return false, damaged(err)
		}
	case donav1.ConfigSnapshot_FORM_UNSPECIFIED, donav1.ConfigSnapshot_FORM_FULL:
		if f.GetService() != s.name {
			return false, reject(fmt.Errorf("snapshot is of service %.80q, asked was %s", f.GetService(), s.name))
		}
		if next, err = mirror.Full(f); err != nil {
			return false, damaged(err)
		}
	default:
		return false, damaged(fmt.Errorf("form %s is not one that this client knows", f.GetForm()))
	}
	if held := s.held.snapshot; held != nil && version == held.Version() && version > 0 {
		if next.Checksum() != held.Checksum() {
			return false, reject(fmt.Errorf("version %d has checksum %x, held from %s is %x: two hosts disagree about one version",
				version, next.Checksum(), s.held.where, held.Checksum()))
		}
		s.received = held
		s.confirmed(h)
		return true, nil
	}
	// What was received is what the next delta builds on, usable here or not.
	s.received = next
	program, err := decide.Compile(next.Config(), &s.loads)
	if err != nil {
		s.problem(h, reject(fmt.Errorf("version %d: %w", version, err)))
		return false, nil
	}
	s.held = held{snapshot: next, where: "host " + h.address}
	s.changed.Store(&watchStatus{host: h.address})
	s.current.Store(&state{program: program})
	s.tell()
	s.open(true)
	s.client.reporter.Applied(s.name, version)
	s.unsaved.Store(next)
	select {
	case s.save <- struct{}{}:
	default:
	}
	return true, nil
}

// saveEvery is the least time between two writes of a service's snapshot to disk:
// a write costs what the snapshot weighs, not what changed.
const saveEvery = time.Second

// keep writes the newest snapshot to disk, the first at once and the last when ctx
// ends, beside the watch: a slow disk delays no decision.
func (s *Service) keep(ctx context.Context) {
	save := func() {
		next := s.unsaved.Swap(nil)
		if next == nil {
			return
		}
		if err := s.client.cache.Save(next.Config(), time.Now()); err != nil {
			s.client.opts.log.Warn("snapshot is not kept on disk", "service", s.name, "error", err)
		}
	}
	defer save()
	for {
		select {
		case <-s.save:
		case <-ctx.Done():
			return
		}
		save()
		if !sleep(ctx, saveEvery) {
			return
		}
	}
}

// confirmed notes that a host holds what we hold.
func (s *Service) confirmed(h *host) {
	s.changed.Store(&watchStatus{host: h.address})
	s.current.Store(&state{program: s.current.Load().program})
	s.tell()
	s.open(true)
	s.client.reporter.Applied(s.name, s.held.version())
}

// problem notes a snapshot that was refused on a stream that goes on.
func (s *Service) problem(h *host, err error) {
	now := *s.changed.Load()
	now.host, now.problem = h.address, err
	s.changed.Store(&now)
}

// lost notes that no host confirms the snapshot any more.
func (s *Service) lost(err error) {
	now := *s.changed.Load()
	now.host, now.problem = "", err
	if st := s.current.Load(); st != nil && !st.stale {
		now.staleSince = time.Now()
		s.current.Store(&state{program: st.program, stale: true})
	}
	s.changed.Store(&now)
	s.tell()
}

func (s *Service) open(fresh bool) {
	s.readyOnce.Do(func() { close(s.ready) })
	if fresh {
		s.freshOnce.Do(func() { close(s.fresh) })
	}
}

// startFromDisk begins with the snapshot that was kept last, until a host answers.
func (s *Service) startFromDisk() {
	if s.client.cache == nil {
		return
	}
	kept, err := s.client.cache.Load(s.name)
	if err != nil {
		if !errors.Is(err, cache.ErrNone) {
			s.changed.Store(&watchStatus{problem: err})
			s.client.opts.log.Warn("kept snapshot is ignored", "service", s.name, "error", err)
		}
		return
	}
	snapshot, err := mirror.Full(kept.Snapshot)
	if err != nil {
		s.changed.Store(&watchStatus{problem: err})
		return
	}
	program, err := decide.Compile(snapshot.Config(), &s.loads)
	if err != nil {
		s.changed.Store(&watchStatus{problem: err})
		return
	}
	s.held = held{snapshot: snapshot, where: "file " + kept.File}
	s.changed.Store(&watchStatus{fromDisk: true, staleSince: kept.Saved})
	s.current.Store(&state{program: program, stale: true})
	s.tell()
	s.open(false)
}
