package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// errMoved means that a connection reached another server than the one that was
// checked. The next look finds out which.
var errMoved = fmt.Errorf("%w: another server answers at the address than before; it is being checked", store.ErrUnavailable)

// link is one server whose data was recognised. Each connection of it is to that
// very server, or is not made; when the server or the generation changes, there
// is a new link.
type link struct {
	place
	runID  string
	id     string // of the generation
	whose  string // both, as scripts compare them
	boxed  any    // whose, once for all commits
	epoch  uint64
	client *redis.Client

	durability string // see store.Info; under backend.mu, as all up to online
	durable    bool   // nothing is lost at a crash of the server
	kept       uint64 // see store.Info, as first
	first      uint64
	adoption   *store.Adoption
	online     atomic.Int64  // replicas that are connected
	confirmed  atomic.Uint64 // newest hard revision known to be confirmed

	attended atomic.Bool // see backend.attend

	rounds rounds
	gone   chan struct{} // closed when the link is given up
	once   sync.Once
}

func (b *backend) newLink(p place, runID, id string) (*link, error) {
	l := &link{place: p, runID: runID, id: id, whose: whose(id, runID), gone: make(chan struct{})}
	l.boxed = l.whose
	l.rounds.next = newRound()
	l.rounds.wake = make(chan struct{}, 1)
	o, err := b.serverOptions(p.addr)
	if err != nil {
		return nil, err
	}
	o.MaxIdleConns = 8
	o.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		text, err := cn.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		if infoField(text, "run_id") != runID {
			b.poke()
			return errMoved
		}
		return nil
	}
	l.client = redis.NewClient(o)
	return l, nil
}

func (b *backend) serverOptions(addr string) (*redis.Options, error) {
	t := &b.o.Target
	o, err := b.o.clientOptions(addr, t.User, "store.redis.password_file", t.PasswordFile)
	if err != nil {
		return nil, err
	}
	o.DB = t.DB
	return o, nil
}

// close gives the link up: who waits on it is told.
func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
	})
}

// infoField returns one field of an INFO answer, "" when it is not there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// server is what a look at a server has found out about it.
type server struct {
	runID      string
	replicas   int64 // connected, in step and heard
	appendOnly string
	fsync      string // always, everysec, no; "" = not told
	eviction   string
	found      found
}

// inspect asks a server all that has to be known before it is used, in two calls.
func (b *backend) inspect(ctx context.Context, c redis.Cmdable) (s server, err error) {
	// First what a server that is loading refuses: the rest it answers, slowly.
	if s.found, err = b.inspectData(ctx, c); err != nil {
		return s, err
	}
	ctx, cancel := b.within(ctx)
	defer cancel()
	pipe := c.Pipeline()
	info := pipe.Info(ctx, "server")
	replication := pipe.Info(ctx, "replication")
	config := pipe.ConfigGet(ctx, "append*")
	memory := pipe.Info(ctx, "memory") // several sections at once are new in Redis 7
	persistence := pipe.Info(ctx, "persistence")
	if err := exec(ctx, pipe); err != nil {
		return s, err
	}
	if err := info.Err(); err != nil {
		return s, err
	}
	if s.runID = infoField(info.Val(), "run_id"); s.runID == "" || len(s.runID) > 40 {
		return s, fmt.Errorf("%w: the server tells no run id of up to 40 digits, so a restart of it cannot be seen", store.ErrRefused)
	}
	v := infoField(info.Val(), "redis_version")
	if major, minor := versionOf(v); major < 6 || major == 6 && minor < 2 {
		return s, fmt.Errorf("%w: the server is Redis %.32q: 6.2 is the oldest that can be used", store.ErrRefused, v)
	}
	if err := replication.Err(); err != nil {
		return s, err
	}
	if infoField(replication.Val(), "role") != "master" {
		return s, fmt.Errorf("%w: the server is a replica, not the master", store.ErrUnavailable)
	}
	s.replicas = replicasOf(replication.Val())
	return s, s.settings(config, memory, persistence)
}

// exec makes the calls of a pipeline, of which each answer has its own error. It
// returns the one of a connection that was not made, which none of them has.
func exec(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return nil
	}
	return err
}

func versionOf(text string) (major, minor int) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}

// silent is how long a replica, which says each second how far it is, may say nothing
// and still be counted, in seconds. The master itself takes it for connected for a
// minute.
const silent = 5

// replicasOf counts the replicas in an INFO answer that are in step and heard.
func replicasOf(info string) (n int64) {
	for line := range strings.Lines(info) {
		name, fields, _ := strings.Cut(strings.TrimSpace(line), ":")
		if number, ok := strings.CutPrefix(name, "slave"); !ok || strings.Trim(number, "0123456789") != "" {
			continue
		}
		online, lag := false, -1
		for field := range strings.SplitSeq(fields, ",") {
			online = online || field == "state=online"
			if text, ok := strings.CutPrefix(field, "lag="); ok {
				lag, _ = strconv.Atoi(text)
			}
		}
		if online && lag >= 0 && lag <= silent {
			n++
		}
	}
	return n
}

