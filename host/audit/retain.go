package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

// RetainOptions configure a Retention.
type RetainOptions struct {
	Store  store.Store
	Log    *Log
	Chains func(tx store.ReadTx) ([]string, error) // those of services
	Dir    string                                  // the host's data directory

	Keep       time.Duration // entries that are older move
	MaxEntries uint64        // of a chain; the oldest above it move
	Every      time.Duration // between two looks; 0 = 10 minutes
	Logger     hclog.Logger
}

// A Retention moves old entries from the store to segment files,
// <data dir>/segments/<chain>/<first>-<last>.ndjson, and keeps in the store up to
// which entry, and its hash. The file is on the disk before the entries leave the
// store, so a crash at any instant loses none.
type Retention struct{ o RetainOptions }

// NewRetention makes one; Run runs it.
func NewRetention(o RetainOptions) *Retention {
	if o.Every <= 0 {
		o.Every = 10 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return &Retention{o: o}
}

const (
	segmentEntries = 5000
	segmentBytes   = 4 << 20
	// slack is by how much of a bound it is passed before entries move, so that a
	// move is worth a file.
	slack = 10
)

// Run looks at the chains until ctx ends. What cannot be moved stays where it is.
func (r *Retention) Run(ctx context.Context) error {
	tick := time.NewTicker(r.o.Every)
	defer tick.Stop()
	for {
		if err := r.Move(ctx); err != nil && ctx.Err() == nil {
			r.o.Logger.Warn("old audit entries stay in the store; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Move moves what is to be moved now.
func (r *Retention) Move(ctx context.Context) error {
	var chains []string
	if err := r.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		chains, err = r.o.Chains(tx)
		return err
	}); err != nil {
		return err
	}
	var all error
	for _, chain := range append([]string{HostChain, PoolChain}, chains...) {
		if err := r.chain(ctx, chain); err != nil {
			all = errors.Join(all, fmt.Errorf("chain %s: %w", chain, err))
		}
	}
	return all
}

// chain moves a chain's old entries, a segment at a time. Age is looked at once for
// all of them, so that those who follow one old entry move in one go.
func (r *Retention) chain(ctx context.Context, chain string) error {
	through, err := r.bound(ctx, chain)
	for err == nil && through > 0 && ctx.Err() == nil {
		var more bool
		if more, err = r.segment(ctx, chain, through); !more {
			break
		}
	}
	return err
}

// bound returns up to which entry a chain is to move; 0 = not now. By age it is
// where the first entry is that is young enough: what lies behind that one stays,
// whatever a clock that stepped back says.
func (r *Retention) bound(ctx context.Context, chain string) (through uint64, err error) {
	var head, next uint64
	var old, older time.Time
	err = r.o.Store.View(ctx, func(tx store.ReadTx) error {
		begin, err := r.o.Log.Start(tx, chain)
		if err != nil {
			return err
		}
		next = begin.Seq() + 1
		old, older = tx.Now().Add(-r.o.Keep), tx.Now().Add(-r.o.Keep-r.o.Keep/slack)
		head, _, err = r.o.Log.Head(tx, chain)
		return err
	})
	if err != nil || head < next {
		return 0, err
	}
	if count := head - next + 1; r.o.MaxEntries > 0 && count > r.o.MaxEntries {
		through = head - (r.o.MaxEntries - r.o.MaxEntries/slack)
	}
	var byAge uint64
	for at, due := next, false; at < head; {
		var lines []store.LogEntry
		if err := r.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
			lines, err = tx.ReadLog(logName(chain), at, page)
			return err
		}); err != nil || len(lines) == 0 {
			return 0, err
		}
		for _, l := range lines {
			e, err := attest.ParseEntry(l.Payload)
			if err != nil {
				return 0, fmt.Errorf("entry %d %w", l.Seq, err)
			}
			written := time.UnixMilli(e.TimeMS)
			due = due || written.Before(older) // the first one, as the clock goes
			if !due || !written.Before(old) || l.Seq == head {
				return min(max(through, byAge), head-1), nil
			}
			byAge = l.Seq
		}
		at = lines[len(lines)-1].Seq + 1
	}
	return min(max(through, byAge), head-1), nil // the newest entry stays
}

// segment moves the next entries up to through at most.
func (r *Retention) segment(ctx context.Context, chain string, through uint64) (more bool, err error) {
	var begin attest.Chain
	var lines []store.LogEntry
	if err := r.o.Store.View(ctx, func(tx store.ReadTx) error {
		if begin, err = r.o.Log.Start(tx, chain); err != nil {
			return err
		}
		lines, err = tx.ReadLog(logName(chain), begin.Seq()+1, segmentEntries)
		return err
	}); err != nil {
		return false, err
	}
	end := begin
	var text []byte
	for _, l := range lines {
		if l.Seq > through || len(text) > 0 && len(text)+len(l.Payload) > segmentBytes {
			break
		}
		if err := end.Add(l.Payload); err != nil {
			return false, fmt.Errorf("nothing is moved of a damaged log: %w", err)
		}
		text = append(append(text, l.Payload...), '\n')
	}
	if end.Seq() == begin.Seq() {
		return false, nil
	}
	if err := r.write(chain, begin.Seq()+1, end.Seq(), text); err != nil {
		return false, err
	}
	crash.Point("audit.before-trim")
	hash := end.Hash()
	err = r.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		now, err := r.o.Log.Start(tx, chain)
		if err != nil {
			return err
		}
		if now.Seq() != begin.Seq() || now.Hash() != begin.Hash() {
			return errMoved
		}
		if err := store.Save(tx, segmentsKey(chain), &statev1.ChainSegments{LastSeq: end.Seq(), LastHash: hash[:]}); err != nil {
			return err
		}
		return tx.Trim(logName(chain), end.Seq())
	})
	crash.Point("audit.after-trim")
	if errors.Is(err, errMoved) {
		return false, nil // by another host, which has the file
	}
	if err != nil {
		return false, err
	}
	r.o.Logger.Info("moved old audit entries to a segment file", "chain", chain, "first_seq", begin.Seq()+1, "last_seq", end.Seq())
	return end.Seq() < through, nil
}

// write puts a segment file in its place as one step, on the disk. Files of entries
// that are still in the store are of a move that did not come to its end, or of a
// time before a backup was restored: they are put aside.
func (r *Retention) write(chain string, first, last uint64, text []byte) error {
	folder := filepath.Join(r.o.Dir, filepath.FromSlash(SegmentFolder(chain)))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		base, isSegment := strings.CutSuffix(f.Name(), ".ndjson")
		_, end, _ := strings.Cut(base, "-")
		if n, err := strconv.ParseUint(end, 10, 64); !isSegment || err != nil || n < first {
			continue
		}
		aside := filepath.Join(folder, f.Name()+".aside-"+strconv.FormatInt(time.Now().UnixMilli(), 10))
		if err := os.Rename(filepath.Join(folder, f.Name()), aside); err != nil {
			return err
		}
	}
	name := filepath.Join(folder, attest.Segment(first, last))
	tmp, err := os.CreateTemp(folder, ".segment.*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(text)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	// Each folder that may be new has to be on the disk before entries leave the store.
	for dir := folder; ; dir = filepath.Dir(dir) {
		if err := syncDir(dir); err != nil {
			return err
		}
		if dir == filepath.Clean(r.o.Dir) || dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}
