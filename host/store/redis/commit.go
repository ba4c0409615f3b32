package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// errLost is the end of a hard write that a fail-over took back.
var errLost = fmt.Errorf("%w: the write was lost in a fail-over before it was confirmed; nothing of it is left: try again", store.ErrUnavailable)

// commit is one union on its way.
type commit struct {
	b        *backend
	u        *store.Union
	keys     []string
	args     []any
	header   []byte // see commit.lua
	told     uint64 // the newest time that a transaction can have been told, µs
	deadline time.Time
	writes   bool
	seq      uint64 // number that it was sent under
	sent     bool   // and that nobody has answered for
}

// Commit implements store.Backend. The engine has one under way, which is what
// makes the number of a commit say that all before it are settled.
func (b *backend) Commit(ctx context.Context, u *store.Union) (store.Outcome, error) {
	c := &commit{b: b, u: u, deadline: time.Now().Add(b.patience()), writes: len(u.Txs) > 0, told: b.clock.told()}
	c.encode()
	var last error
	for {
		l, err := b.await(ctx, c.deadline)
		if err != nil {
			if last != nil {
				err = fmt.Errorf("%w; before that: %w", err, last)
			}
			return store.Outcome{}, c.fail(err)
		}
		if l.epoch != u.Epoch {
			if c.sent {
				return store.Outcome{}, c.fail(errMoved)
			}
			return store.Outcome{Conflict: &store.Answer{}}, nil
		}
		var out *store.Outcome
		if c.sent {
			out, err = c.settle(ctx, l)
		} else {
			out, err = c.send(ctx, l)
		}
		if err == nil && out != nil {
			return *out, nil
		}
		if err != nil {
			last = err
			if errors.Is(err, store.ErrForeign) || errors.Is(err, store.ErrFull) || !time.Now().Before(c.deadline) || ctx.Err() != nil || !helps(err) && !c.sent {
				return store.Outcome{}, c.fail(explain(err))
			}
			if err := b.pause(ctx, time.Millisecond); err != nil {
				return store.Outcome{}, c.fail(err)
			}
		}
	}
}

// fail words the end of a commit that did not come to an answer.
func (c *commit) fail(err error) error {
	if c.sent {
		return fmt.Errorf("%w: the commit was sent, then: %w", store.ErrUnknown, err)
	}
	return err
}

// send sends the commit once. nil and nil: send it again.
func (c *commit) send(ctx context.Context, l *link) (*store.Outcome, error) {
	b, before := c.b, c.b.seenNow()
	if c.writes {
		c.seq = b.seq.Add(1)
	}
	c.fill(l)
	var r reply
	err := b.call(func(ctx context.Context) (err error) {
		r, err = run(ctx, l.client, commitScript, c.keys, c.args)
		return err
	})
	if err != nil {
		c.sent = c.writes && !answered(err) && !unsent(err) && !errors.Is(err, store.ErrUnavailable)
		b.trouble(l, err)
		return nil, err
	}
	revision := r.revision
	if r.status == "OK" {
		revision += uint64(len(c.u.Txs))
	}
	if err := b.heed(l, before, r, revision); err != nil {
		c.sent = c.writes && r.status == "OK"
		return nil, err
	}
	switch r.status {
	case "OK":
		return c.done(l, r.revision, r), nil
	case "CONFLICT":
		fresh, err := c.fresh(r)
		if err != nil {
			return nil, err
		}
		return &store.Outcome{Conflict: fresh}, nil
	case "BUSY": // another host has claimed the next commit
		return nil, b.pause(ctx, 100*time.Microsecond)
	}
	return nil, nil // FENCED: under a new number
}

// settle finds out what became of a commit that was cut off. nil and nil: it has
// not happened and will not, so it is sent again.
func (c *commit) settle(ctx context.Context, l *link) (*store.Outcome, error) {
	applied, base, r, err := c.b.applied(ctx, l, c.seq)
	if err != nil {
		return nil, err
	}
	c.sent = false
	if applied != c.seq {
		return nil, nil
	}
	return c.done(l, base, r), nil
}

// applied asks which commit of this process was applied last, and at what base;
// from then on none up to seq will be.
func (b *backend) applied(ctx context.Context, l *link, seq uint64) (applied, base uint64, r reply, err error) {
	before := b.seenNow()
	err = b.call(func(ctx context.Context) (err error) {
		r, err = run(ctx, l.client, settleScript, []string{b.keys.meta}, []any{l.whose, b.field, seq})
		return err
	})
	if err != nil {
		b.trouble(l, err)
		return 0, 0, r, err
	}
	if err := b.heed(l, before, r, r.revision); err != nil {
		return 0, 0, r, err
	}
	if len(r.rest) < 2 {
		return 0, 0, r, fmt.Errorf("%w: the server's answer is too short", store.ErrUnavailable)
	}
	applied, err = number(r.rest[0])
	if err == nil {
		base, err = number(r.rest[1])
	}
	return applied, base, r, err
}

