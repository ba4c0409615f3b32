package redis

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// supervise looks at the server again and again until the store is closed.
func (b *backend) supervise() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-b.closing
		cancel()
	}()
	tick := time.NewTicker(b.o.Probe)
	defer tick.Stop()
	saved := time.Now()
	for {
		select {
		case <-b.closing:
			return
		case <-tick.C:
		case <-b.poked:
		}
		_ = b.look(ctx)
		if time.Since(saved) >= time.Second {
			saved = time.Now()
			b.looking.Lock()
			if err := b.memory.save(b.seenNow()); err != nil {
				b.log.Error("cannot remember what was seen of the server", "file", b.memory.name, "error", err)
			}
			b.looking.Unlock()
		}
	}
}

// look checks the link, and finds a new one where there is none or it does not
// hold. The error says why there is none.
func (b *backend) look(ctx context.Context) error {
	b.looking.Lock()
	defer b.looking.Unlock()
	l, why, _ := b.current()
	if l == nil && errors.Is(why.err, store.ErrClosed) {
		return why.err
	}
	if l != nil {
		err := b.probe(ctx, l)
		if err == nil {
			return nil
		}
		b.drop(l, explain(err))
	}
	err := b.connect(ctx)
	if err != nil {
		err = explain(err)
		b.drop(nil, err)
	}
	return err
}

// probe looks whether the link still is what it was.
func (b *backend) probe(ctx context.Context, l *link) error {
	before := b.seenNow()
	s, err := b.inspect(ctx, l.client)
	if err != nil {
		return err
	}
	if s.runID != l.runID {
		return errMoved
	}
	v, text, err := judge(before, s.found, s.runID)
	switch {
	case err != nil:
		return err
	case v == foreign:
		b.miss(ctx, l.client, before, &s)
		return foreignError(text)
	case v != join || s.found.ID != l.id:
		return errMoved
	}
	p := l.place
	if b.o.Target.Kind != Standalone {
		// Where nobody can be asked, the master that is there is kept.
		if now, err := b.finder.find(ctx); err == nil {
			if now.addr != l.addr {
				return fmt.Errorf("%w: the master is at %s now", store.ErrUnavailable, now.addr)
			}
			p = now
		}
	}
	words, durable := b.o.durability(p, &s)
	l.online.Store(s.replicas)
	b.mu.Lock()
	changed := words != l.durability
	l.durability, l.durable = words, durable
	if b.link == l {
		b.seen = b.seen.observe(s.found, durable)
	}
	b.mu.Unlock()
	if changed {
		b.log.Warn("the server's durability has changed", "durability", words)
	}
	b.attend(l)
	// For the clock; and to have confirmed what somebody left unconfirmed.
	q := &store.Query{}
	keys, args := b.ask(q)
	_, err = b.readOnce(ctx, l, q, keys, args)
	return err
}

func foreignError(text string) error {
	return fmt.Errorf("%w: %s; nothing was changed: bring its data back, or go on from it as it is with dona store adopt", store.ErrForeign, text)
}

// reach finds the server and returns a client of it, which the caller closes.
func (b *backend) reach(ctx context.Context) (place, *redis.Client, error) {
	p, err := b.finder.find(ctx)
	if err != nil {
		return p, nil, err
	}
	o, err := b.serverOptions(p.addr)
	if err != nil {
		return p, nil, err
	}
	return p, redis.NewClient(o), nil
}

