package redis

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

var (
	//go:embed head.lua
	headSource string
	//go:embed clock.lua
	clockSource string
	//go:embed commit.lua
	commitSource string
	//go:embed read.lua
	readSource string
	//go:embed settle.lua
	settleSource string
	//go:embed mark.lua
	markSource string
	//go:embed attend.lua
	attendSource string
	//go:embed install.lua
	installSource string

	commitScript  = redis.NewScript(headSource + commitSource)
	readScript    = redis.NewScript(headSource + clockSource + readSource)
	settleScript  = redis.NewScript(headSource + clockSource + settleSource)
	markScript    = redis.NewScript(headSource + clockSource + markSource)
	attendScript  = redis.NewScript(headSource + attendSource)
	installScript = redis.NewScript(installSource)
)

// keys names what is ours on the server. All keys carry the same tag, so that a
// Cluster keeps them in one slot.
type keys struct {
	prefix, meta, heads, notice string
}

func keysOf(cluster string) keys {
	p := "{dona:" + cluster + "}:"
	return keys{prefix: p, meta: p + "meta", heads: p + "heads", notice: p + "notice"}
}

func (k *keys) record(key string) string { return k.prefix + "r:" + key }
func (k *keys) index(name string) string { return k.prefix + "i:" + name }
func (k *keys) log(name string) string   { return k.prefix + "l:" + name }

// state is the field of the generation record that each commit reads and writes.
type state struct {
	id                                     string // of the generation, 16 hex digits
	runID                                  string // of the server
	revision, hard, confirmed, clock, skew uint64
}

const stateLen = 16 + 40 + 5*8

// maxNumber is above all numbers of a generation record. What a jump or an adoption
// makes of a smaller one is still a number that scripts can reckon with.
const maxNumber = 1 << 52

// whose is what a script compares before it does anything.
func whose(id, runID string) string { return fmt.Sprintf("%-16.16s%-40.40s", id, runID) }

func (s *state) String() string {
	text := []byte(whose(s.id, s.runID))
	for _, n := range []uint64{s.revision, s.hard, s.confirmed, s.clock, s.skew} {
		text = binary.BigEndian.AppendUint64(text, n)
	}
	return string(text)
}

func parseState(text string) (s state, ok bool) {
	if len(text) != stateLen {
		return s, false
	}
	s.id, s.runID = strings.TrimRight(text[:16], " "), strings.TrimRight(text[16:56], " ")
	for i, to := range []*uint64{&s.revision, &s.hard, &s.confirmed, &s.clock, &s.skew} {
		if *to = binary.BigEndian.Uint64([]byte(text[56+8*i:])); *to >= maxNumber {
			return state{}, false
		}
	}
	return s, true
}

// reply is what the scripts begin their answers with. That of a commit which went
// well is the four numbers, its base first, in one string.
type reply struct {
	status                           string // OK, CONFLICT, BUSY, FENCED, GENERATION, MASTER
	revision, hard, confirmed, clock uint64
	rest                             []any
}

func (r *reply) numbers() [4]*uint64 {
	return [4]*uint64{&r.revision, &r.hard, &r.confirmed, &r.clock}
}

func parseReply(v any, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	r := reply{}
	if text, ok := v.(string); ok && len(text) == 4*8 {
		r.status = "OK"
		for i, to := range r.numbers() {
			if *to = number8(text, 8*i); *to >= 1<<53 {
				return r, fmt.Errorf("number %d of the server's answer is %d", 1+i, *to)
			}
		}
		return r, nil
	}
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return reply{}, fmt.Errorf("the server's answer is %T, not a list", v)
	}
	if r.status, ok = list[0].(string); !ok {
		return r, fmt.Errorf("the server's answer begins with %T", list[0])
	}
	if len(list) < 5 {
		return r, nil
	}
	for i, to := range r.numbers() {
		n, ok := list[1+i].(int64)
		if !ok || n < 0 {
			return r, fmt.Errorf("number %d of the server's answer is %v", 1+i, list[1+i])
		}
		*to = uint64(n)
	}
	r.rest = list[5:]
	return r, nil
}

// run calls a script by its hash, or in full on a server that does not know it.
func run(ctx context.Context, c redis.Scripter, s *redis.Script, keys []string, args []any) (reply, error) {
	return parseReply(s.Run(ctx, c, keys, args...).Result())
}

// parseRecord reads a record as it is kept: its version in 8 bytes, then its value.
func parseRecord(v any) (store.Record, error) {
	if v == nil {
		return store.Record{}, nil
	}
	text, ok := v.(string)
	if !ok || len(text) < 8 {
		return store.Record{}, fmt.Errorf("%w: a record on the server has %d bytes and no version", store.ErrForeign, len(text))
	}
	return store.Record{Value: []byte(text[8:]), Version: binary.BigEndian.Uint64([]byte(text[:8]))}, nil
}

// number8 reads the number that text has in 8 bytes from at.
func number8(text string, at int) (n uint64) {
	for _, c := range []byte(text[at : at+8]) {
		n = n<<8 | uint64(c)
	}
	return n
}

func digits(n uint64) string { return strconv.FormatUint(n, 10) }

func number(v any) (uint64, error) {
	switch v := v.(type) {
	case int64:
		if v >= 0 {
			return uint64(v), nil
		}
	case string:
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("the server's answer has %v where a number belongs", v)
}
