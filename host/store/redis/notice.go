package redis

import (
	"context"
	"encoding/binary"

	"github.com/redis/go-redis/v9"
)

// subscribe asks a link's server for the notices of other hosts.
func (b *backend) subscribe(ctx context.Context, l *link) (*redis.PubSub, error) {
	sub := l.client.Subscribe(ctx, b.keys.notice)
	if _, err := sub.ReceiveTimeout(ctx, b.o.CallTimeout); err != nil { // the answer to SUBSCRIBE
		_ = sub.Close()
		return nil, err
	}
	return sub, nil
}

// attend sees to it that commits send notices, for as long as anybody but their own
// process listens. What was missed before it succeeded for the first time since l is
// listened on is made good.
func (b *backend) attend(l *link) {
	var r reply
	err := b.call(func(ctx context.Context) (err error) {
		r, err = run(ctx, l.client, attendScript, []string{b.keys.meta}, []any{l.whose, b.field, b.keys.notice})
		return err
	})
	// A server that takes no write takes no commit either; the next look tries again.
	if err == nil && r.status == "OK" && !l.attended.Swap(true) {
		b.engine.NotifyAll()
	}
}

// listen passes notices on until the link is given up. A notice is a hint: what
// is lost is made good when the connection is there again, or by the re-list.
func (b *backend) listen(l *link, sub *redis.PubSub) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		// A receive ends with its connection, not with its context.
		closed := make(chan struct{})
		received := make(chan struct{})
		go func(sub *redis.PubSub) {
			defer close(closed)
			select {
			case <-l.gone:
				cancel()
			case <-received:
			}
			_ = sub.Close()
		}(sub)
		b.heard.Store(true)
		for {
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				break
			}
			b.notice(m.Payload)
		}
		b.heard.Store(false)
		close(received)
		<-closed
		for sub = nil; sub == nil; {
			if ctx.Err() != nil || b.pause(ctx, b.o.Probe) != nil {
				return
			}
			select {
			case <-l.gone:
				return
			default:
				sub, _ = b.subscribe(ctx, l)
			}
		}
		l.attended.Store(false)
		b.attend(l)
		b.engine.NotifyAll() // for what was missed
	}
}

// notice fires the watches of the records that another host has written.
func (b *backend) notice(text string) {
	if len(text) < len(b.process) || text[:len(b.process)] == b.process {
		return
	}
	rest := text[len(b.process):]
	if rest == "" {
		b.engine.NotifyAll()
		return
	}
	b.engine.Notify(noticedKeys(rest)...)
}

// noticedKeys reads the keys of a notice.
func noticedKeys(rest string) (keys []string) {
	for len(rest) >= 2 {
		n := int(binary.BigEndian.Uint16([]byte(rest[:2])))
		if len(rest) < 2+n {
			break
		}
		keys = append(keys, rest[2:2+n])
		rest = rest[2+n:]
	}
	return keys
}
