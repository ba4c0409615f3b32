package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/attest"
)

const (
	// ReportEntries is how many entries a report has at most, and when a question
	// does not say.
	ReportEntries = 20_000
	// ReportBytes is how many bytes of entries a report has at most, so that one
	// with its signature fits a message of 4 MiB; there is always room for one
	// entry.
	ReportBytes = 3 << 20
)

// A Question is what a report is asked to be about.
type Question struct {
	Chain      string
	FromUnix   int64 // 0 = the beginning
	ToUnix     int64 // 0 = the newest; else up to the end of that second
	FromSeq    uint64
	Nonce      string
	MaxEntries uint32 // 0 = ReportEntries
}

// Check refuses a question that alone is wrong.
func (q Question) Check() error {
	if q.Chain != HostChain && q.Chain != PoolChain {
		if err := limits.Service(q.Chain); err != nil {
			return refusal.Field("service", "%v; or one of %s, %s", err, HostChain, PoolChain)
		}
	}
	const most = math.MaxInt64 / 1000
	switch {
	case q.FromUnix < 0 || q.FromUnix >= most:
		return refusal.Field("from_unix", "is %d: allowed are 0 and unix seconds", q.FromUnix)
	case q.ToUnix < 0 || q.ToUnix >= most:
		return refusal.Field("to_unix", "is %d: allowed are 0 and unix seconds", q.ToUnix)
	case q.ToUnix != 0 && q.FromUnix > q.ToUnix:
		return refusal.Field("from_unix", "is %d, after to_unix, %d", q.FromUnix, q.ToUnix)
	case q.FromSeq != 0 && q.FromUnix != 0:
		return refusal.Field("from_seq", "is set, and so is from_unix: allowed is one of them")
	case q.MaxEntries > ReportEntries:
		return refusal.Field("max_entries", "is %d: allowed are at most %d, 0 for that many", q.MaxEntries, ReportEntries)
	}
	return refusal.Check("nonce", limits.Text(q.Nonce, limits.NonceLen))
}

// An Attester makes signed reports of the chains of one store.
type Attester struct {
	Store  store.Store // guarded, see Guard
	Log    *Log
	Signer *Signer
}

// Report returns a signed report: the smallest run of entries without gaps that
// holds every entry whose time is in the range asked for, as far as it fits. All
// of it is durable. That it was asked for is an entry of its own, which is not in
// the report; one that goes on where another ended adds none while the chain's
// newest entry tells of it already, so that reading a chain to its end has one.
//
// It refuses as the package refusal says; a chain that does not hold is not signed.
func (a *Attester) Report(ctx context.Context, actor string, q Question) (report, signature []byte, err error) {
	if err := q.Check(); err != nil {
		return nil, nil, err
	}
	for range 3 {
		r, newest, err := a.read(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		if err := r.Complete(); err != nil {
			return nil, nil, damaged(err)
		}
		err = a.issue(ctx, actor, r, q.FromSeq > 1 && newest.Kind == "attestation.issued" && newest.Actor == actor)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		report = r.Encode()
		return report, a.Signer.sign(report), nil
	}
	return nil, nil, &refusal.Error{Kind: refusal.Unavailable, Reason: "audit", Text: "the store took entries back while the report was made; try again"}
}

// damaged refuses what rests on a chain that does not hold.
func damaged(cause error) error {
	return &refusal.Error{Kind: refusal.Precondition, Reason: "audit", Text: "the audit log is damaged: " + cause.Error() + "; dona store check says more", Cause: cause}
}

// page is how many entries one transaction reads.
const page = 1000

// read collects the run of entries, and looks at the newest one.
func (a *Attester) read(ctx context.Context, q Question) (r *attest.Report, newest attest.Entry, err error) {
	r = &attest.Report{
		TrustDomain: a.Log.trustDomain, Service: q.Chain, Nonce: q.Nonce, FromUnix: q.FromUnix, ToUnix: q.ToUnix, KeyID: a.Signer.KeyID(),
	}
	run := newRun(q)
	var headHash [32]byte
	var oldest uint64
	err = a.Store.View(ctx, func(tx store.ReadTx) error {
		r.IssuedMS = tx.Now().UnixMilli()
		if r.Head.Seq, headHash, err = a.Log.Head(tx, q.Chain); err != nil {
			return err
		}
		r.Head.Hash = hex.EncodeToString(headHash[:])
		if r.Older, err = a.Log.Older(tx, q.Chain); err != nil {
			return err
		}
		oldest = 1
		if r.Older != nil {
			oldest = r.Older.LastSeq + 1
		}
		if r.Head.Seq == 0 {
			return nil
		}
		last, err := tx.ReadLog(logName(q.Chain), r.Head.Seq, 1)
		if err != nil {
			return err
		}
		if len(last) == 1 {
			newest, err = attest.ParseEntry(last[0].Payload)
		}
		if len(last) != 1 || err != nil || sha256.Sum256(last[0].Payload) != headHash {
			return damaged(fmt.Errorf("chain %s: entry %d is not what the head says", q.Chain, r.Head.Seq))
		}
		return nil
	})
	if err != nil {
		return nil, newest, err
	}
	switch {
	case r.Head.Seq == 0 && q.Chain != HostChain && q.Chain != PoolChain:
		return nil, newest, refusal.New(refusal.NotFound, "there is no service %s", limits.Quote(q.Chain))
	case q.FromSeq > r.Head.Seq+1:
		return nil, newest, refusal.New(refusal.Precondition, "from_seq is %d: the chain of %s ends with entry %d", q.FromSeq, q.Chain, r.Head.Seq)
	case q.FromSeq != 0 && q.FromSeq < oldest:
		return nil, newest, refusal.New(refusal.Precondition, "from_seq is %d: entries up to %d have moved to segment files, %s in the host's data directory; ask from %d on",
			q.FromSeq, r.Older.LastSeq, r.Older.Segments, oldest)
	}
	// The entry before the first is read, too: it has the hash to begin with.
	at := max(q.FromSeq, oldest)
	prev := a.Log.Genesis(q.Chain)
	if r.Older != nil && at == oldest {
		prev = [32]byte(must(hex.DecodeString(r.Older.LastHash)))
	}
	known := at == oldest
	if !known {
		at--
	}
	for at <= r.Head.Seq && !run.full {
		var lines []store.LogEntry
		if err := a.Store.View(ctx, func(tx store.ReadTx) (err error) {
			lines, err = tx.ReadLog(logName(q.Chain), at, int(min(page, r.Head.Seq-at+1)))
			return err
		}); err != nil {
			return nil, newest, err
		}
		if len(lines) == 0 {
			return nil, newest, damaged(fmt.Errorf("chain %s: entry %d is missing", q.Chain, at))
		}
		for _, line := range lines {
			if line.Seq != at {
				return nil, newest, damaged(fmt.Errorf("chain %s: entry %d is missing", q.Chain, at))
			}
			if known {
				if err := run.add(line, prev); err != nil {
					return nil, newest, damaged(fmt.Errorf("chain %s: entry %d %w", q.Chain, line.Seq, err))
				}
			}
			prev, known = sha256.Sum256(line.Payload), true
			at++
		}
	}
	run.end(r)
	return r, newest, nil
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic("audit: " + err.Error())
	}
	return b
}

