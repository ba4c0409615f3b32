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
	"github.com/dodona-project/dodona/sdk/dona/internal/cache"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
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

var (
	// errFull asks for the whole snapshot again, whatever is held.
	errFull = errors.New("snapshot is damaged")
	// errSilent says that a host took a stream, or a report, and did not answer in time.
	errSilent = fmt.Errorf("no answer within %v", firstFrame)
	// errBehind says that a host has an older snapshot than is held.
	errBehind = errors.New("this host is behind, or lost or rewound its data")
	// errRenamed ends a stream under a name that reports no longer carry: a host
	// counts what is reported of a version for the watch of the same name.
	errRenamed = errors.New("this client reports under a new name")
)

// watch keeps the snapshot up to date until ctx ends.
func (s *Service) watch(ctx context.Context) {
	s.startFromDisk()
	if s.client.cache != nil {
		s.client.work.Go(func() { s.keep(ctx) })
	}
	retry := backoff.Backoff{Random: s.client.opts.random}
	full := false
	for avoid := hosts.None; ; {
		h := s.client.next(avoid)
		err := s.stream(ctx, h, full, func() {
			retry.Applied()
			s.client.note(h, nil)
			full = false
		})
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRenamed) {
			continue // nothing is wrong with the host
		}
		s.client.note(h, err)
		avoid, full = h.place, errors.Is(err, errFull) || full && !errors.Is(err, errBehind)
		s.lost(fmt.Errorf("host %s: %w", h.address, err))
		s.client.opts.log.Info("watch ended", "service", s.name, "host", h.address, "error", err)
		// A host that sent damage is there and can send the whole snapshot soon.
		if !sleep(ctx, retry.Next(full || s.client.another(h))) {
			return
		}
	}
}