// trouble sees to it that a server is looked at after a call has failed, and is
// not used until then if the error is about all of it.
func (b *backend) trouble(l *link, err error) {
	if f, ok := faultOf(err); ok {
		if f.look {
			b.lost(l, explain(err))
		}
		return
	}
	b.poke()
}

// done is the outcome of a commit that was applied.
func (c *commit) done(l *link, base uint64, r reply) *store.Outcome {
	out := &store.Outcome{Base: base}
	b := c.b
	hard := false
	for _, tx := range c.u.Txs {
		hard = hard || tx.Hard
	}
	if b.o.Replicas == 0 || !hard && (!c.u.Hard || r.hard <= max(r.confirmed, l.confirmed.Load())) {
		return out
	}
	round := l.rounds.join()
	seq := c.seq
	if !hard {
		seq = 0
	}
	out.Durable = func(ctx context.Context) error { return b.durable(ctx, l, round, seq) }
	return out
}

// fill puts in what depends on the link and on the try.
func (c *commit) fill(l *link) {
	c.args[0] = l.boxed
	flags := uint32(0)
	for i, on := range []bool{c.u.Exact, c.b.o.Replicas == 0, c.u.Conflicts >= 2, c.b.heard.Load()} {
		if on {
			flags |= 1 << i
		}
	}
	binary.BigEndian.PutUint32(c.header, flags)
	binary.BigEndian.PutUint64(c.header[countsLen:], c.seq) // 0 when nothing is written
	c.args[2] = c.header
}

// fresh reads a conflict's records and heads.
func (c *commit) fresh(r reply) (*store.Answer, error) {
	a := &store.Answer{Revision: r.revision, Records: make(map[string]store.Record), Heads: make(map[string]uint64)}
	bad := fmt.Errorf("%w: the server's answer to a commit does not parse", store.ErrUnavailable)
	if len(r.rest) < 2 {
		return nil, bad
	}
	stale, ok1 := r.rest[0].([]any)
	heads, ok2 := r.rest[1].([]any)
	if !ok1 || !ok2 || len(stale)%2 != 0 || len(heads)%2 != 0 {
		return nil, bad
	}
	names := c.keys[1:]
	for i := 0; i < len(stale); i += 2 {
		n, err := number(stale[i])
		if err != nil || n < 1 || n > uint64(len(c.u.Reads)) {
			return nil, bad
		}
		record, err := parseRecord(stale[i+1])
		if err != nil {
			return nil, err
		}
		a.Records[names[n-1][len(c.b.keys.record("")):]] = record
	}
	for i := 0; i < len(heads); i += 2 {
		log, ok := heads[i].(string)
		n, err := number(heads[i+1])
		if !ok || err != nil {
			return nil, bad
		}
		a.Heads[log] = n
	}
	return a, nil
}

// countsLen is how many bytes of the header come before the number of the commit.
const countsLen = 11 * 4

// encode makes the union the keys and arguments of the commit script. Where several
// transactions write the same thing, the last counts.
func (c *commit) encode() {
	b, u := c.b, c.u
	w := collect(u)
	lastHard := 0
	for i, tx := range u.Txs {
		if tx.Hard {
			lastHard = i + 1
		}
	}
	both := w.order(u.Reads)
	keys := make([]string, 0, 2+len(u.Reads)+len(w.records)+len(w.indexes)+len(w.logs)+len(w.trims))
	args := make([]any, 0, 8+2*len(u.Heads)+len(w.records)+len(w.trims))
	header := make([]byte, 0, countsLen+3*8+8*len(u.Reads)+2*w.puts)
	for _, n := range [...]int{0, len(u.Txs), lastHard, len(u.Reads), both, len(u.Heads), w.puts, len(w.records) - w.puts, len(w.indexes), len(w.logs), len(w.trims)} {
		header = binary.BigEndian.AppendUint32(header, uint32(n))
	}
	for _, n := range [...]uint64{0, u.Base, c.told} {
		header = binary.BigEndian.AppendUint64(header, n)
	}
	message := ""
	if len(u.Txs) > 0 {
		message = b.message(w.records)
	}
	keys = append(keys, b.keys.meta)
	args = append(append(args, b.first...), message)
	for _, r := range w.records[:both] {
		keys = append(keys, b.keys.record(r.Key))
		header = binary.BigEndian.AppendUint64(header, u.Reads[r.Key])
	}
	if len(u.Reads) > both {
		told := make(map[string]struct{}, both)
		for _, r := range w.records[:both] {
			told[r.Key] = struct{}{}
		}
		for key, v := range u.Reads {
			if _, ok := told[key]; !ok {
				keys = append(keys, b.keys.record(key))
				header = binary.BigEndian.AppendUint64(header, v)
			}
		}
	}
	for log, head := range u.Heads {
		args = append(args, log, digits(head))
	}
	for i, r := range w.records {
		if i >= both {
			keys = append(keys, b.keys.record(r.Key))
		}
		if !r.Delete {
			args = append(args, r.Value)
			if len(u.Txs) > 1 {
				header = binary.BigEndian.AppendUint16(header, uint16(r.offset)) // at most maxUnionWrites
			}
		}
	}
	for _, i := range w.indexes {
		keys = append(keys, b.keys.index(i.name))
		args = append(args, len(i.puts), len(i.deletes))
		for _, p := range i.puts {
			args = append(args, digits(p.Score), p.Member)
		}
		for _, d := range i.deletes {
			args = append(args, d.Member)
		}
	}
	for _, l := range w.logs {
		keys = append(keys, b.keys.log(l.name))
		args = append(args, l.name, len(l.payloads), digits(l.first))
		for _, p := range l.payloads {
			args = append(args, p)
		}
	}
	for log, through := range w.trims {
		keys = append(keys, b.keys.log(log))
		args = append(args, digits(through+1))
	}
	if len(u.Heads)+len(w.logs)+len(w.trims) > 0 {
		keys = append(keys, b.keys.heads)
	}
	c.keys, c.args, c.header = keys, args, header
}