// run is the smallest run of entries that holds all of a range, as it is found.
type run struct {
	q       Question
	fromMS  int64
	toMS    int64
	max     int
	first   uint64
	prev    [32]byte
	entries [][]byte
	bytes   int
	within  int  // how many entries up to the last that is in range
	full    bool // and there is more in range than fits
}

func newRun(q Question) *run {
	r := &run{q: q, fromMS: math.MinInt64, toMS: math.MaxInt64, max: int(q.MaxEntries)}
	if r.max == 0 {
		r.max = ReportEntries
	}
	if q.FromUnix != 0 {
		r.fromMS = q.FromUnix * 1000
	}
	if q.ToUnix != 0 {
		r.toMS = q.ToUnix*1000 + 999
	}
	return r
}

// add takes the next entry; prev is the hash of the one before it.
func (r *run) add(line store.LogEntry, prev [32]byte) error {
	in := r.q.FromUnix == 0 && r.q.ToUnix == 0
	if !in {
		e, err := attest.ParseEntry(line.Payload)
		if err != nil {
			return err
		}
		in = e.TimeMS >= r.fromMS && e.TimeMS <= r.toMS
	}
	if r.first == 0 {
		if !in && r.q.FromSeq == 0 {
			return nil
		}
		r.first, r.prev = line.Seq, prev
	}
	if fits := len(r.entries) == 0 || len(r.entries) < r.max && r.bytes+len(line.Payload) <= ReportBytes; !fits || r.full {
		r.full = r.full || in
		r.max = len(r.entries) // what is not taken once is not taken at all
		return nil
	}
	r.entries = append(r.entries, line.Payload)
	r.bytes += len(line.Payload)
	if in {
		r.within = len(r.entries)
	}
	return nil
}

func (r *run) end(report *attest.Report) {
	if r.within == 0 && !r.full {
		return
	}
	report.FirstSeq, report.FirstPrev, report.Entries = r.first, hex.EncodeToString(r.prev[:]), r.entries[:r.within]
	if r.full {
		report.Entries, report.NextSeq = r.entries, r.first+uint64(len(r.entries))
	}
}

// errMoved says that what was read is not what the store holds now: a fault took
// back what was not durable yet.
var errMoved = errors.New("audit: the chain moved")

// issue makes durable all that a report is about, with the entry that it was made.
func (a *Attester) issue(ctx context.Context, actor string, r *attest.Report, told bool) error {
	return a.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		var head statev1.ChainHead
		if _, err := store.Load(tx, headKey(r.Service), &head); err != nil {
			return err
		}
		if r.Head.Seq > 0 {
			same, err := tx.ReadLog(logName(r.Service), r.Head.Seq, 1)
			if err != nil {
				return err
			}
			if head.GetSeq() < r.Head.Seq || len(same) != 1 || hashText(same[0].Payload) != r.Head.Hash {
				return errMoved
			}
		}
		if told {
			// Any hard write makes durable what was written before it.
			return store.Save(tx, headKey(r.Service), &head)
		}
		return a.Log.Append(tx, r.Service, Entry{Kind: "attestation.issued", Actor: actor, Detail: map[string]string{
			"first_seq": number(r.FirstSeq), "last_seq": number(r.LastSeq),
		}})
	})
}

func hashText(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// number is empty, and so left out, for the numbers of a report without entries.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// Older says up to which entry a chain has moved to segment files; nil when all of
// it is in the store.
func (l *Log) Older(tx store.ReadTx, chain string) (*attest.Older, error) {
	var moved statev1.ChainSegments
	version, err := store.Load(tx, segmentsKey(chain), &moved)
	if err != nil || version == 0 {
		return nil, err
	}
	if len(moved.GetLastHash()) != sha256.Size {
		return nil, broken{fmt.Errorf("audit: chain %s: the record of its segment files has no hash", chain)}
	}
	return &attest.Older{LastSeq: moved.GetLastSeq(), LastHash: hex.EncodeToString(moved.GetLastHash()), Segments: SegmentFolder(chain)}, nil
}

// SegmentFolder is where the segment files of a chain are, below the host's data
// directory.
func SegmentFolder(chain string) string { return "segments/" + chain }

func segmentsKey(chain string) string { return "audit/" + chain + "/segments" }