// stream runs one watch until it ends and calls applied for each frame that was
// good.
func (s *Service) stream(ctx context.Context, h *host, full bool, applied func()) error {
	api, err := s.client.api(ctx, h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(firstFrame, func() { cancel(errSilent) })
	defer late.Stop()
	patience := time.AfterFunc(hosts.Never, func() { cancel(errBehind) })
	defer patience.Stop()
	leave := s.client.stay(h, cancel)
	defer leave()

	id, named := s.client.reporter.ID()
	stay := context.AfterFunc(named, func() { cancel(errRenamed) })
	defer stay()
	req := &donav1.WatchConfigRequest{
		Service:       s.name,
		ClientId:      id,
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
	behind := false
	stream, err := api.WatchConfig(ctx, req)
	for err == nil {
		var frame *donav1.ConfigSnapshot
		if frame, err = stream.Recv(); err != nil {
			break
		}
		late.Stop()
		used, err := s.take(frame, h)
		switch {
		case errors.Is(err, errBehind) && behind:
		case errors.Is(err, errBehind):
			s.reject(frame.GetVersion(), h, err)
			if req.LastVersion != s.held.version() || s.client.another(h) {
				return err
			}
			// It was told what we hold, and may catch up before another one is there.
			s.lost(fmt.Errorf("host %s: %w", h.address, err))
			behind = true
			patience.Reset(s.client.health.Another(h.place, time.Now()))
		case err != nil:
			s.reject(frame.GetVersion(), h, err)
			return err
		case used:
			patience.Stop()
			behind = false
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

// reject says that a snapshot is not used, and why.
func (s *Service) reject(version uint64, h *host, err error) {
	s.client.reporter.Rejected(s.name, version, err.Error())
	s.client.opts.log.Error("snapshot rejected", "service", s.name, "version", version, "host", h.address, "error", err)
}

// take takes in one frame and reports whether it is in use. An error says why the
// stream is of no use, with errBehind perhaps for now. A snapshot that this client
// cannot decide by is rejected without one, as the next version may be fine.
//
// What a stream sent is kept apart from what is held: deltas build on the former,
// so nothing is ever made of the frames of two hosts, and the latter is replaced
// only by something newer.
func (s *Service) take(f *donav1.ConfigSnapshot, h *host) (used bool, err error) {
	version := f.GetVersion()
	have := s.held.snapshot
	if f.GetForm() == donav1.ConfigSnapshot_FORM_UNCHANGED {
		if have == nil || version != have.Version() || len(f.GetChecksum()) > 0 && !bytes.Equal(f.GetChecksum(), have.Config().GetChecksum()) {
			return false, fmt.Errorf("%w: version %d is called unchanged, held is %d", errFull, version, s.held.version())
		}
		s.received = have
		s.use(s.current.Load().program, h)
		return true, nil
	}
	next, err := s.receive(f)
	if err != nil {
		return false, err
	}
	// What was received is what the next delta builds on, used here or not.
	s.received = next
	if have != nil && version < have.Version() {
		return false, fmt.Errorf("version %d is lower than %d held from %s: %w", version, have.Version(), s.held.where, errBehind)
	}
	if have != nil && version == have.Version() && version > 0 {
		if next.Checksum() != have.Checksum() {
			return false, fmt.Errorf("version %d has checksum %x, held from %s is %x: two hosts disagree about one version",
				version, next.Checksum(), s.held.where, have.Checksum())
		}
		s.received = have // the same: one copy is enough
		s.use(s.current.Load().program, h)
		return true, nil
	}
	program, err := decide.Compile(next.Config(), &s.loads)
	if err != nil {
		err = fmt.Errorf("version %d: %w", version, err)
		s.reject(version, h, err)
		s.problem(h, err)
		return false, nil
	}
	s.held = held{snapshot: next, where: "host " + h.address}
	s.use(program, h)
	s.unsaved.Store(next)
	select {
	case s.save <- struct{}{}:
	default:
	}
	return true, nil
}

// receive makes the snapshot that a frame leads to on this stream, verified. An
// error with errFull says that the frame is damaged or does not fit.
func (s *Service) receive(f *donav1.ConfigSnapshot) (next *mirror.Snapshot, err error) {
	switch f.GetForm() {
	case donav1.ConfigSnapshot_FORM_DELTA:
		if s.received == nil {
			return nil, fmt.Errorf("%w: delta to version %d is the first frame", errFull, f.GetVersion())
		}
		next, err = s.received.Apply(f)
	case donav1.ConfigSnapshot_FORM_UNSPECIFIED, donav1.ConfigSnapshot_FORM_FULL:
		if f.GetService() != s.name {
			return nil, fmt.Errorf("snapshot is of service %.80q, asked was %s", f.GetService(), s.name)
		}
		next, err = mirror.Full(f)
	default:
		err = fmt.Errorf("form %s is not one that this client knows", f.GetForm())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFull, err)
	}
	return next, nil
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

// use decides by what is held from now on, as a host holds it too.
func (s *Service) use(program *decide.Program, h *host) {
	s.changed.Store(&watchStatus{host: h.address})
	s.current.Store(&state{program: program})
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
	switch err := s.load(); {
	case err == nil:
		s.tell()
		s.open(false)
	case !errors.Is(err, cache.ErrNone):
		s.changed.Store(&watchStatus{disk: err})
		s.client.opts.log.Warn("kept snapshot is ignored", "service", s.name, "error", err)
	}
}

func (s *Service) load() error {
	kept, err := s.client.cache.Load(s.name)
	if err != nil {
		return err
	}
	program, err := decide.Compile(kept.Snapshot.Config(), &s.loads)
	if err != nil {
		return fmt.Errorf("snapshot file %s: %w", kept.File, err)
	}
	s.held = held{snapshot: kept.Snapshot, where: "file " + kept.File}
	s.changed.Store(&watchStatus{fromDisk: true, staleSince: kept.Saved})
	s.current.Store(&state{program: program, stale: true})
	return nil
}