// settings notes what decides over durability. A user who may not read the
// configuration sees some of it in INFO.
func (s *server) settings(config *redis.MapStringStringCmd, memory, persistence *redis.StringCmd) error {
	if err := config.Err(); err == nil {
		s.appendOnly, s.fsync = config.Val()["appendonly"], config.Val()["appendfsync"]
	} else if !redis.IsPermissionError(err) && !unknownCommand(err) {
		return err
	}
	if err := errors.Join(memory.Err(), persistence.Err()); err != nil {
		return err
	}
	s.eviction = infoField(memory.Val(), "maxmemory_policy")
	if s.appendOnly == "" {
		s.appendOnly = map[string]string{"1": "yes", "0": "no"}[infoField(persistence.Val(), "aof_enabled")]
	}
	if s.eviction != "noeviction" {
		return fmt.Errorf("%w: the server's maxmemory-policy is %.32q, so it may throw our keys away: set it to noeviction", store.ErrRefused, s.eviction)
	}
	return nil
}

func unknownCommand(err error) bool { return redis.HasErrorPrefix(err, "ERR unknown command") }

func (b *backend) inspectData(ctx context.Context, c redis.Cmdable) (f found, err error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	fields := []string{"format", "generation", "kept", "first", "state", "adopted", "adopted_by", "adopted_was"}
	// Two calls: of a client that has to say its password first, a server takes none with
	// more than ten arguments, and says something else.
	pipe := c.Pipeline()
	record, missed := pipe.HMGet(ctx, b.keys.meta, fields...), pipe.HGet(ctx, b.keys.meta, "missed")
	if err := exec(ctx, pipe); err != nil {
		return f, err
	}
	list, err := record.Result()
	if err != nil {
		return f, err
	}
	for i, to := range []*uint64{&f.Format, &f.Generation, &f.Kept, &f.First} {
		text, ok := list[i].(string)
		if !ok {
			continue
		}
		f.Exists = true
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil || *to >= maxNumber {
			*to = 0
			f.Damaged = fmt.Sprintf("field %s of its generation record %s is %.64q, not a number below 2^52", fields[i], b.keys.meta, text)
		}
	}
	if text, ok := list[4].(string); ok {
		f.Exists, f.raw = true, text
		s, ok := parseState(text)
		if !ok {
			f.Damaged = fmt.Sprintf("field state of its generation record %s has %d bytes that do not parse", b.keys.meta, len(text))
		}
		f.ID, f.Master, f.Revision, f.Hard, f.Confirmed, f.Clock = s.id, s.runID, s.revision, s.hard, s.confirmed, s.clock
	}
	if reason, ok := list[5].(string); ok {
		a := &store.Adoption{Generation: f.Generation, Reason: reason}
		a.Actor, _ = list[6].(string)
		a.Found, _ = list[7].(string)
		f.Adoption = a
	}
	text, err := missed.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return f, err
	}
	if text != "" {
		f.rawMissed = text
		if err := json.Unmarshal([]byte(text), &f.Missed); err != nil || f.Missed.Generation >= maxNumber || f.Missed.Revision >= maxNumber {
			f.Damaged = fmt.Sprintf("field missed of its generation record %s does not parse", b.keys.meta)
			f.Missed = seen{}
		}
	}
	if !f.Exists {
		n, err := c.Exists(ctx, b.keys.heads).Result()
		if err != nil {
			return f, err
		}
		f.Remains = n > 0
	}
	return f, nil
}

// durability says in words what a hard write is worth on this server.
func (o *Options) durability(p place, s *server) (words string, durable bool) {
	const not = "not durable: "
	alone := o.Target.Kind == Standalone
	also := "" // a master that is back before it was replaced is what its replicas copy
	if !alone {
		also = " on all replicas, when it is back before a fail-over"
	}
	switch {
	case s.appendOnly == "":
		return not + "cannot be verified: the server does not tell whether it keeps an append-only file", false
	case s.appendOnly != "yes":
		return not + "the server keeps no append-only file (appendonly is no), a crash of it loses what is newer than its last snapshot" + also, false
	case s.fsync == "":
		return not + "cannot be verified: the user may not read appendfsync with CONFIG GET", false
	case s.fsync != "always":
		return not + fmt.Sprintf("appendfsync of the server is %.16s, a crash of its machine loses the newest writes%s; set it to always", s.fsync, also), false
	case alone:
		return "durable", true
	case o.Replicas == 0:
		return not + "store.redis.replicas is 0, hard writes do not wait for a replica and a fail-over loses them", false
	case p.replicas > o.Replicas:
		return not + fmt.Sprintf("hard writes wait for %d of %d replicas (store.redis.replicas), a fail-over to another one loses them", o.Replicas, p.replicas), false
	case p.replicas < 0:
		return not + "cannot be verified: it is not known how many replicas there are", false
	}
	return "durable", false
}
