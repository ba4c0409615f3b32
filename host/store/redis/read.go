package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// Read implements store.Remote.
func (b *backend) Read(ctx context.Context, q *store.Query) (*store.Answer, error) {
	deadline := time.Now().Add(b.patience())
	keys, args := b.ask(q)
	for {
		l, err := b.await(ctx, deadline)
		if err != nil {
			return nil, err
		}
		a, err := b.readOnce(ctx, l, q, keys, args)
		if err == nil {
			return a, nil
		}
		if errors.Is(err, store.ErrForeign) || !helps(err) || !time.Now().Before(deadline) || ctx.Err() != nil {
			return nil, explain(err)
		}
		if err := b.pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (b *backend) ask(q *store.Query) (keys []string, args []any) {
	keys = append(keys, b.keys.meta, b.keys.heads)
	args = append(args, "", b.field, len(q.Records), len(q.Heads), len(q.Scans), len(q.Logs))
	for _, key := range q.Records {
		keys = append(keys, b.keys.record(key))
	}
	for _, log := range q.Heads {
		args = append(args, log)
	}
	for _, s := range q.Scans {
		keys = append(keys, b.keys.index(s.Index))
		args = append(args, digits(s.From), digits(min(s.To, store.MaxScore)), s.Limit)
	}
	for _, l := range q.Logs {
		keys = append(keys, b.keys.log(l.Log))
		args = append(args, digits(l.From), l.Limit)
	}
	return keys, args
}

func (b *backend) readOnce(ctx context.Context, l *link, q *store.Query, keys []string, args []any) (*store.Answer, error) {
	before := b.seenNow()
	args[0] = l.whose
	var r reply
	err := b.call(func(ctx context.Context) (err error) {
		r, err = run(ctx, l.client, readScript, keys, args)
		return err
	})
	if err != nil {
		b.trouble(l, err)
		return nil, err
	}
	if err := b.heed(l, before, r, r.revision); err != nil {
		return nil, err
	}
	b.clock.set(r.clock)
	a, err := parseAnswer(q, r)
	if err != nil {
		return nil, err
	}
	if r.hard > max(r.confirmed, l.confirmed.Load()) && b.o.Replicas > 0 {
		round := l.rounds.join()
		a.Durable = func(ctx context.Context) error { return b.shown(ctx, l, round) }
	}
	return a, nil
}

func parseAnswer(q *store.Query, r reply) (*store.Answer, error) {
	a := &store.Answer{
		Revision: r.revision, Records: make(map[string]store.Record, len(q.Records)), Heads: make(map[string]uint64, len(q.Heads)),
		Scans: make(map[store.ScanQuery][]store.Entry, len(q.Scans)), Logs: make(map[store.LogQuery][]store.LogEntry, len(q.Logs)),
	}
	lists := make([][]any, 4)
	for i, want := range []int{len(q.Records), len(q.Heads), len(q.Scans), len(q.Logs)} {
		if i < len(r.rest) {
			lists[i], _ = r.rest[i].([]any)
		}
		if len(lists[i]) != want {
			return nil, fmt.Errorf("%w: list %d of the server's answer has %d items, %d were asked for", store.ErrUnavailable, i, len(lists[i]), want)
		}
	}
	var err error
	for i, key := range q.Records {
		if a.Records[key], err = parseRecord(lists[0][i]); err != nil {
			return nil, fmt.Errorf("%w, at the record key %q", err, key)
		}
	}
	for i, log := range q.Heads {
		if a.Heads[log], err = number(lists[1][i]); err != nil {
			return nil, err
		}
	}
	for i, s := range q.Scans {
		if a.Scans[s], err = parseEntries(lists[2][i]); err != nil {
			return nil, err
		}
	}
	for i, l := range q.Logs {
		if a.Logs[l], err = parseLog(lists[3][i]); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func parseEntries(v any) ([]store.Entry, error) {
	list, ok := v.([]any)
	if !ok || len(list)%2 != 0 {
		return nil, fmt.Errorf("%w: the server's answer to a scan does not parse", store.ErrUnavailable)
	}
	entries := make([]store.Entry, 0, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		member, ok := list[i].(string)
		score, err := number(list[i+1])
		if !ok || err != nil {
			return nil, fmt.Errorf("%w: a member of an index on the server has the score %.32v", store.ErrForeign, list[i+1])
		}
		entries = append(entries, store.Entry{Member: member, Score: score})
	}
	return entries, nil
}

// parseLog reads entries of a stream: an id of <seq>-0 and one field.
func parseLog(v any) ([]store.LogEntry, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: the server's answer to a log does not parse", store.ErrUnavailable)
	}
	entries := make([]store.LogEntry, 0, len(list))
	for _, v := range list {
		bad := fmt.Errorf("%w: an entry of a log on the server does not parse: %.64v", store.ErrForeign, v)
		pair, ok := v.([]any)
		if !ok || len(pair) != 2 {
			return nil, bad
		}
		id, _ := pair[0].(string)
		fields, _ := pair[1].([]any)
		text, ok := strings.CutSuffix(id, "-0")
		if !ok || len(fields) != 2 {
			return nil, bad
		}
		seq, err := strconv.ParseUint(text, 10, 64)
		payload, ok := fields[1].(string)
		if err != nil || !ok {
			return nil, bad
		}
		entries = append(entries, store.LogEntry{Seq: seq, Payload: []byte(payload)})
	}
	return entries, nil
}
