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
)

// firstFrame bounds how long a host may take to answer a watch.
const firstFrame = 10 * time.Second

// held is the newest snapshot that was applied.
type held struct {
	version  uint64
	checksum [digest.Size]byte
	where    string // a host, or a file
}

// errFull asks for the whole snapshot again, whatever is held.
var errFull = errors.New("snapshot is damaged")

// watch keeps the snapshot up to date until ctx ends.
func (s *Service) watch(ctx context.Context) {
	s.startFromDisk()
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
		if !sleep(ctx, retry.Next(len(s.client.hosts) > 1)) {
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
	}
	if s.held.version > 0 && !full {
		req.LastVersion, req.LastChecksum = s.held.version, s.held.checksum[:]
	}
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
	reject := func(err error) error {
		s.client.reporter.Rejected(s.name, f.GetVersion(), err.Error())
		s.client.opts.log.Error("snapshot rejected", "service", s.name, "version", f.GetVersion(), "host", h.address, "error", err)
		return err
	}
	if f.GetVersion() < s.held.version {
		return false, reject(fmt.Errorf("version %d is lower than %d held from %s: this host is behind, or lost or rewound its data",
			f.GetVersion(), s.held.version, s.held.where))
	}
	switch f.GetForm() {
	case donav1.ConfigSnapshot_FORM_UNCHANGED:
		if s.current.Load() == nil || f.GetVersion() != s.held.version ||
			len(f.GetChecksum()) > 0 && !bytes.Equal(f.GetChecksum(), s.held.checksum[:]) {
			return false, reject(fmt.Errorf("%w: version %d is called unchanged, held is %d", errFull, f.GetVersion(), s.held.version))
		}
		s.confirmed(h)
		return true, nil
	case donav1.ConfigSnapshot_FORM_UNSPECIFIED, donav1.ConfigSnapshot_FORM_FULL:
	default:
		return false, reject(fmt.Errorf("%w: form %s was not asked for", errFull, f.GetForm()))
	}
	if f.GetService() != s.name {
		return false, reject(fmt.Errorf("snapshot is of service %.80q, asked was %s", f.GetService(), s.name))
	}
	sum := digest.OfSnapshot(f)
	if !bytes.Equal(sum[:], f.GetChecksum()) {
		return false, reject(fmt.Errorf("%w: checksum of version %d is %x, announced was %.32x", errFull, f.GetVersion(), sum, f.GetChecksum()))
	}
	if f.GetVersion() == s.held.version && s.current.Load() != nil && s.held.version > 0 {
		if sum != s.held.checksum {
			return false, reject(fmt.Errorf("version %d has checksum %x, held from %s is %x: two hosts disagree about one version",
				f.GetVersion(), sum, s.held.where, s.held.checksum))
		}
		s.confirmed(h)
		return true, nil
	}
	program, err := decide.Compile(f, &s.loads)
	if err != nil {
		s.problem(h, reject(fmt.Errorf("version %d: %w", f.GetVersion(), err)))
		return false, nil
	}
	s.held = held{version: f.GetVersion(), checksum: sum, where: "host " + h.address}
	s.changed.Store(&watchStatus{host: h.address})
	s.current.Store(&state{program: program})
	s.open(true)
	s.client.reporter.Applied(s.name, f.GetVersion())
	if s.client.cache != nil {
		if err := s.client.cache.Save(f, time.Now()); err != nil {
			s.client.opts.log.Warn("snapshot is not kept on disk", "service", s.name, "error", err)
		}
	}
	return true, nil
}

// confirmed notes that a host holds what we hold.
func (s *Service) confirmed(h *host) {
	s.changed.Store(&watchStatus{host: h.address})
	s.current.Store(&state{program: s.current.Load().program})
	s.open(true)
	s.client.reporter.Applied(s.name, s.held.version)
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
	program, err := decide.Compile(kept.Snapshot, &s.loads)
	if err != nil {
		s.changed.Store(&watchStatus{problem: err})
		return
	}
	s.held = held{version: kept.Snapshot.GetVersion(), checksum: kept.Checksum, where: "file " + kept.File}
	s.changed.Store(&watchStatus{fromDisk: true, staleSince: kept.Saved})
	s.current.Store(&state{program: program, stale: true})
	s.open(false)
}