// connect finds the server, judges what it holds and makes the link.
func (b *backend) connect(ctx context.Context) error {
	p, c, err := b.reach(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	// Another host may be doing the same; what it has done is judged anew.
	for range 5 {
		s, err := b.inspect(ctx, c)
		if err != nil {
			return err
		}
		before := b.seenNow()
		v, text, err := judge(before, s.found, s.runID)
		if err != nil {
			return err
		}
		switch v {
		case foreign:
			b.miss(ctx, c, before, &s)
			return foreignError(text)
		case create:
			_, err = b.install(ctx, c, &s, &state{id: newToken()}, "format", Format, "generation", 1, "kept", 0, "first", 1)
		case takeOver:
			err = b.takeOver(ctx, c, &s, before)
		default:
			return b.linkTo(ctx, p, &s)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the generation record changes faster than it can be read", store.ErrUnavailable)
}

// install sets the state, for this server, and fields of the generation record, if
// it is as it was found. It tells whether it was.
func (b *backend) install(ctx context.Context, c *redis.Client, s *server, st *state, fields ...any) (bool, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	st.runID = s.runID
	args := append([]any{s.found.raw, s.found.rawMissed, "state", st.String()}, fields...)
	n, err := installScript.Run(ctx, c, []string{b.keys.meta}, args...).Int()
	return n == 1, err
}

// miss leaves what this host has seen on a server that lacks it, so that a host that
// has seen nothing does not take what is there for all there ever was. It is no harm
// when it fails: the next look tries again.
func (b *backend) miss(ctx context.Context, c redis.Scripter, before seen, s *server) {
	if !before.misses(s.found) {
		return
	}
	text, err := json.Marshal(before)
	if err == nil {
		ctx, cancel := b.within(ctx)
		defer cancel()
		err = installScript.Run(ctx, c, []string{b.keys.meta}, s.found.raw, s.found.rawMissed, "missed", text).Err()
	}
	if err != nil {
		b.log.Warn("cannot note on the server what it lacks", "error", explain(err))
	}
}

// takeOver makes this server the one that the generation is on. What was given out
// on the last one and has not come along is jumped over.
func (b *backend) takeOver(ctx context.Context, c *redis.Client, s *server, before seen) error {
	skew, err := b.skew(ctx, c, s.found.Clock)
	if err != nil {
		return err
	}
	f := &s.found
	revision := max(f.Revision, before.newest(*f).Revision) + jump
	done, err := b.install(ctx, c, s, &state{id: f.ID, revision: revision, hard: f.Hard, confirmed: f.Confirmed, clock: f.Clock, skew: skew},
		"kept", f.Revision, "first", revision+1)
	if done {
		b.log.Warn("a new master, or the old one after a restart: revisions go on above all that may have been given out", "run_id", s.runID, "kept", s.found.Revision, "revision", revision)
	}
	return err
}

// skew is how much the store's clock has to be ahead of this server's to go on from
// where it was.
func (b *backend) skew(ctx context.Context, c *redis.Client, clock uint64) (uint64, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	now, err := c.Time(ctx).Result()
	if err != nil {
		return 0, err
	}
	skew := uint64(max(0, int64(clock)-now.UnixMicro()))
	if skew > 2e6 {
		b.log.Error("the new master's clock is behind the old one's: leases and dwell times go by the later one", "behind", time.Duration(skew)*time.Microsecond)
	}
	return skew, nil
}

// linkTo makes the link to a server that was recognised.
func (b *backend) linkTo(ctx context.Context, p place, s *server) error {
	l, err := b.newLink(p, s.runID, s.found.ID)
	if err != nil {
		return err
	}
	l.durability, l.durable = b.o.durability(p, s)
	l.kept, l.first, l.adoption = s.found.Kept, s.found.First, s.found.Adoption
	l.online.Store(s.replicas)
	before := b.seenNow()
	keys, args := b.ask(&store.Query{})
	args[0] = l.whose
	var r reply
	err = b.call(func(ctx context.Context) (err error) {
		r, err = run(ctx, l.client, readScript, keys, args)
		return err
	})
	if err == nil && r.status != "OK" {
		err = errMoved
	}
	if err != nil {
		l.close()
		return err
	}
	b.clock.set(r.clock)
	s.found.Revision = max(s.found.Revision, r.revision)
	next := before.observe(s.found, l.durable)
	if err := b.memory.save(next); err != nil {
		l.close()
		return fmt.Errorf("%w: cannot remember what was seen of the server: %w", store.ErrUnavailable, err)
	}
	sub, err := b.subscribe(ctx, l)
	if err != nil {
		l.close()
		return err
	}
	b.attend(l)
	b.prune(ctx, l, r.clock)
	b.up(l, s, sub)
	return nil
}

// staleCommit is how long what is known of a process's newest commit is kept: much
// longer than anybody asks for it.
const staleCommit = time.Hour

// prune removes what processes that ended long ago have left in the generation
// record. It is no harm when it fails.
func (b *backend) prune(ctx context.Context, l *link, clock uint64) {
	err := b.call(func(ctx context.Context) error {
		if n, err := l.client.HLen(ctx, b.keys.meta).Result(); err != nil || n < 64 {
			return err
		}
		fields, err := l.client.HGetAll(ctx, b.keys.meta).Result()
		if err != nil {
			return err
		}
		var old []string
		for field, value := range fields {
			if len(field) > 2 && field[:2] == "c:" && commitClock(value)+uint64(staleCommit.Microseconds()) < clock {
				old = append(old, field)
			}
		}
		if len(old) == 0 {
			return nil
		}
		return l.client.HDel(ctx, b.keys.meta, old...).Err()
	})
	if err != nil {
		b.log.Warn("cannot remove what ended processes have left", "error", explain(err))
	}
}

// commitClock is the last part of a process's field: when it committed.
func commitClock(value string) uint64 {
	if len(value) != 4*8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(value[3*8:]))
}

// MaxReason bounds the reason of an adoption, in bytes.
const MaxReason = 4 << 10

// adopt makes what a foreign server holds the store's data.
func (b *backend) adopt(ctx context.Context, actor, reason string) error {
	if reason == "" || len(reason) > MaxReason || !utf8.ValidString(reason) {
		return fmt.Errorf("store: adopt: the reason has %d bytes: allowed are 1 to %d of UTF-8, which say why the data is given up", len(reason), MaxReason)
	}
	if err := b.look(ctx); err == nil {
		return ErrKnown
	} else if !errors.Is(err, store.ErrForeign) {
		return fmt.Errorf("store: adopt: the server cannot be looked at: %w", err)
	}
	if err := b.adoptFound(ctx, actor, reason); err != nil {
		return err
	}
	return b.look(ctx)
}

func (b *backend) adoptFound(ctx context.Context, actor, reason string) error {
	b.looking.Lock()
	defer b.looking.Unlock()
	_, c, err := b.reach(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := b.inspect(ctx, c)
	if err != nil {
		return explain(err)
	}
	before := b.seenNow()
	v, text, err := judge(before, s.found, s.runID)
	if err != nil {
		return err
	}
	if v != foreign {
		return nil // somebody was faster
	}
	skew, err := b.skew(ctx, c, s.found.Clock)
	if err != nil {
		return explain(err)
	}
	f := s.found
	known := before.newest(f)
	revision := max(f.Revision, known.Revision) + jump
	generation := max(f.Generation, known.Generation) + 1
	st := &state{id: newToken(), revision: revision, hard: revision, clock: f.Clock, skew: skew}
	if b.o.Replicas == 0 {
		st.confirmed = revision
	}
	done, err := b.install(ctx, c, &s, st, "format", Format, "generation", generation, "kept", f.Revision, "first", revision+1,
		"adopted", reason, "adopted_by", actor, "adopted_was", text, "missed", "")
	if err != nil {
		return explain(err)
	}
	if !done {
		return fmt.Errorf("%w: adopt: the generation record has changed meanwhile; look again", store.ErrUnavailable)
	}
	b.log.Warn("adopted what the server holds", "generation", generation, "revision", revision, "was", text, "reason", reason)
	return nil
}