// written is what a union comes to.
type written struct {
	records []recordWrite
	puts    int // records that are not deleted
	indexes []indexWrites
	logs    []logWrites
	trims   map[string]uint64 // log -> up to which entry
}

type recordWrite struct {
	store.Write
	offset int // of the transaction in the union, from 1
}

type indexWrites struct {
	name          string
	puts, deletes []store.IndexWrite
}

type logWrites struct {
	name     string
	first    uint64
	payloads [][]byte
}

func collect(u *store.Union) *written {
	w := &written{}
	if len(u.Txs) == 1 && len(u.Txs[0].Records) == 1 && len(u.Txs[0].Indexes)+len(u.Txs[0].Appends)+len(u.Txs[0].Trims) == 0 {
		w.records = []recordWrite{{Write: u.Txs[0].Records[0], offset: 1}} // the lone caller's
		if !w.records[0].Delete {
			w.puts = 1
		}
		return w
	}
	records := make(map[string]int)
	type member struct{ index, member string }
	members := make(map[member]store.IndexWrite)
	logs := make(map[string]int)
	for i, tx := range u.Txs {
		for _, r := range tx.Records {
			at, ok := records[r.Key]
			if !ok {
				at = len(w.records)
				records[r.Key] = at
				w.records = append(w.records, recordWrite{})
			}
			w.records[at] = recordWrite{Write: r, offset: i + 1}
		}
		for _, m := range tx.Indexes {
			members[member{m.Index, m.Member}] = m
		}
		for _, a := range tx.Appends {
			at, ok := logs[a.Log]
			if !ok {
				at = len(w.logs)
				logs[a.Log] = at
				w.logs = append(w.logs, logWrites{name: a.Log, first: a.Seq})
			}
			w.logs[at].payloads = append(w.logs[at].payloads, a.Payload)
		}
		for _, trim := range tx.Trims {
			if trim.Through > w.trims[trim.Log] {
				if w.trims == nil {
					w.trims = make(map[string]uint64)
				}
				w.trims[trim.Log] = trim.Through
			}
		}
	}
	for _, r := range w.records {
		if !r.Delete {
			w.puts++
		}
	}
	indexes := make(map[string]int)
	for _, m := range members {
		at, ok := indexes[m.Index]
		if !ok {
			at = len(w.indexes)
			indexes[m.Index] = at
			w.indexes = append(w.indexes, indexWrites{name: m.Index})
		}
		i := &w.indexes[at]
		if m.Delete {
			i.deletes = append(i.deletes, m)
		} else {
			i.puts = append(i.puts, m)
		}
	}
	return w
}

// order puts the records that are read and put first, then the others that are put,
// then those that are deleted. It returns how many the first are.
func (w *written) order(reads map[string]uint64) (both int) {
	class := func(r *recordWrite) int {
		if r.Delete {
			return 2
		}
		if _, read := reads[r.Key]; read {
			return 0
		}
		return 1
	}
	if len(w.records) > 1 {
		slices.SortStableFunc(w.records, func(x, y recordWrite) int { return class(&x) - class(&y) })
	}
	for both < len(w.records) && class(&w.records[both]) == 0 {
		both++
	}
	return both
}

// maxMessage bounds a notice; what is longer says that anything may have changed.
const maxMessage = 32 << 10

// message is the notice of what was written: the process, then each key with its
// length in 2 bytes before it.
func (b *backend) message(records []recordWrite) string {
	text := []byte(b.process)
	for _, r := range records {
		text = binary.BigEndian.AppendUint16(text, uint16(len(r.Key)))
		text = append(text, r.Key...)
		if len(text) > maxMessage {
			return b.process
		}
	}
	return string(text)
}
