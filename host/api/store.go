package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/fsck"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
)

// StoreOperations is what an operator can do with a host's store, besides reading
// and writing.
type StoreOperations struct {
	Adopt    func(ctx context.Context, actor, reason string) error // nil: the store is not shared
	Recorded func(ctx context.Context) error                       // writes the audit entry of an adoption; with Adopt
	Others   func(ctx context.Context) ([]string, error)           // lists the other hosts; nil: the store is not shared
	Backup   func(w io.Writer) error                               // nil: the store is not the host's own
	Check    func(ctx context.Context) (fsck.Report, error)
}

// ErrNothingToAdopt is what StoreOperations.Adopt wraps when the store is not foreign.
var ErrNothingToAdopt = errors.New("there is nothing to adopt")

// AdoptStore says to go on from what a foreign store holds. Its audit entry is the
// first thing written to the new generation: before that the store takes no writes.
func (s *HostAdmin) AdoptStore(ctx context.Context, req *donav1.AdoptStoreRequest) (*donav1.HostStatus, error) {
	if strings.TrimSpace(req.Reason) == "" {
		return nil, refusal.Field("reason", "is empty: say why what the store lacks is given up; it is kept in the audit log")
	}
	if err := refusal.Check("reason", limits.Text(req.Reason, limits.ReasonLen)); err != nil {
		return nil, err
	}
	if s.Operate.Adopt == nil {
		return nil, refusal.New(refusal.Precondition, "the store is %s: it is this host's own and never foreign, there is nothing to adopt", s.Store.Info().Backend)
	}
	err := s.Operate.Adopt(ctx, actor(ctx), req.Reason)
	switch {
	case errors.Is(err, ErrNothingToAdopt):
		return nil, refusal.New(refusal.Precondition, "the store holds what this host knows (%s): there is nothing to adopt", s.Store.Info().State)
	case err != nil && away(err):
		return nil, &refusal.Error{Kind: refusal.Unavailable, Reason: "store", Cause: err,
			Text: "nothing was adopted: the store is " + strings.TrimPrefix(s.Store.Info().State, "store: ")}
	case err != nil:
		return nil, err
	}
	recorded := s.Operate.Recorded(ctx)
	h, err := s.GetHost(ctx, nil)
	if err != nil {
		return nil, err
	}
	if recorded != nil {
		h.Alarms = append(h.Alarms, fmt.Sprintf("the store was adopted, and the audit entry is not written yet; it is tried again: %v", recorded))
	}
	return h, nil
}

// CheckStore reads every record and every audit chain and says what does not hold.
func (s *HostAdmin) CheckStore(ctx context.Context, _ *donav1.CheckStoreRequest) (*donav1.CheckStoreReply, error) {
	r, err := s.Operate.Check(ctx)
	if err != nil {
		return nil, err
	}
	reply := &donav1.CheckStoreReply{Services: uint32(r.Services), Records: uint64(r.Records)}
	for _, c := range r.Chains {
		reply.Chains = append(reply.Chains, &donav1.CheckedChain{Chain: c.Name, Entries: c.Entries, Head: c.Head})
	}
	for _, p := range r.Problems {
		reply.Problems = append(reply.Problems, clip(p))
	}
	return reply, nil
}

// chunkLen is how many bytes of a backup one message carries.
const chunkLen = 256 << 10

// BackupStore sends a copy of the embedded store as of its newest hard commit, while
// everything goes on. A backup without the digest at its end is not whole.
func (s *HostAdmin) BackupStore(_ *donav1.BackupStoreRequest, stream donav1.HostAdmin_BackupStoreServer) error {
	if s.Operate.Backup == nil {
		return refusal.New(refusal.Precondition, "the store is on Redis, whose own backups these are: save the server's append-only directory (appenddirname, after BGREWRITEAOF); docs/operations.md says how to restore it")
	}
	w := &chunkWriter{stream: stream, sum: sha256.New()}
	if err := s.Operate.Backup(w); err != nil {
		if w.err != nil {
			return w.err // the stream's own
		}
		return fmt.Errorf("backup: %w", err)
	}
	if err := w.flush(); err != nil {
		return err
	}
	return stream.Send(&donav1.BackupChunk{Digest: "sha256:" + hex.EncodeToString(w.sum.Sum(nil))})
}

type chunkWriter struct {
	stream donav1.HostAdmin_BackupStoreServer
	sum    hash.Hash
	buf    []byte
	err    error
}

func (w *chunkWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		take := min(len(p), chunkLen-len(w.buf))
		w.buf = append(w.buf, p[:take]...)
		p, n = p[take:], n+take
		if len(w.buf) == chunkLen {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *chunkWriter) flush() error {
	if len(w.buf) == 0 || w.err != nil {
		return w.err
	}
	w.sum.Write(w.buf)
	w.err = w.stream.Send(&donav1.BackupChunk{Data: w.buf})
	w.buf = make([]byte, 0, chunkLen)
	return w.err
}
